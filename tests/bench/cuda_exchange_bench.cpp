// Rows of experts among GPUs: mpirun -np N cuda_exchange_bench [mixtral] [skewed] [TOKENS ...]
// Times dispatch (x, choice, weight) and return (y, the weights' gradients) of 8192 or TOKENS tokens a rank, d 2048.
// Tokens choose 8 of 128 experts over the ranks (mixtral: 2 of 8), in bf16. GPUs read the rows, or NCCL sends equal
// parts; an all-to-all of as many bytes follows. Prints link bytes of the busiest rank, its GB/s, and GB/s of its
// required rows: means over consecutive calls, of the slowest rank. Experts are equally likely, or skewed by
// 1 / sqrt(1, 2, ...).
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/comm/memory_sharing.h"
#include "parallel/comm/mpi/mpi_runtime.h"
#include "parallel/comm/nccl/nccl_communicator.h"
#include "tests/distributed/collective_rig.h"
#include "tests/distributed/rank_device.h"

namespace {

using namespace megalith;

constexpr int kCalls = 50;

struct Case {
  std::int64_t tokens = 8192;  // per rank
  std::int64_t hidden = 2048;
  int experts = 128, choices = 8;
  bool skewed = false;
};

// A token's experts, by the largest of log(u) / weight (Efraimidis and Spirakis 2006, doi:10.1016/j.ipl.2005.11.003).
// Ranks with neighboring experts get likely and unlikely ones: place e in likelihood has expert 37 e.
std::vector<int> choose(const Case& of, std::mt19937& random) {
  std::vector<std::pair<double, int>> keys;
  for (int e = 0; e < of.experts; ++e) {
    const double weight = of.skewed ? 1 / std::sqrt(e + 1.0) : 1,
                 u = (static_cast<double>(random()) + 1) / 4294967297.0;
    keys.emplace_back(-std::log(u) / weight, e * 37 % of.experts);
  }
  std::partial_sort(keys.begin(), keys.begin() + of.choices, keys.end());
  std::vector<int> chosen;
  for (int k = 0; k < of.choices; ++k) chosen.push_back(keys[static_cast<std::size_t>(k)].second);
  return chosen;
}

// Tokens that a rank sends to each rank, by seed: every rank computes all of them.
struct Lists {
  std::vector<std::int32_t> sends;  // [P, P + 1]
  std::vector<std::int32_t> index;  // [M] of this rank
  std::int64_t most = 0;            // rows that arrive on one rank
  std::int64_t max_sent = 0;        // from others
  double load = 0;                  // busiest rank over the mean

  Lists(const Communicator& world, const Case& of) : index(static_cast<std::size_t>(of.tokens * world.size())) {
    const int ranks = world.size();
    std::vector<std::int64_t> arrived(static_cast<std::size_t>(ranks)), from_others(arrived);
    for (int source = 0; source < ranks; ++source) {
      std::mt19937 random(static_cast<unsigned>(source + 1));
      std::vector<std::vector<std::int32_t>> tokens(static_cast<std::size_t>(ranks));
      for (std::int32_t token = 0; token < of.tokens; ++token) {
        for (const int expert : choose(of, random)) {
          auto& list = tokens[static_cast<std::size_t>(expert * ranks / of.experts)];
          if (list.empty() || list.back() != token) list.push_back(token);
        }
      }
      auto next = index.begin();
      sends.push_back(0);
      for (std::size_t p = 0; p < tokens.size(); ++p) {
        const auto count = static_cast<std::int32_t>(tokens[p].size());
        sends.push_back(sends.back() + count);
        arrived[p] += count;
        if (static_cast<int>(p) != source) from_others[p] += count;
        if (source == world.rank()) next = std::copy(tokens[p].begin(), tokens[p].end(), next);
      }
    }
    most = *std::max_element(arrived.begin(), arrived.end());
    max_sent = *std::max_element(from_others.begin(), from_others.end());
    const auto sum = static_cast<double>(std::accumulate(arrived.begin(), arrived.end(), std::int64_t{0}));
    load = static_cast<double>(most) * ranks / sum;
  }
};

// Seconds of one call, on the slowest rank.
template <class Work>
double seconds(Communicator& world, Stream& stream, Work work) {
  const auto calls = [&](int count) {
    for (int i = 0; i < count; ++i) work();
    stream.synchronize();
    world.host_barrier();
  };
  calls(5);
  const auto start = std::chrono::steady_clock::now();
  calls(kCalls);
  const double mine = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / kCalls;
  const std::vector<double> all = world.host_gather(mine);
  return *std::max_element(all.begin(), all.end());
}

void print(const Communicator& world, const std::string& what, std::int64_t wire, std::int64_t wanted, double time) {
  if (world.rank() != 0) return;
  std::printf("%-28s %8.1f MiB on the wire, %8.1f us, %6.1f GB/s a GPU, %6.1f of wanted rows\n", what.c_str(),
              static_cast<double>(wire) / 1048576, time * 1e6, static_cast<double>(wire) / time * 1e-9,
              static_cast<double>(wanted) / time * 1e-9);
}

// The exchange with the experts' ranks, the return, and their tensors.
class Exchanges {
 public:
  ExchangeRows there, back;

