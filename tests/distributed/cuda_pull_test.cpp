// The kernels of ExchangeRows on one GPU, whose memory holds that of all ranks: against the CPU's copies, byte by byte
// and beyond the tensors.
#include "parallel/comm/nccl/nccl_pull.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "core/device/copy.h"
#include "core/device/cuda_device.h"
#include "core/device/cuda_memory.h"
#include "core/device/stream.h"
#include "parallel/comm/exchanged_rows.h"
#include "parallel/comm/plan_communicator.h"

namespace megalith {
namespace {

struct Columns {
  DType dtype;
  std::int64_t width;
};
using Kinds = std::vector<Columns>;
using Bytes = std::vector<std::byte>;

constexpr std::int64_t kTokens = 300;

// Memory of the ranks, contiguous in rank order.
struct Ranks {
  Kinds kinds;
  std::int64_t arrived = 0;
  std::vector<std::unique_ptr<PlanCommunicator>> groups;

  Ranks(int size, Kinds of, std::int64_t room) : kinds(std::move(of)), arrived(room) {
    for (int r = 0; r < size; ++r)
      groups.push_back(
          std::make_unique<PlanCommunicator>("dispatch", PlanCommunicator::Place{.rank = r, .size = size}));
    bytes = make(nullptr, 0, false).second;
  }
  int size() const { return static_cast<int>(groups.size()); }
  std::byte* base(std::byte* all, int rank) const { return all + static_cast<std::size_t>(rank) * bytes; }
  PaddedExchangeRows op(std::byte* all, int rank, bool back) const { return make(base(all, rank), rank, back).first; }

  std::pair<PaddedExchangeRows, std::size_t> make(std::byte* memory, int rank, bool back) const {
    std::size_t used = 0;
    const auto cut = [&](DType dtype, const Shape& shape) {
      const Tensor x(memory + used, dtype, shape);
      used += (x.bytes() + 16 + 15) / 16 * 16;  // with bytes between them that nothing may touch
      return x;
    };
    const std::int64_t listed = size() * kTokens;
    const Tensor sends = cut(DType::kInt32, {size(), size() + 1}), index = cut(DType::kInt32, {listed});
    ExchangeRows op{.group = *groups[static_cast<std::size_t>(rank)],
                    .index = back ? Tensor() : index,
                    .sends = sends,
                    .pair_room = kTokens,
                    .back = back};
    for (const auto& [dtype, width] : kinds) {
      const Tensor in = cut(dtype, {kTokens, width}), out = cut(dtype, {arrived, width});
      const Tensor home = cut(dtype, {listed, width});
      op.rows.push_back(back ? ExchangeRows::Rows{.in = out, .out = home} : ExchangeRows::Rows{.in = in, .out = out});
    }
    const Tensor room = cut(DType::kUint8, {exchange_room_bytes(op)});
    return {PaddedExchangeRows{op, room}, used};
  }

