// Buckets, their sums on thread ranks, overlap with the backward pass, and the proof that each event wait is needed.
#include "parallel/data_parallel/gradient_reducer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <vector>

#include "core/base/error.h"
#include "core/instruments/hazard_checker.h"
#include "core/instruments/timeline.h"
#include "core/layers/parameter.h"
#include "core/tensor/bf16.h"
#include "parallel/comm/plan_communicator.h"
#include "parallel/comm/single_communicator.h"
#include "parallel/data_parallel/parameter_gatherer.h"
#include "parallel/mesh/instance_groups.h"
#include "tests/support/matchers.h"
#include "tests/thread_ranks/thread_communicator.h"

namespace megalith {
namespace {

// Announces and enqueues a task, as an op's launch does.
void enqueue(Stream& stream, const Access& access, CpuStream::Task task) {
  if (stream.needs_access()) stream.announce(access);
  if (CpuStream* cpu = stream.cpu()) cpu->enqueue(std::move(task));
}

// Stands for the backward pass of a unit: adds `amount` to its gradient.
void backward(Stream& stream, const Tensor& grad, float amount) {
  Access access("backward");
  access.reads(grad);
  access.writes(grad);
  enqueue(stream, access, [grad, amount] {
    for (std::int64_t i = 0; i < grad.numel(); ++i) grad.as<float>()[i] += amount;
  });
}

// Stands for the optimizer: reads the gradient and clears it.
void optimizer(Stream& stream, const Tensor& grad, std::vector<float>* seen) {
  Access access("optimizer");
  access.reads(grad);
  access.writes(grad);
  enqueue(stream, access, [grad, seen] {
    for (std::int64_t i = 0; i < grad.numel(); ++i) {
      if (seen != nullptr) seen->push_back(grad.as<float>()[i]);
      grad.as<float>()[i] = 0;
    }
  });
}

TEST(AssignBuckets, ClosesABucketWhenItIsFull) {
  const std::vector<std::int64_t> units{5, 5, 5, 30, 0, 1, 1};
  EXPECT_THAT(assign_buckets(units, 10), ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3), ElementsAre(5, 6)));
  EXPECT_THAT(assign_buckets(units, 1), testing::SizeIs(6));
  EXPECT_THAT(assign_buckets(units, 1000), ElementsAre(ElementsAre(0, 1, 2, 3, 5, 6)));
  EXPECT_TRUE(assign_buckets({}, 10).empty());
  EXPECT_THROW(assign_buckets(units, 0), Error);
}

// Three units in one flat buffer; the first two, contiguous in memory, form a bucket.
struct Gradients {
  std::vector<float> flat = std::vector<float>(60, 0.0f);
  Tensor unit(int i) { return Tensor(flat.data() + 20 * i, DType::kFp32, {4, 5}); }
  std::vector<std::vector<Tensor>> buckets() { return {{unit(0), unit(1)}, {unit(2)}}; }
};

void step(Stream& compute, GradientReducer& reducer, Gradients& grads, float scale, std::vector<float>* seen) {
  backward(compute, grads.unit(0), scale);
  backward(compute, grads.unit(1), 2 * scale);
  reducer.reduce(0);
  backward(compute, grads.unit(2), 3 * scale);
  reducer.reduce(1);
  reducer.finish();
  for (int i = 0; i < 3; ++i) optimizer(compute, grads.unit(i), seen);
}

TEST(GradientReducer, SumsOverTheGroupInEveryStep) {
  for (int ranks : {2, 3}) {
    ThreadWorld(ranks).run([&](Communicator& world) {
      Gradients grads;
      Stream compute(DeviceType::kCpu, "compute");
      Stream comm(DeviceType::kCpu, "comm");
      const AbortOnUnwind guard(world);
      GradientReducer reducer(world, {.compute = compute, .communication = comm}, grads.buckets());
      std::vector<float> seen;
      for (int i = 0; i < 3; ++i) step(compute, reducer, grads, static_cast<float>(world.rank() + 1), &seen);
      compute.synchronize();
      const float sum = static_cast<float>(ranks * (ranks + 1)) / 2;
      ASSERT_EQ(seen.size(), 180u);
      for (std::size_t i = 0; i < seen.size(); ++i) ASSERT_EQ(seen[i], sum * static_cast<float>(i % 60 / 20 + 1)) << i;
      EXPECT_EQ(reducer.buckets_reduced(), 6);
      EXPECT_EQ(reducer.bytes_reduced(), 3 * 60 * 4);
      // Neighbors in memory are not joined: ranks may have them at other addresses.
      EXPECT_EQ(world.stats().collectives, 9);
    });
  }
}

