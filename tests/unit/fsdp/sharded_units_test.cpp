// Tests of ShardedUnits by direct calls on thread ranks: when units are gathered, and calls out of order.
#include "fsdp/sharded_units.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <functional>
#include <optional>

#include "core/base/error.h"
#include "core/instruments/hazard_checker.h"
#include "core/ops/elementwise/elementwise.h"
#include "core/ops/op.h"
#include "core/tensor/bf16.h"
#include "tests/support/error_of.h"
#include "tests/support/matchers.h"
#include "tests/thread_ranks/thread_communicator.h"

namespace megalith {
namespace {

constexpr int kRanks = 2;
constexpr std::int64_t kElements = 128 * kRanks;  // per unit

struct RankCase {
  bool poison = false;
  std::optional<DType> gradient_dtype = {};
  int instances = 1;  // each of kRanks ranks; if several, each updates a part of its shards
  std::int64_t suppressed_wait = -1;
};

// A rank with four units of one parameter. Unit 0 is resident; units 1 and 3 share slots. The writer of unit 2's
// gradients overwrites them.
struct Rank {
  Rank(Communicator& world, const RankCase& test)
      : gather_group(world.split(world.rank() / kRanks, world.rank(), "gather")),
        reduce_group(gather_group->duplicate("reduce")),
        instances(world.split(world.rank() % kRanks, world.rank(), "instances")),
        waits{.suppressed = test.suppressed_wait} {
    const int index = gather_group->rank();
    for (int u = 0; u < 4; ++u) {
      parameters.begin_unit("unit " + std::to_string(u));
      parameters.add(
          {.parts = {{.name = "weight " + std::to_string(u)}}, .shape = {kElements / 2, 2}, .one_write = u == 2});
      ParameterUnit& unit = parameters.units().back();
      unit.shard = {.rank = index, .ranks = kRanks};
      if (test.instances > 1)
        unit.owned = {.rank = index * test.instances + instances->rank(), .ranks = kRanks * test.instances};
      unit.resident_weights = unit.resident_gradients = u == 0;
    }
    parameters.allocate(pool, DType::kFp32);
    // The values identify unit and rank.
    for (int u = 1; u < 4; ++u) fill(unit(u).weight_shard, static_cast<float>(10 * u + index));
    UnitSlots slots = assign_slots(parameters.units(), {});
    slots.gradient_dtype = test.gradient_dtype;
    units = std::make_unique<ShardedUnits>(
        parameters, slots,
        std::vector<UnitGroups>{{.gather = *gather_group, .reduce = *reduce_group, .instances = instances.get()}},
        UnitStreams{.compute = compute, .gather = gather, .reduce = reduce}, pool, 0, test.poison);
  }
  ~Rank() {
    try {
      synchronize();
    } catch (const Error&) {  // an earlier error already ended the world
    }
  }

  ParameterUnit& unit(int u) { return parameters.units()[static_cast<std::size_t>(u)]; }
  void synchronize() {
    for (Stream* stream : {&compute, &gather, &reduce, &compute}) stream->synchronize();
  }
  static void fill(const Tensor& t, float value) { std::fill_n(t.as<float>(), t.numel(), value); }
  static float at(const Tensor& t, std::int64_t i) { return t.as<float>()[i]; }

