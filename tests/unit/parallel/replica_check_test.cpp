// Replicas of a group of thread ranks: equal ones agree, and every flipped bit is found on its rank and in its tensor.
#include <gtest/gtest.h>

#include <cstring>
#include <mutex>
#include <random>

#include "parallel/data_parallel/replica_check.h"
#include "tests/support/matchers.h"
#include "tests/thread_ranks/thread_communicator.h"

namespace megalith {
namespace {

// Tensors of several sizes and dtypes in a rank's own memory.
class Replica {
 public:
  Replica() {
    add("weight of a", DType::kBf16, 33);
    add("main parameter of a", DType::kFp32, 33);
    add("exp_avg of a", DType::kFp32, 1);
    add("empty", DType::kFp32, 0);
    add("exp_avg_sq of a", DType::kFp32, 4096);
  }

  std::vector<ReplicatedTensor> tensors() const {
    std::vector<ReplicatedTensor> list;
    for (const Entry& e : entries_)
      list.push_back({e.name, Tensor(const_cast<std::byte*>(e.bytes.data()), e.dtype, {e.numel})});
    return list;
  }
  std::size_t count() const { return entries_.size(); }
  std::size_t bits(std::size_t tensor) const { return 8 * entries_[tensor].bytes.size(); }
  const std::string& name(std::size_t tensor) const { return entries_[tensor].name; }
  void flip(std::size_t tensor, std::size_t bit) {
    entries_[tensor].bytes[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
  }

 private:
  struct Entry {
    std::string name;
    DType dtype;
    std::int64_t numel;
    std::vector<std::byte> bytes;
  };

  void add(const std::string& name, DType dtype, std::int64_t numel) {
    Entry entry{name, dtype, numel, std::vector<std::byte>(static_cast<std::size_t>(numel) * size_of(dtype))};
    for (std::size_t i = 0; i < entry.bytes.size(); ++i) entry.bytes[i] = static_cast<std::byte>(i * 37 + name.size());
    entries_.push_back(std::move(entry));
  }

  std::vector<Entry> entries_;
};

struct Flip {
  int rank = 0;
  std::size_t tensor = 0;
  std::size_t bit = 0;
};

std::vector<Flip> random_flips(int count, int ranks) {
  std::mt19937_64 random(20);
  const Replica replica;
  std::vector<Flip> flips;
  while (flips.size() < static_cast<std::size_t>(count)) {
    Flip flip{.rank = static_cast<int>(random() % static_cast<unsigned>(ranks)), .tensor = random() % replica.count()};
    if (replica.bits(flip.tensor) == 0) continue;
    flip.bit = random() % replica.bits(flip.tensor);
    flips.push_back(flip);
  }
  return flips;
}

TEST(ReplicaCheck, FindsEachOfAThousandFlippedBits) {
  constexpr int kRanks = 4;
  const std::vector<Flip> flips = random_flips(1000, kRanks);
  std::mutex mutex;
  int found = 0;
  int agreed = 0;
  ThreadWorld world(kRanks);
  world.run([&](Communicator& group) {
    Stream stream(DeviceType::kCpu, "compute");
    const AbortOnUnwind guard(group);
    Replica replica;
    for (const Flip& flip : flips) {
      const bool mine = flip.rank == group.rank();
      if (mine) replica.flip(flip.tensor, flip.bit);
      const auto difference = compare_replicas(group, stream, replica.tensors());
      if (mine) replica.flip(flip.tensor, flip.bit);
      const bool clean = !compare_replicas(group, stream, replica.tensors());
      const std::lock_guard lock(mutex);
      agreed += clean ? 1 : 0;
      found += difference && difference->majority && difference->ranks == std::vector<int>{flip.rank} &&
                       difference->tensor == replica.name(flip.tensor) && difference->more_tensors == 0
                   ? 1
                   : 0;
    }
  });
  EXPECT_EQ(found, 1000 * kRanks);  // every rank reports it
  EXPECT_EQ(agreed, 1000 * kRanks);
}

ReplicaDifference difference_of(int ranks, const std::vector<Flip>& flips) {
  ReplicaDifference result;
  ThreadWorld world(ranks);
  world.run([&](Communicator& group) {
    Stream stream(DeviceType::kCpu, "compute");
    const AbortOnUnwind guard(group);
    Replica replica;
    for (const Flip& flip : flips) {
      if (flip.rank == group.rank()) replica.flip(flip.tensor, flip.bit);
    }
    const auto difference = compare_replicas(group, stream, replica.tensors());
    if (group.rank() == 0 && difference) result = *difference;
  });
  return result;
}

TEST(ReplicaCheck, TwoRanksHaveNoMajority) {
  const ReplicaDifference difference = difference_of(2, {{.rank = 1, .tensor = 0, .bit = 3}});
  EXPECT_FALSE(difference.majority);
  EXPECT_THAT(difference.ranks, ElementsAre(0, 1));
  EXPECT_THAT(difference.message,
              HasSubstr("weight of a: expected the same bytes on the 2 ranks of group world, got no majority: hash "));
}

TEST(ReplicaCheck, NamesEveryRankAndCountsTheTensors) {
  const ReplicaDifference difference = difference_of(
      5, {{.rank = 1, .tensor = 1, .bit = 0}, {.rank = 4, .tensor = 1, .bit = 9}, {.rank = 4, .tensor = 4, .bit = 9}});
  EXPECT_TRUE(difference.majority);
  EXPECT_EQ(difference.tensor, "main parameter of a");
  EXPECT_THAT(difference.ranks, ElementsAre(1, 4));
  EXPECT_THAT(difference.message, HasSubstr("; 1 more tensor differs; test that rank's memory"));
}

TEST(ReplicaCheck, OneRankHasNothingToCompare) { EXPECT_EQ(difference_of(1, {{.rank = 0}}).message, ""); }

}  // namespace
}  // namespace megalith
