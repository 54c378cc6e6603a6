// Units carried out by hand on thread ranks: what is whole when, and calls out of order.
#include "fsdp/sharded_units.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <optional>

#include "core/base/error.h"
#include "core/tensor/bf16.h"
#include "tests/support/error_of.h"
#include "tests/thread_ranks/thread_communicator.h"

namespace megalith {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int kRanks = 2;
constexpr std::int64_t kElements = 128 * kRanks;  // of a unit

// A rank with four units of one parameter, of which the first is resident; units 1 and 3 have the same slots.
struct Rank {
  Rank(Communicator& world, bool poison, std::optional<DType> gradient_dtype)
      : reduce_group(world.duplicate("reduce")), gather_group(world) {
    for (int u = 0; u < 4; ++u) {
      parameters.begin_unit("unit " + std::to_string(u));
      parameters.add({.parts = {{.name = "weight " + std::to_string(u)}}, .shape = {kElements / 2, 2}});
      ParameterUnit& unit = parameters.units().back();
      unit.shard = {.rank = world.rank(), .ranks = kRanks};
      unit.resident_weights = unit.resident_gradients = u == 0;
    }
    parameters.allocate(pool, DType::kFp32);
    // A rank's elements tell unit and rank.
    for (int u = 1; u < 4; ++u) fill(unit(u).weight_shard, static_cast<float>(10 * u + world.rank()));
    UnitSlots slots = assign_slots(parameters.units(), {});
    slots.gradient_dtype = gradient_dtype;
    units = std::make_unique<ShardedUnits>(
        parameters, slots, std::vector<UnitGroups>{{.gather = gather_group, .reduce = *reduce_group}},
        UnitStreams{.compute = compute, .gather = gather, .reduce = reduce}, pool, 0, poison);
  }
  ~Rank() { synchronize(); }

  ParameterUnit& unit(int u) { return parameters.units()[static_cast<std::size_t>(u)]; }
  void synchronize() {
    for (Stream* stream : {&compute, &gather, &reduce, &compute}) stream->synchronize();
  }
  static void fill(const Tensor& t, float value) { std::fill_n(t.as<float>(), t.numel(), value); }
  static float at(const Tensor& t, std::int64_t i) { return t.as<float>()[i]; }