  std::size_t bytes = 0;  // per rank
};

// Initial memory without the padded buffers, which the CPU does not use.
Bytes start_of(const Ranks& ranks, const std::vector<std::int32_t>& sends) {
  Bytes all(static_cast<std::size_t>(ranks.size()) * ranks.bytes);
  std::uint64_t state = 1;
  for (std::byte& byte : all) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    byte = static_cast<std::byte>(state >> 56);
  }
  for (int r = 0; r < ranks.size(); ++r) {
    const ExchangeRows op = ranks.op(all.data(), r, false);
    std::memcpy(op.sends.data, sends.data(), op.sends.bytes());
    for (std::int64_t j = 0; j < op.index.numel(); ++j)
      op.index.as<std::int32_t>()[j] = static_cast<std::int32_t>((j * 7 + r) % kTokens);
  }
  return all;
}

std::vector<std::int32_t> sends_of(int size) {
  std::vector<std::int32_t> sends;
  for (int from = 0; from < size; ++from) {
    std::int32_t begin = 0;
    for (int to = 0; to <= size; ++to) {
      sends.push_back(begin);
      if (from != 1) begin += (from * 101 + to * 53) % (static_cast<int>(kTokens) + 1);
    }
  }
  return sends;
}

class Pull : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = cuda_unavailable(); !why.empty()) GTEST_SKIP() << why;
  }

  // Sends and returns rows. `padded`: through the padded buffers, whose parts are forwarded by copies.
  void check(const Ranks& ranks, const std::vector<std::int32_t>& sends, bool padded) {
    Bytes want = start_of(ranks, sends);
    Stream stream(DeviceType::kCuda, "pull");
    CudaStream& cuda = *stream.cuda();
    const std::unique_ptr<void, void (*)(void*)> device(cuda_allocate(want.size()), cuda_free);
    auto* const all = static_cast<std::byte*>(device.get());
    copy_from_host(stream, all, want.data(), want.size());
    std::vector<const std::byte*> bases;
    for (int r = 0; r < ranks.size(); ++r) bases.push_back(ranks.base(all, r));
    const bool in_bulk = load_pull_kernels();
    for (const bool back : {false, true}) {
      for (int r = 0; r < ranks.size(); ++r) {
        const PaddedExchangeRows op = ranks.op(all, r, back);
        padded ? pack_rows(cuda, op) : pull_rows(cuda, op, bases, {}, in_bulk);
      }
      for (int r = 0; r < ranks.size() && padded; ++r) {
        const PaddedExchangeRows op = ranks.op(all, r, back);
        const ExchangeParts parts(op);
        for (int from = 0; from < ranks.size(); ++from) {
          if (from == r) continue;
          cuda.copy(parts.received(op, from), parts.sent(ranks.op(all, from, back), r),
                    static_cast<std::size_t>(parts.bytes));
        }
        unpack_rows(cuda, op);
      }
      for (int to = 0; to < ranks.size(); ++to) {
        for (int from = 0; from < ranks.size(); ++from)
          copy_rows(ranks.op(want.data(), from, back), from, ranks.op(want.data(), to, back));
      }
    }
    Bytes got(want.size());
    copy_to_host(stream, got.data(), all, got.size());
    stream.synchronize();
    for (int r = 0; r < ranks.size(); ++r) {
      const PaddedExchangeRows op = ranks.op(got.data(), r, false);
      const auto room = static_cast<std::size_t>(op.room.as<std::byte>() - ranks.base(got.data(), r));
      for (std::size_t i = 0; i < ranks.bytes; ++i) {
        if (padded && i >= room && i < room + op.room.bytes()) continue;
        const std::size_t at = static_cast<std::size_t>(r) * ranks.bytes + i;
        ASSERT_EQ(got[at], want[at]) << "byte " << i << " of rank " << r << " of " << ranks.size();
      }
    }
  }

  void check_all(bool padded) {
    for (const Kinds& kinds :
         {Kinds{{DType::kBf16, 2056}, {DType::kInt32, 4}, {DType::kFp32, 8}},  // bulk copies, in two parts a row
          Kinds{{DType::kBf16, 2056}, {DType::kInt32, 2}, {DType::kFp32, 12}},
          Kinds{{DType::kBf16, 2056}, {DType::kInt32, 6}, {DType::kFp32, 9}},  // register copies
          Kinds{{DType::kUint8, 7}, {DType::kBf16, 1029}, {DType::kFp32, 37}}, Kinds{{DType::kInt32, 16}}}) {
      for (const int size : {1, 2, 5}) {
        for (const std::int64_t room : {size * kTokens, kTokens / 3})
          check(Ranks(size, kinds, room), sends_of(size), padded);
      }
    }
    // Counts that cannot be.
    for (const Kinds& kinds :
         {Kinds{{DType::kBf16, 8}, {DType::kInt32, 2}}, Kinds{{DType::kBf16, 128}, {DType::kInt32, 4}}}) {
      for (const std::vector<std::int32_t>& sends : std::vector<std::vector<std::int32_t>>{
               {0, 100, 2'000'000'000, -5, 9, 3}, {0, 3, 1, 250, -7, 900}, {590, 700, 599, 599, 800, 2'147'483'647}}) {
        check(Ranks(2, kinds, kTokens), sends, padded);
      }
    }
  }
};

TEST_F(Pull, CudaRowsOfMemoryThatIsShared) { check_all(false); }
TEST_F(Pull, CudaRowsThroughParts) { check_all(true); }

}  // namespace
}  // namespace megalith