  std::unique_ptr<Communicator> gather_group, reduce_group, instances;
  HazardChecker hazards;
  WaitCounter waits;
  MemoryPool pool{DeviceType::kCpu};
  ParameterStore parameters;
  Stream compute{DeviceType::kCpu, "compute", {.hazards = &hazards, .waits = &waits}},
      gather{DeviceType::kCpu, "gather", {.hazards = &hazards, .waits = &waits}},
      reduce{DeviceType::kCpu, "reduce", {.hazards = &hazards, .waits = &waits}};
  std::unique_ptr<ShardedUnits> units;
};

void on_ranks(const RankCase& test, const std::function<void(Rank&, int)>& body) {
  ThreadWorld world(kRanks * test.instances, std::chrono::seconds(30));
  world.run([&](Communicator& group) {
    Rank rank(group, test);
    const AbortOnUnwind abort(group);
    body(rank, group.rank());
  });
}

TEST(ShardedUnits, AUnitIsWholeFromItsWaitToItsReshard) {
  on_ranks({}, [](Rank& rank, int) {
    ParameterUnit& unit = rank.unit(1);
    EXPECT_FALSE(unit.weights.present());
    EXPECT_FALSE(unit.parameters[0]->weight.present());
    EXPECT_TRUE(rank.unit(0).weights.present());
    rank.units->unshard(1);
    EXPECT_FALSE(unit.parameters[0]->weight.present());  // gather in flight
    rank.units->wait_unshard(1);
    rank.units->wait_unshard(1);  // no effect
    rank.synchronize();
    ASSERT_EQ(unit.parameters[0]->weight.numel(), kElements);
    EXPECT_EQ(Rank::at(unit.weights, 0), 10);
    EXPECT_EQ(Rank::at(unit.weights, kElements - 1), 11);
    const void* const slot = unit.weights.data;
    rank.units->reshard(1);
    EXPECT_FALSE(unit.weights.present());
    EXPECT_FALSE(unit.parameters[0]->weight.present());
    // Unit 3 has the same slot, so the same address.
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
    on_ranks({.poison = poison}, [poison](Rank& rank, int) {
      rank.units->unshard(1);
      rank.units->wait_unshard(1);
      const Tensor stale = rank.unit(1).weights;
      rank.units->reshard(1);
      rank.synchronize();
      EXPECT_EQ(std::isnan(Rank::at(stale, kElements - 1)), poison);
      // Without poison, overwritten gradients keep the slot's old contents.
      rank.units->bind_gradients(2);
      const Tensor unwritten = rank.unit(2).main_grads;
      rank.synchronize();
      Rank::fill(unwritten, 1);
      rank.units->reduce_shard(2);
      rank.units->bind_gradients(2);
      rank.synchronize();
      EXPECT_EQ(std::isnan(Rank::at(unwritten, 0)), poison);
      EXPECT_EQ(std::isnan(Rank::at(unwritten, kElements - 1)), poison);
    });
  }
}

TEST(ShardedUnits, GathersSeeTheUpdateBeforeThem) {
  on_ranks({}, [](Rank& rank, int) {
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

// The first sum of a step replaces the previous step's sum.
TEST(ShardedUnits, GradientsOfEachMicrobatchAreAddedToTheShard) {
  on_ranks({}, [](Rank& rank, int index) {
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

// bf16 cannot represent 514: a bf16 shard would lose the second microbatch.
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
  on_ranks({.gradient_dtype = DType::kBf16}, body);
}

TEST(ShardedUnits, AListStartsWhatItFindsMissing) {
  on_ranks({}, [](Rank& rank, int) {
    const std::vector<int> ahead{1, 2};
    rank.units->begin(ahead);
    rank.units->begin(ahead);
    EXPECT_EQ(rank.units->gathers(), 2);
    rank.units->wait_unshard(1);
    rank.units->wait_unshard(2);
    rank.synchronize();
    rank.units->reset();  // the list was aborted
    EXPECT_FALSE(rank.unit(1).weights.present());
    rank.units->begin(ahead);
    EXPECT_EQ(rank.units->gathers(), 4);
  });
}

TEST(ShardedUnits, SlotsAreFreeAfterAListThatBrokeOff) {
  on_ranks({}, [](Rank& rank, int) {
    rank.units->unshard(1);
    rank.units->wait_unshard(1);
    rank.units->bind_gradients(1);
    rank.synchronize();
    rank.units->reset();
    EXPECT_FALSE(rank.unit(1).parameters[0]->main_grad.present());
    rank.units->unshard(3);
    rank.units->wait_unshard(3);
    rank.units->bind_gradients(3);
    rank.synchronize();
    EXPECT_EQ(Rank::at(rank.unit(3).weights, 0), 30);
    EXPECT_TRUE(rank.unit(3).parameters[0]->main_grad.present());
  });
}

constexpr int kSteps = 2;

// Runs steps on two units of one slot, whose shards two instances hold. Then reads the shards, as a checkpoint does.
void run_steps(Rank& rank, const Tensor& read) {
  for (int step = 0; step < kSteps; ++step) {
    rank.units->begin_sums();
    for (const int unit : {1, 3}) {
      rank.units->unshard(unit);
      rank.units->wait_unshard(unit);
      rank.units->bind_gradients(unit);
      launch(rank.compute, Add{.a = rank.unit(unit).weights, .b = read, .y = read});
      launch(rank.compute, Fill{.x = rank.unit(unit).main_grads, .value = 1});
      rank.units->reshard(unit);
      rank.units->reduce_shard(unit);
      rank.units->sum_instances(unit);
    }
    rank.units->finish_sums();
    for (const int unit : {1, 3}) {
      const ParameterUnit& of = rank.unit(unit);
      launch(rank.compute, Add{.a = of.owned_weights, .b = of.owned_grads, .y = of.owned_weights});
    }
    rank.units->updated();
    for (const int unit : {1, 3}) rank.units->gather_instances(unit);
  }
  rank.units->wait_for_all();
  for (const int unit : {1, 3}) {
    const Tensor& shard = rank.unit(unit).weight_shard;
    const Tensor part = read.slice(0, 0, shard.numel());
    launch(rank.compute, Add{.a = shard, .b = part, .y = part});
  }
  rank.synchronize();
}

TEST(ShardedUnits, EveryWaitIsNeeded) {
  std::atomic<std::int64_t> waits = 0;
  const auto run = [&](std::int64_t suppressed) {
    std::atomic<std::int64_t> hazards = 0;
    on_ranks({.instances = 2, .suppressed_wait = suppressed}, [&](Rank& rank, int world_rank) {
      const std::int64_t elements = rank.unit(1).numel;
      const Tensor read(
          rank.pool.allocate(static_cast<std::size_t>(elements) * sizeof(float), MemoryCategory::kOther, "test"),
          DType::kFp32, {elements});
      Rank::fill(read, 0);
      run_steps(rank, read);
      for (const int unit : {1, 3}) {
        const float of_step = kRanks * 2;  // sum of gradients over all ranks
        const float first = static_cast<float>(10 * unit + rank.gather_group->rank());
        const Tensor& shard = rank.unit(unit).weight_shard;
        for (const std::int64_t at : {std::int64_t{0}, shard.numel() - 1})
          EXPECT_EQ(Rank::at(shard, at), first + kSteps * of_step);
      }
      if (world_rank == 0) hazards = rank.hazards.count(), waits = rank.waits.count;
    });
    return hazards.load();
  };
  EXPECT_EQ(run(-1), 0);
  EXPECT_GT(waits, 0);
  for (std::int64_t suppressed = 0; suppressed < waits; ++suppressed)
    EXPECT_GT(run(suppressed), 0) << "without wait " << suppressed;
}

TEST(ShardedUnits, CallsOutOfOrderAreErrors) {
  on_ranks({}, [](Rank& rank, int) {
    ShardedUnits& units = *rank.units;
    const auto refused = [](const auto& call) { return error_of(ExitCode::kInternal, call); };
    EXPECT_THAT(refused([&] { units.wait_unshard(1); }),
                AllOf(HasSubstr("wait_unshard of unit unit 1"), HasSubstr("a preceding unshard")));
    EXPECT_THAT(refused([&] { units.reshard(1); }), HasSubstr("a gathered unit"));
    units.unshard(1);
    EXPECT_THAT(refused([&] { units.unshard(1); }), HasSubstr("an empty slot"));
    EXPECT_THAT(refused([&] { units.unshard(3); }), HasSubstr("unshard of unit unit 3"));
    EXPECT_THAT(refused([&] { units.reshard(1); }), HasSubstr("a gathered unit"));
    EXPECT_THAT(refused([&] { units.unshard(0); }), HasSubstr("resident"));
    units.wait_unshard(1);
    units.reshard(1);
    EXPECT_THAT(refused([&] { units.wait_unshard(1); }), HasSubstr("a preceding unshard"));
    EXPECT_THAT(refused([&] { units.reduce_shard(1); }), HasSubstr("bound gradients"));
    units.bind_gradients(1);
    EXPECT_THAT(refused([&] { units.bind_gradients(3); }), HasSubstr("an empty slot"));
    EXPECT_THAT(refused([&] { units.reduce_shard(3); }), HasSubstr("bound gradients"));
    EXPECT_THAT(refused([&] { units.bind_gradients(0); }), HasSubstr("resident"));
    EXPECT_EQ(units.gathers(), 1);
    EXPECT_EQ(units.reductions(), 0);
  });
}

}  // namespace
}  // namespace megalith
