// Rows of experts among GPUs: mpirun -np N cuda_exchange_bench [mixtral]
// Dispatch (x, choice, weight) and the way back (y, the weights' gradients) of 8192 tokens a rank, d 2048, 8 of 128
// experts that are spread over the ranks (mixtral: 2 of 8), bf16: read by the GPUs, and in equal parts through
// NCCL; beside each an all-to-all in equal parts of as many bytes. What goes over the links to the rank that gets most,
// its GB/s, and GB/s of rows that it wanted. Means over calls in a row, of the slowest rank.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/comm/memory_sharing.h"
#include "parallel/comm/mpi_runtime.h"
#include "tests/distributed/collective_rig.h"
#include "tests/distributed/rank_device.h"

namespace {

using namespace megalith;

constexpr std::int64_t kTokens = 8192;
constexpr int kCalls = 50;

struct Case {
  std::int64_t hidden = 2048;
  int experts = 128, choices = 8;
};

// Which of its tokens a rank sends to each rank, by seed: every rank computes all of them.
struct Lists {
  std::vector<std::int32_t> sends;  // [P, P + 1]
  std::vector<std::int32_t> index;  // [M] of this rank
  std::int64_t most = 0;            // rows that arrive on one rank
  std::int64_t most_sent = 0;       // from others

  Lists(const Communicator& world, const Case& of) : index(static_cast<std::size_t>(kTokens * world.size())) {
    const int ranks = world.size();
    std::vector<std::int64_t> arrived(static_cast<std::size_t>(ranks)), from_others(arrived);
    for (int source = 0; source < ranks; ++source) {
      std::mt19937 random(static_cast<unsigned>(source + 1));
      std::vector<std::vector<std::int32_t>> tokens(static_cast<std::size_t>(ranks));
      std::vector<int> experts(static_cast<std::size_t>(of.experts));
      std::iota(experts.begin(), experts.end(), 0);
      for (std::int32_t token = 0; token < kTokens; ++token) {
        for (int k = 0; k < of.choices; ++k) {
          std::swap(experts[static_cast<std::size_t>(k)],
                    experts[static_cast<std::size_t>(k) + random() % static_cast<unsigned>(of.experts - k)]);
          auto& list = tokens[static_cast<std::size_t>(experts[static_cast<std::size_t>(k)] * ranks / of.experts)];
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
    most_sent = *std::max_element(from_others.begin(), from_others.end());
  }
};

// Of one call, on the slowest rank.
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

void measure(Communicator& world, const Case& of) {
  test::Rig rig({.device = DeviceType::kCuda});
  const std::int64_t ranks = world.size();
  const Lists lists(world, of);
  const std::int64_t rows_listed = kTokens * ranks, room_rows = (lists.most + 127) / 128 * 128;
  const std::int64_t row_bytes = of.hidden * 2 + of.choices * 8;
  auto shared = rig.empty<std::uint8_t>((kTokens + room_rows) * row_bytes + rows_listed * 4);
  auto home = rig.empty<std::uint8_t>(rows_listed * row_bytes);
  auto sends = rig.empty<std::int32_t>(ranks * (ranks + 1));
  std::ranges::copy(lists.sends, sends.values.begin());
  const auto cut = [](std::byte*& at, DType dtype, const Shape& shape) {
    const Tensor x(at, dtype, shape);
    at += x.bytes();
    return x;
  };
  auto* at = shared.tensor().as<std::byte>();
  auto* to = home.tensor().as<std::byte>();
  ExchangeRows there{.group = world, .pair_room = kTokens}, back{.group = world, .pair_room = kTokens, .back = true};
  there.sends = back.sends = sends.tensor().view({ranks, ranks + 1});
  there.index = cut(at, DType::kInt32, {rows_listed});
  const std::size_t index_bytes = there.index.bytes();
  std::memcpy(shared.values.data(), lists.index.data(), index_bytes);
  for (const auto& [dtype, width] :
       {std::pair{DType::kBf16, of.hidden}, std::pair{DType::kInt32, std::int64_t{of.choices}},
        std::pair{DType::kFp32, std::int64_t{of.choices}}}) {
    const Tensor in = cut(at, dtype, {kTokens, width}), arrived = cut(at, dtype, {room_rows, width});
    there.rows.push_back({.in = in, .out = arrived});
    if (dtype != DType::kInt32) back.rows.push_back({.in = arrived, .out = cut(to, dtype, {rows_listed, width})});
  }
  auto room = rig.empty<std::uint8_t>(exchange_room_bytes(there));
  shared.upload(rig.stream());
  sends.upload(rig.stream());
  rig.stream().synchronize();
  const std::unique_ptr<Communicator> pulling = world.duplicate("pull");
  const AbortOnUnwind guard(world);
  MemorySharing* const sharing = memory_sharing(*pulling);
  const Tensor memory = shared.tensor();
  const bool pulls = sharing != nullptr && sharing->share_memory(memory.data, memory.bytes(), 1);
  for (const ExchangeRows* op : {&there, &back}) {
    const std::string what = op->back ? "back" : "dispatch";
    const std::int64_t wanted = lists.most_sent * megalith::row_bytes(*op);
    const auto all_to_all = [&](std::int64_t wire) {  // from and to memory that is large enough for it
      const std::int64_t all = std::min<std::int64_t>(wire / (ranks - 1), room.tensor().numel() / (2 * ranks)) * ranks;
      const Tensor in = room.tensor().slice(0, 0, all), out = room.tensor().slice(0, all, all);
      const double time =
          seconds(world, rig.stream(), [&] { launch(rig.stream(), AllToAll{.group = world, .in = in, .out = out}); });
      print(world, "  all-to-all of as many", all / ranks * (ranks - 1), wanted, time);
    };
    if (pulls) {
      print(world, what + ", pulled", wanted, wanted, seconds(world, rig.stream(), [&] {
              launch(rig.stream(), ExchangeRows{.group = *pulling,
                                                .rows = op->rows,
                                                .index = op->index,
                                                .sends = op->sends,
                                                .pair_room = kTokens,
                                                .back = op->back});
            }));
      all_to_all(wanted);
    }
    ExchangeRows padded{*op};
    padded.room = room.tensor().slice(0, 0, exchange_room_bytes(*op));
    const std::int64_t wire = exchange_room_bytes(*op) / 2;
    print(world, what + ", padded", wire, wanted, seconds(world, rig.stream(), [&] { launch(rig.stream(), padded); }));
    all_to_all(wire);
  }
  if (sharing != nullptr) sharing->unshare_memory();
}

}  // namespace

int main(int argc, char** argv) {
  MpiRuntime mpi(argc, argv);
  if (!test::select_rank_device(mpi, DeviceType::kCuda)) return test::kSkipped;
  try {
    const std::unique_ptr<Communicator> world = mpi.world(DeviceType::kCuda);
    const bool mixtral = argc > 1 && std::string_view(argv[1]) == "mixtral";
    if (world->size() > 1) measure(*world, mixtral ? Case{.experts = 8, .choices = 2} : Case{});
    world->host_barrier();
  } catch (const Error& error) {
    std::fprintf(stderr, "rank %d: %s\n", mpi.rank(), error.what());
    mpi.abort(error.code());
  }
  return 0;
}