TEST(GradientReducer, SumsBf16GradientsRoundedOnce) {
  constexpr int kRanks = 3;
  ThreadWorld(kRanks).run([&](Communicator& world) {
    // 1 + 2^-8 + 2^-8: rounding after each rank would leave 1.
    std::vector<bf16> flat(60, to_bf16(world.rank() == 0 ? 1.0f : 0x1p-8f));
    const auto unit = [&](int i) { return Tensor(flat.data() + 20 * i, DType::kBf16, {4, 5}); };
    Stream compute(DeviceType::kCpu, "compute");
    Stream comm(DeviceType::kCpu, "comm");
    const AbortOnUnwind guard(world);
    GradientReducer reducer(world, {.compute = compute, .communication = comm}, {{unit(0), unit(1)}, {unit(2)}});
    reducer.reduce(0);
    reducer.reduce(1);
    reducer.finish();
    compute.synchronize();
    comm.synchronize();
    for (const bf16 sum : flat) EXPECT_EQ(to_float(sum), 1 + 0x1p-7f);
    EXPECT_EQ(reducer.bytes_reduced(), 60 * 2);
    EXPECT_EQ(world.stats().collectives, 3);
  });
}

// The compute stream is inside the backward pass of the next unit until the first bucket was reduced. Without overlap
// neither would end.
TEST(GradientReducer, ReducesWhileTheBackwardPassStillRuns) {
  ThreadWorld(2).run([](Communicator& world) {
    Gradients grads;
    std::promise<float> reduced;
    std::future_status status = std::future_status::deferred;
    float value = 0;
    Stream compute(DeviceType::kCpu, "compute");
    Stream comm(DeviceType::kCpu, "comm");
    const AbortOnUnwind guard(world);
    GradientReducer reducer(world, {.compute = compute, .communication = comm}, grads.buckets());
    backward(compute, grads.unit(0), 1);
    backward(compute, grads.unit(1), 1);
    reducer.reduce(0);
    enqueue(comm, Access("look"), [&] { reduced.set_value(grads.flat[0]); });
    enqueue(compute, Access("wait"), [&] {
      std::future<float> future = reduced.get_future();
      status = future.wait_for(std::chrono::seconds(60));
      if (status == std::future_status::ready) value = future.get();
    });
    backward(compute, grads.unit(2), 1);
    reducer.reduce(1);
    reducer.finish();
    compute.synchronize();
    EXPECT_EQ(status, std::future_status::ready);
    EXPECT_EQ(value, 2.0f);
  });
}

// The order of the plan. The communication stream waits once per bucket, for a record made right after the bucket's
// last backward. The compute stream waits once, at the end.
TEST(GradientReducer, EnqueuesOneWaitPerBucketAndOneAtTheEnd) {
  Timeline timeline;
  Stream compute(DeviceType::kPlan, "compute", {.timeline = &timeline});
  Stream comm(DeviceType::kPlan, "comm", {.timeline = &timeline});
  PlanCommunicator group("dp", {.rank = 0, .size = 2});
  Gradients grads;
  GradientReducer reducer(group, {.compute = compute, .communication = comm}, grads.buckets());
  step(compute, reducer, grads, 1, nullptr);
  std::vector<std::string> order;
  for (const Timeline::Entry& entry : timeline.entries()) {
    const std::string what = entry.kind == Timeline::Kind::kOp       ? std::string(entry.access.name())
                             : entry.kind == Timeline::Kind::kRecord ? "record"
                                                                     : "wait";
    order.push_back(timeline.lanes()[static_cast<std::size_t>(entry.lane)] + " " + what);
  }
  EXPECT_THAT(order, ElementsAre("compute backward", "compute backward", "compute record", "comm wait",
                                 "comm all_reduce", "comm all_reduce", "comm record", "compute backward",
                                 "compute record", "comm wait", "comm all_reduce", "comm record", "compute wait",
                                 "compute optimizer", "compute optimizer", "compute optimizer"));
}

// Ops that touch nothing, so that a missing wait is a hazard on paper only and this test is clean under
// ThreadSanitizer.
void announce_only(Stream& stream, const char* name, const Tensor& grad) {
  Access access(name);
  access.reads(grad);
  access.writes(grad);
  enqueue(stream, access, [] {});
}