  std::unique_ptr<Communicator> reduce_group;
  Communicator& gather_group;
  MemoryPool pool{DeviceType::kCpu};
  ParameterStore parameters;
  Stream compute{DeviceType::kCpu, "compute"}, gather{DeviceType::kCpu, "gather"}, reduce{DeviceType::kCpu, "reduce"};
  std::unique_ptr<ShardedUnits> units;
};

void on_ranks(bool poison, const std::function<void(Rank&, int)>& body, std::optional<DType> gradient_dtype = {}) {
  ThreadWorld world(kRanks, std::chrono::seconds(30));
  world.run([&](Communicator& group) {
    Rank rank(group, poison, gradient_dtype);
    const AbortOnUnwind abort(group);
    body(rank, group.rank());
  });
}

TEST(ShardedUnits, AUnitIsWholeFromItsWaitToItsReshard) {
  on_ranks(false, [](Rank& rank, int) {
    ParameterUnit& unit = rank.unit(1);
    EXPECT_FALSE(unit.weights.present());
    EXPECT_FALSE(unit.parameters[0]->weight.present());
    EXPECT_TRUE(rank.unit(0).weights.present());
    rank.units->unshard(1);
    EXPECT_FALSE(unit.parameters[0]->weight.present());  // under way
    rank.units->wait_unshard(1);
    rank.units->wait_unshard(1);  // harmless
    rank.synchronize();
    ASSERT_EQ(unit.parameters[0]->weight.numel(), kElements);
    EXPECT_EQ(Rank::at(unit.weights, 0), 10);
    EXPECT_EQ(Rank::at(unit.weights, kElements - 1), 11);
    const void* const slot = unit.weights.data;
    rank.units->reshard(1);
    EXPECT_FALSE(unit.weights.present());
    EXPECT_FALSE(unit.parameters[0]->weight.present());
    // A unit of the same slot, at the same place.
    rank.units->unshard(3);
    rank.units->wait_unshard(3);
    EXPECT_EQ(rank.unit(3).weights.data, slot);
    rank.synchronize();
    EXPECT_EQ(Rank::at(rank.unit(3).weights, 0), 30);
    EXPECT_EQ(rank.units->gathers(), 2);
  });
}

TEST(ShardedUnits, AStaleSlotIsNaN) {
  for (const bool poison : {false, true}) {
    on_ranks(poison, [poison](Rank& rank, int) {
      rank.units->unshard(1);
      rank.units->wait_unshard(1);
      const Tensor stale = rank.unit(1).weights;
      rank.units->reshard(1);
      rank.synchronize();
      EXPECT_EQ(std::isnan(Rank::at(stale, kElements - 1)), poison);
    });
  }
}

TEST(ShardedUnits, GathersSeeTheUpdateBeforeThem) {
  on_ranks(false, [](Rank& rank, int) {
    for (const int value : {5, 6}) {
      rank.compute.cpu()->enqueue([&rank, value] { Rank::fill(rank.unit(2).weight_shard, static_cast<float>(value)); });
      rank.units->updated();
      rank.units->unshard(2);
      rank.units->wait_unshard(2);
      rank.synchronize();
      EXPECT_EQ(Rank::at(rank.unit(2).weights, 0), value);
      rank.units->reshard(2);
    }
  });
}

// The first sum of a step takes the place of the last step's.
TEST(ShardedUnits, GradientsOfEachMicrobatchAreAddedToTheShard) {
  on_ranks(false, [](Rank& rank, int index) {
    for (int step = 0; step < 2; ++step) {
      rank.units->begin_sums();
      for (const int microbatch : {1, 2}) {
        rank.units->bind_gradients(1);
        const Tensor gradients = rank.unit(1).parameters[0]->main_grad;
        ASSERT_TRUE(gradients.present());
        rank.compute.cpu()->enqueue([gradients, microbatch, index] {
          EXPECT_EQ(Rank::at(gradients, 0), 0);
          Rank::fill(gradients, static_cast<float>(microbatch * (index + 1)));
        });
        rank.units->reduce_shard(1);
        EXPECT_FALSE(rank.unit(1).parameters[0]->main_grad.present());
      }
      rank.units->finish_sums();
      rank.synchronize();
      EXPECT_EQ(rank.unit(1).grad_shard.numel(), kElements / kRanks);
      EXPECT_EQ(Rank::at(rank.unit(1).grad_shard, 3), (1 + 2) * (1 + 2));
    }
    EXPECT_EQ(rank.units->reductions(), 4);
  });
}

// bf16 has no 514: a shard of it would not see the second microbatch.
TEST(ShardedUnits, NarrowGradientsAreAddedInTheDTypeOfTheShard) {
  const auto body = [](Rank& rank, int) {
    for (int step = 0; step < 2; ++step) {
      rank.units->begin_sums();
      for (const float value : {256.F, 1.F}) {
        rank.units->bind_gradients(1);
        const Tensor gradients = rank.unit(1).parameters[0]->main_grad;
        ASSERT_EQ(gradients.dtype, DType::kBf16);
        rank.compute.cpu()->enqueue(
            [gradients, value] { std::fill_n(gradients.as<bf16>(), gradients.numel(), to_bf16(value)); });
        rank.units->reduce_shard(1);
      }
      rank.units->finish_sums();
      rank.synchronize();
      ASSERT_EQ(rank.unit(1).grad_shard.dtype, DType::kFp32);
      EXPECT_EQ(Rank::at(rank.unit(1).grad_shard, 3), kRanks * (256 + 1));
    }
  };
  on_ranks(false, body, DType::kBf16);
}

TEST(ShardedUnits, AListStartsWhatItFindsMissing) {
  on_ranks(false, [](Rank& rank, int) {
    const std::vector<int> ahead{1, 2};
    rank.units->begin(ahead);
    rank.units->begin(ahead);
    EXPECT_EQ(rank.units->gathers(), 2);
    rank.units->wait_unshard(1);
    rank.units->wait_unshard(2);
    rank.synchronize();
    rank.units->reset();  // the list broke off
    EXPECT_FALSE(rank.unit(1).weights.present());
    rank.units->begin(ahead);
    EXPECT_EQ(rank.units->gathers(), 4);
  });
}

TEST(ShardedUnits, CallsOutOfOrderAreErrors) {
  on_ranks(false, [](Rank& rank, int) {
    ShardedUnits& units = *rank.units;
    const auto refused = [](const auto& call) { return error_of(ExitCode::kInternal, call); };
    EXPECT_THAT(refused([&] { units.wait_unshard(1); }),
                AllOf(HasSubstr("wait_unshard of unit unit 1"), HasSubstr("its unshard before")));
    EXPECT_THAT(refused([&] { units.reshard(1); }), HasSubstr("a unit that is whole"));
    units.unshard(1);
    EXPECT_THAT(refused([&] { units.unshard(1); }), HasSubstr("a slot that no unit is in"));
    EXPECT_THAT(refused([&] { units.unshard(3); }), HasSubstr("unshard of unit unit 3"));
    EXPECT_THAT(refused([&] { units.reshard(1); }), HasSubstr("a unit that is whole"));
    EXPECT_THAT(refused([&] { units.unshard(0); }), HasSubstr("resident"));
    units.wait_unshard(1);
    units.reshard(1);
    EXPECT_THAT(refused([&] { units.wait_unshard(1); }), HasSubstr("its unshard before"));
    EXPECT_THAT(refused([&] { units.reduce_shard(1); }), HasSubstr("its gradients bound"));
    units.bind_gradients(1);
    EXPECT_THAT(refused([&] { units.bind_gradients(3); }), HasSubstr("a slot that no unit is in"));
    EXPECT_THAT(refused([&] { units.reduce_shard(3); }), HasSubstr("its gradients bound"));
    EXPECT_THAT(refused([&] { units.bind_gradients(0); }), HasSubstr("resident"));
    EXPECT_EQ(units.gathers(), 1);
    EXPECT_EQ(units.reductions(), 0);
  });
}

}  // namespace
}  // namespace megalith
