// Tests of ranks that pull each other's rows, here two on one GPU with a stream each. Only their meetings order the
// writes of one rank and the reads of the other.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "core/device/copy.h"
#include "core/device/cuda_device.h"
#include "core/device/cuda_memory.h"
#include "core/device/graph.h"
#include "core/device/stream.h"
#include "parallel/comm/nccl/nccl_pull.h"
#include "parallel/comm/plan_communicator.h"
#include "tests/support/device_tasks.h"

namespace megalith {
namespace {

constexpr int kRanks = 2, kContents = 3;
constexpr std::int64_t kRows = 150;  // to each rank

struct Rank {
  explicit Rank(int number) : group("dispatch", {.rank = number, .size = kRanks}), stream(DeviceType::kCuda, "rank") {}

  PlanCommunicator group;
  Stream stream;
  PullMeeting meeting;
  ExchangeRows op{.group = group, .pair_room = kRows};
  std::byte* base = nullptr;
  std::byte* arrived = nullptr;  // pinned
  Graph graphs[kContents] = {Graph("0"), Graph("1"), Graph("2")};
};

class Meeting : public testing::TestWithParam<std::int64_t> {
 protected:
  void SetUp() override {
    if (const std::string why = cuda_unavailable(); !why.empty()) GTEST_SKIP() << why;
    test::load_kernels();
    in_bulk_ = load_pull_kernels();
    const std::int64_t width = GetParam(), bytes = 2 * ((kRanks * kRows * width + 15) / 16 * 16);  // in and out
    device_.reset(
        cuda_allocate(static_cast<std::size_t>(kRanks * bytes) + kRanks * sizeof(PullMeeting::State) + sizeof(kSends)));
    host_.reset(cuda_allocate_host(static_cast<std::size_t>(kRanks * kRanks * kRows * width) + sizeof(Words)));
    auto* const memory = static_cast<std::byte*>(device_.get());
    auto* const words = static_cast<PullMeeting::Words*>(host_.get());
    auto* const arrived = static_cast<std::byte*>(host_.get()) + sizeof(Words);
    std::memset(words, 0, sizeof(Words));
    auto* const states = reinterpret_cast<PullMeeting::State*>(memory + kRanks * bytes);
    auto* const sends = reinterpret_cast<std::int32_t*>(states + kRanks);
    for (int r = 0; r < kRanks; ++r) {
      Rank& rank = *ranks_.emplace_back(std::make_unique<Rank>(r));
      rank.base = memory + r * bytes;
      rank.arrived = arrived + r * kRanks * kRows * width;
      rank.op.sends = Tensor(sends, DType::kInt32, {kRanks, kRanks + 1});
      const Tensor in(rank.base, DType::kUint8, {kRanks * kRows, width});
      rank.op.rows = {{.in = in, .out = Tensor(rank.base + bytes / 2, DType::kUint8, in.shape)}};
      rank.meeting.state = states + r;
      for (int peer = 0; peer < kRanks; ++peer) {
        rank.meeting.here[peer] = &words[r * kRanks + peer];
        rank.meeting.there[peer] = &words[peer * kRanks + r];
      }
      bases_.push_back(rank.base);
    }
    Stream& stream = ranks_.front()->stream;
    const std::vector<PullMeeting::State> none(kRanks);
    copy_from_host(stream, states, none.data(), sizeof(PullMeeting::State) * kRanks);
    copy_from_host(stream, sends, kSends, sizeof(kSends));
    stream.synchronize();
  }

  static std::byte byte_of(int rank, int content) { return static_cast<std::byte>(1 + rank * kContents + content); }

  void pull(Rank& rank) { pull_rows(*rank.stream.cuda(), rank.op, bases_, rank.meeting, in_bulk_); }
  // Writes the rank's rows, pulls, and counts the bytes that are not those of this round.
  void run_round(Rank& rank, int content) {
    CudaStream& cuda = *rank.stream.cuda();
    const ExchangeRows::Rows& rows = rank.op.rows.front();
    cuda.fill(rows.in.data, static_cast<std::uint8_t>(byte_of(rank.group.rank(), content)), rows.in.bytes());
    pull(rank);
    cuda.copy(rank.arrived, rows.out.data, rows.out.bytes());
    test::enqueue_on_host(cuda, [this, &rank, content] {
      const auto part = static_cast<std::ptrdiff_t>(rank.op.rows.front().out.bytes() / kRanks);
      for (int from = 0; from < kRanks; ++from) {
        const std::byte* const begin = rank.arrived + from * part;
        wrong_ += part - std::count(begin, begin + part, byte_of(from, content));
      }
    });
  }

  struct Words {
    PullMeeting::Words of[kRanks][kRanks];
  };
  static constexpr std::int32_t kSends[kRanks * (kRanks + 1)] = {0, kRows, 2 * kRows, 0, kRows, 2 * kRows};
  std::unique_ptr<void, void (*)(void*)> device_{nullptr, cuda_free}, host_{nullptr, cuda_free_host};
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<const std::byte*> bases_;
  bool in_bulk_ = false;
  std::atomic<std::int64_t> wrong_ = 0;
};

// Rows for bulk copies, and for registers.
INSTANTIATE_TEST_SUITE_P(Rows, Meeting, testing::Values(4096, 1028));

TEST_P(Meeting, EagerAndReplayedRoundsOfRanksThatAreLateInTurns) {
  for (const auto& rank : ranks_) {
    for (int content = 0; content < kContents; ++content) {
      Graph& graph = rank->graphs[content];
      graph.begin_capture(rank->stream);
      rank->stream.announce(Access("round"));
      run_round(*rank, content);
      graph.end_capture();
    }
  }
  for (int round = 0; round < 120; ++round) {
    const int content = round % kContents;
    for (int turn = 0; turn < kRanks; ++turn) {
      Rank& rank = *ranks_[static_cast<std::size_t>((round / 5 + turn) % kRanks)];
      if ((round + turn) % 2 == 0) {
        run_round(rank, content);
      } else {
        rank.graphs[content].replay(rank.stream);
      }
      if (round % 7 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
  for (const auto& rank : ranks_) rank->stream.synchronize();
  EXPECT_EQ(wrong_, 0);
}

TEST_P(Meeting, AReleasedRankEndsItsRoundsAndReportsNone) {
  Rank &here = *ranks_[0], &absent = *ranks_[1];
  std::atomic<bool> has_ended = false;
  for (int round = 0; round < 5; ++round) pull(here);
  test::enqueue_on_host(*here.stream.cuda(), [&] { has_ended = true; });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(has_ended) << "it waits for no one";
  PullMeeting::Words& reported = *here.meeting.here[absent.group.rank()];
  for (std::uint64_t* const word : {&reported.offered, &reported.taken})
    std::atomic_ref(*word).store(PullMeeting::kReleased);
  here.stream.synchronize();
  EXPECT_EQ(here.meeting.there[absent.group.rank()]->offered, 1u);
  EXPECT_EQ(here.meeting.there[absent.group.rank()]->taken, 0u);
}

}  // namespace
}  // namespace megalith