// Steps of two thread ranks; `suppressed` is the ordinal of the wait left out on both. Gives rank 0's hazards.
struct HazardRun {
  std::int64_t hazards = 0;
  std::int64_t waits = 0;
};
HazardRun run_with_hazard_checker(std::int64_t suppressed) {
  HazardRun result;
  ThreadWorld(2).run([&](Communicator& world) {
    Gradients grads;
    HazardChecker hazards;
    WaitCounter waits{.suppressed = suppressed};
    const Instruments instruments{.hazards = &hazards, .waits = &waits};
    Stream compute(DeviceType::kCpu, "compute", instruments);
    Stream comm(DeviceType::kCpu, "comm", instruments);
    const AbortOnUnwind guard(world);
    GradientReducer reducer(world, {.compute = compute, .communication = comm}, grads.buckets());
    for (int i = 0; i < 2; ++i) {
      announce_only(compute, "backward", grads.unit(0));
      announce_only(compute, "backward", grads.unit(1));
      reducer.reduce(0);
      announce_only(compute, "backward", grads.unit(2));
      reducer.reduce(1);
      reducer.finish();
      for (int unit = 0; unit < 3; ++unit) announce_only(compute, "optimizer", grads.unit(unit));
    }
    compute.synchronize();
    comm.synchronize();
    if (world.rank() == 0) result = {hazards.count(), waits.count};
  });
  return result;
}

TEST(GradientReducer, EveryWaitIsNeeded) {
  const HazardRun complete = run_with_hazard_checker(-1);
  EXPECT_EQ(complete.hazards, 0);
  EXPECT_EQ(complete.waits, 6);
  for (std::int64_t wait = 0; wait < complete.waits; ++wait) {
    EXPECT_GT(run_with_hazard_checker(wait).hazards, 0) << "without wait " << wait;
  }
}

// Each rank gets its part of each range, summed over all instances of such parts. All ranks gather the weights that it
// computes from the part.
TEST(GradientReducer, ScattersAndTheGathererGathers) {
  for (const auto& [all, instances] : {std::pair{2, 1}, {3, 1}, {4, 1}, {4, 2}, {6, 3}, {3, 3}}) {
    SCOPED_TRACE(testing::Message() << all << " ranks in " << instances);
    const int ranks = all / instances;
    ThreadWorld(all).run([&, all = all, instances = instances](Communicator& world) {
      const InstanceGroups groups = split_into_instances(world, instances);
      Communicator &shards = *groups.shards, &outer = *groups.instances;
      const int n = 5 * ranks;  // elements of the first range; the second is twice as long
      std::vector<float> gradients(static_cast<std::size_t>(3 * n)), weights(static_cast<std::size_t>(3 * n), 0.0f);
      const auto ranges = [n](std::vector<float>& flat) {
        return std::vector<std::vector<Tensor>>{
            {Tensor(flat.data(), DType::kFp32, {n}), Tensor(flat.data() + n, DType::kFp32, {2 * n})}};
      };
      Stream compute(DeviceType::kCpu, "compute");
      Stream comm(DeviceType::kCpu, "comm");
      const AbortOnUnwind guard(world);
      GradientReducer reducer(shards, {.compute = compute, .communication = comm}, ranges(gradients),
                              GradientReducer::Result::kShard, instances > 1 ? &outer : nullptr);
      ParameterGatherer gatherer(shards, {.compute = compute, .communication = comm}, ranges(weights));
      for (int step = 1; step <= 3; ++step) {
        for (std::size_t i = 0; i < gradients.size(); ++i) gradients[i] = static_cast<float>(step * (world.rank() + 1));
        reducer.reduce(0);
        reducer.finish();
        Access update("update");
        const FlatShard own{.rank = shards.rank(), .ranks = ranks};
        enqueue(compute, update, [&, own] {
          for (const FlatShard::Range part : {own.range(n), own.range(2 * n)}) {
            const std::int64_t begin = part.size() == n / ranks ? 0 : n;
            for (std::int64_t i = begin + part.begin; i < begin + part.end; ++i)
              weights[static_cast<std::size_t>(i)] += gradients[static_cast<std::size_t>(i)];
          }
        });
        gatherer.updated();
        gatherer.gather(0);
        if (ranks > 1) {
          EXPECT_THROW(gatherer.gather(0), Error);
        }
        gatherer.wait(0);
        gatherer.wait(0);  // nothing
        compute.synchronize();
        const float want = static_cast<float>(all * (all + 1) / 2 * step * (step + 1) / 2);
        for (std::size_t i = 0; i < weights.size(); ++i) ASSERT_EQ(weights[i], want) << i;
      }
      const int many = ranks > 1 ? 1 : 0;
      EXPECT_EQ(reducer.buckets_reduced(), 3);
      EXPECT_EQ(reducer.ranges_scattered(), 6 * many);
      EXPECT_EQ(gatherer.ranges_gathered(), 6 * many);
      EXPECT_EQ(gatherer.buckets_gathered(), 3 * many);
      EXPECT_EQ(shards.stats().collectives, 12 * many);
      EXPECT_EQ(outer.stats().collectives, instances > 1 ? 6 : 0);
    });
  }
}