  Exchanges(test::Rig& rig, Communicator& world, const Case& of, const Lists& lists)
      : there{.group = world, .pair_room = of.tokens},
        back{.group = world, .pair_room = of.tokens, .back = true},
        rows_listed_(of.tokens * world.size()),
        room_rows_((lists.most + 127) / 128 * 128),
        shared_(rig.empty<std::uint8_t>((of.tokens + room_rows_) * row_bytes(of) + rows_listed_ * 4)),
        home_(rig.empty<std::uint8_t>(rows_listed_ * row_bytes(of))),
        sends_(rig.empty<std::int32_t>(world.size() * (world.size() + 1))) {
    lay_out(of);
    sends_.values = lists.sends;
    there.sends = back.sends = sends_.tensor().view({world.size(), world.size() + 1});
    const std::size_t index_bytes = there.index.bytes();
    std::memcpy(shared_.values.data(), lists.index.data(), index_bytes);
    shared_.upload(rig.stream());
    sends_.upload(rig.stream());
    rig.stream().synchronize();
  }

  Tensor shared() { return shared_.tensor(); }

 private:
  static std::int64_t row_bytes(const Case& of) { return of.hidden * 2 + of.choices * 8; }

  void lay_out(const Case& of) {
    const auto cut = [](std::byte*& at, DType dtype, const Shape& shape) {
      const Tensor x(at, dtype, shape);
      at += x.bytes();
      return x;
    };
    auto* at = shared_.tensor().as<std::byte>();
    auto* to = home_.tensor().as<std::byte>();
    there.index = cut(at, DType::kInt32, {rows_listed_});
    for (const auto& [dtype, width] :
         {std::pair{DType::kBf16, of.hidden}, std::pair{DType::kInt32, std::int64_t{of.choices}},
          std::pair{DType::kFp32, std::int64_t{of.choices}}}) {
      const Tensor in = cut(at, dtype, {of.tokens, width}), arrived = cut(at, dtype, {room_rows_, width});
      there.rows.push_back({.in = in, .out = arrived});
      if (dtype != DType::kInt32) back.rows.push_back({.in = arrived, .out = cut(to, dtype, {rows_listed_, width})});
    }
  }

  std::int64_t rows_listed_, room_rows_;
  test::Buffer<std::uint8_t> shared_, home_;
  test::Buffer<std::int32_t> sends_;
};

// One exchange, pulled if the group shares memory, and padded; an all-to-all of as many bytes follows each.
void measure_exchange(Communicator& world, Communicator* pulling, Stream& stream, const ExchangeRows& op,
                      std::int64_t wanted, const Tensor& room) {
  const std::int64_t ranks = world.size();
  const std::string what = op.back ? "back" : "dispatch";
  const auto all_to_all = [&](std::int64_t wire) {  // from and to memory that is large enough for it
    const std::int64_t all = std::min<std::int64_t>(wire / (ranks - 1), room.numel() / (2 * ranks)) * ranks;
    const Tensor in = room.slice(0, 0, all), out = room.slice(0, all, all);
    const double time = seconds(world, stream, [&] { launch(stream, AllToAll{.group = world, .in = in, .out = out}); });
    print(world, "  all-to-all of as many", all / ranks * (ranks - 1), wanted, time);
  };
  if (pulling != nullptr) {
    print(world, what + ", pulled", wanted, wanted, seconds(world, stream, [&] {
            launch(stream, ExchangeRows{.group = *pulling,
                                        .rows = op.rows,
                                        .index = op.index,
                                        .sends = op.sends,
                                        .pair_room = op.pair_room,
                                        .back = op.back});
          }));
    all_to_all(wanted);
  }
  const PaddedExchangeRows padded{op, room.slice(0, 0, exchange_room_bytes(op))};
  const std::int64_t wire = exchange_room_bytes(op) / 2;
  print(world, what + ", padded", wire, wanted, seconds(world, stream, [&] { launch(stream, padded); }));
  all_to_all(wire);
}

void measure(Communicator& world, const Case& of) {
  test::Rig rig({.device = DeviceType::kCuda});
  const Lists lists(world, of);
  if (world.rank() == 0)
    std::printf("%ld tokens a rank, %d of %d experts, load of ranks, max/mean %.2f\n", static_cast<long>(of.tokens),
                of.choices, of.experts, lists.load);
  Exchanges exchanges(rig, world, of, lists);
  auto room = rig.empty<std::uint8_t>(exchange_room_bytes(exchanges.there));
  const std::unique_ptr<Communicator> pulling = world.duplicate("pull");
  const AbortOnUnwind guard(world);
  MemorySharing* const sharing = pulling->memory_sharing();
  const Tensor memory = exchanges.shared();
  const bool pulls = sharing != nullptr && sharing->share_memory(memory.data, memory.bytes(), 1);
  for (const ExchangeRows* op : {&exchanges.there, &exchanges.back})
    measure_exchange(world, pulls ? pulling.get() : nullptr, rig.stream(), *op, lists.max_sent * row_bytes(*op),
                     room.tensor());
  if (sharing != nullptr) sharing->unshare_memory();
}

}  // namespace

int main(int argc, char** argv) {
  MpiRuntime mpi(argc, argv);
  if (!test::select_rank_device(mpi, DeviceType::kCuda)) return test::kSkipped;
  try {
    const std::unique_ptr<Communicator> world = gpu_world(mpi);
    Case of;
    std::vector<std::int64_t> tokens;
    for (int i = 1; i < argc; ++i) {
      const std::string_view word = argv[i];
      if (word == "mixtral") {
        of.experts = 8;
        of.choices = 2;
      } else if (word == "skewed") {
        of.skewed = true;
      } else {
        tokens.push_back(std::atoll(argv[i]));
      }
    }
    if (tokens.empty()) tokens.push_back(of.tokens);
    for (const std::int64_t count : tokens) {
      of.tokens = count;
      if (world->size() > 1) measure(*world, of);
      world->host_barrier();
    }
  } catch (const Error& error) {
    std::fprintf(stderr, "rank %d: %s\n", mpi.rank(), error.what());
    mpi.abort(error.code());
  }
  return 0;
}