// Each bucket's group has other ranks; the first group may have only one.
TEST(GradientReducer, BucketsOfSeveralGroupsGoOverTheSameStreams) {
  static constexpr int kRanks = 4;
  for (const int instances : {2, 4}) {
    ThreadWorld(kRanks).run([&](Communicator& world) {
      const InstanceGroups groups = split_into_instances(world, instances);
      Communicator& few = *groups.shards;
      std::vector<float> gradients(2 * kRanks), weights(2 * kRanks, 0.0f);
      const auto bucket = [](std::vector<float>& flat, int i) {
        return std::vector<std::vector<Tensor>>{{Tensor(flat.data() + i * kRanks, DType::kFp32, {kRanks})}};
      };
      Stream compute(DeviceType::kCpu, "compute");
      Stream comm(DeviceType::kCpu, "comm");
      const BucketStreams streams{.compute = compute, .communication = comm};
      const AbortOnUnwind guard(world);
      GradientReducer reducer(few, streams, bucket(gradients, 0), GradientReducer::Result::kShard);
      reducer.add_buckets(world, bucket(gradients, 1));
      ParameterGatherer gatherer(few, streams, bucket(weights, 0));
      gatherer.add_buckets(world, bucket(weights, 1));
      gradients.assign(gradients.size(), static_cast<float>(1 << world.rank()));
      for (const int b : {1, 0}) reducer.reduce(b);
      reducer.finish();
      enqueue(compute, Access("update"), [&] {
        for (const auto& [group, first] : {std::pair{&few, 0}, {&world, kRanks}}) {
          const FlatShard::Range own = FlatShard{.rank = group->rank(), .ranks = group->size()}.range(kRanks);
          for (std::int64_t i = first + own.begin; i < first + own.end; ++i)
            weights[static_cast<std::size_t>(i)] = gradients[static_cast<std::size_t>(i)];
        }
      });
      gatherer.updated();
      for (const int b : {1, 0}) gatherer.gather(b);
      gatherer.wait(0);  // the last of them, whether anything was gathered or not
      compute.synchronize();
      const int size = kRanks / instances, first = world.rank() / size * size;
      for (int i = 0; i < kRanks; ++i) {
        EXPECT_EQ(weights[static_cast<std::size_t>(i)], static_cast<float>(((1 << size) - 1) << first));
        EXPECT_EQ(weights[static_cast<std::size_t>(kRanks + i)], 15);
      }
      EXPECT_EQ(reducer.ranges_scattered(), size > 1 ? 2 : 1);
      EXPECT_EQ(gatherer.ranges_gathered(), size > 1 ? 2 : 1);
    });
  }
}

TEST(GradientReducer, DoesNothingInAGroupOfOne) {
  Timeline timeline;
  Stream compute(DeviceType::kPlan, "compute", {.timeline = &timeline});
  Stream comm(DeviceType::kPlan, "comm", {.timeline = &timeline});
  SingleCommunicator group("dp");
  Gradients grads;
  GradientReducer reducer(group, {.compute = compute, .communication = comm}, grads.buckets());
  reducer.reduce(0);
  reducer.reduce(1);
  reducer.finish();
  EXPECT_TRUE(timeline.entries().empty());
  EXPECT_EQ(reducer.buckets_reduced(), 0);
}

TEST(GradientReducer, RefusesABucketTwiceAndAStepWithABucketMissing) {
  Stream compute(DeviceType::kCpu, "compute");
  Stream comm(DeviceType::kCpu, "comm");
  SingleCommunicator group("dp");
  Gradients grads;
  GradientReducer reducer(group, {.compute = compute, .communication = comm}, grads.buckets());
  reducer.reduce(0);
  EXPECT_THROW(reducer.reduce(0), Error);
  EXPECT_THROW(reducer.finish(), Error);
  EXPECT_THROW(reducer.reduce(2), Error);
  reducer.reduce(1);
  reducer.finish();
  reducer.reduce(0);
}

TEST(GradientReducer, RefusesBucketsItCannotReduce) {
  Stream compute(DeviceType::kCpu, "compute");
  Stream comm(DeviceType::kCpu, "comm");
  SingleCommunicator group("dp");
  Gradients grads;
  const auto make = [&](const Tensor& tensor) {
    GradientReducer(group, {.compute = compute, .communication = comm}, {{tensor}});
  };
  Tensor integers = grads.unit(0);
  integers.dtype = DType::kInt32;
  EXPECT_THROW(make(integers), Error);
  EXPECT_THROW(make(grads.unit(0).slice(1, 0, 2)), Error);
  EXPECT_THROW(make(grads.unit(0).slice(0, 0, 0)), Error);
}

}  // namespace
}  // namespace megalith
