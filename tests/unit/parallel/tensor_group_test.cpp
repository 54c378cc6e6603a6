// The collectives of tensor-parallel layers on thread ranks: values, calls, and the events that order two streams.
#include "parallel/tensor_parallel/tensor_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <mutex>

#include "core/device/graph.h"
#include "core/instruments/hazard_checker.h"
#include "core/layers/linear.h"
#include "core/model/config.h"
#include "core/ops/elementwise/elementwise.h"
#include "core/ops/op.h"
#include "parallel/tensor_parallel/tensor_parallel_check.h"
#include "tests/support/download.h"
#include "tests/thread_ranks/thread_communicator.h"

namespace megalith {
namespace {

struct GroupOutcome {
  std::vector<std::vector<float>> gathered, summed;  // per rank
  std::int64_t hazards = 0, waits = 0, calls = 0;
};

// Each rank r has x = [[r, r]] (all of [[0, 0], [1, 1]] without sequence parallelism). It gathers x, doubles it, sums
// it over the ranks, and gets the maximum of ranks' numbers.
GroupOutcome run(int ranks, const TensorGroup::Options& options, std::int64_t suppressed = -1) {
  const bool sequence = options.sequence_parallel;
  GroupOutcome outcome;
  outcome.gathered.resize(static_cast<std::size_t>(ranks));
  outcome.summed.resize(static_cast<std::size_t>(ranks));
  std::mutex mutex;
  ThreadWorld world(ranks, std::chrono::seconds(60));
  world.run([&](Communicator& group) {
    HazardChecker hazards;
    WaitCounter waits{.suppressed = suppressed};
    MemoryPool pool(DeviceType::kCpu);
    Stream compute(DeviceType::kCpu, "compute", {.hazards = &hazards, .waits = &waits});
    Stream communication(DeviceType::kCpu, "tensor communication", {.hazards = &hazards, .waits = &waits});
    const AbortOnUnwind guard(group);
    Arena arena(pool, Arena::Mode::kUnplanned);
    Context ctx{.compute = compute, .arena = arena};
    TensorGroup tensor(group, communication, options);
    const Tensor x = ctx.empty({sequence ? 1 : ranks, 2}, DType::kFp32, "x");
    launch(compute, Fill{.x = x, .value = static_cast<double>(group.rank())});
    const Tensor copy = ctx.empty({tensor.whole_rows(x.size(0)), 2}, DType::kFp32, "copy");
    const Tensor whole = tensor.gather_rows(ctx, x, "x", [&](const Tensor& rows, std::int64_t first) {
      launch(compute, Copy{.src = rows, .dst = copy.slice(0, first, rows.size(0))});
    });
    const Tensor later = ctx.empty(x.shape, DType::kFp32, "later");
    launch(compute, Fill{.x = later, .value = static_cast<double>(group.rank())});
    const Tensor sum =
        tensor.sum_rows(ctx, whole.shape, DType::kFp32, "twice", [&](const Tensor& rows, std::int64_t first) {
          const Tensor part = copy.slice(0, first, rows.size(0));
          launch(compute, Add{.a = part, .b = part, .y = rows});
        });
    const Tensor prefetched = tensor.overlaps() ? tensor.prefetch_rows(ctx, later, "later") : whole;
    if (tensor.overlaps()) tensor.wait_for_prefetched_rows(ctx);
    const Tensor late = ctx.empty(prefetched.shape, DType::kFp32, "late");
    launch(compute, Copy{.src = prefetched, .dst = late});
    const Tensor result = ctx.empty(sum.shape, DType::kFp32, "result");
    launch(compute, Copy{.src = sum, .dst = result});
    const Tensor most = ctx.empty({1}, DType::kFp32, "most");
    launch(compute, Fill{.x = most, .value = static_cast<double>(group.rank())});
    tensor.maximum(compute, most, "ranks");
    const Tensor last = ctx.empty({1}, DType::kFp32, "last");
    launch(compute, Copy{.src = most, .dst = last});
    communication.synchronize();
    compute.synchronize();
    const auto rank = static_cast<std::size_t>(group.rank());
    const std::lock_guard lock(mutex);
    outcome.gathered[rank] = download(compute, copy);
    if (suppressed < 0) {
      EXPECT_EQ(download(compute, whole), outcome.gathered[rank]);
      EXPECT_EQ(download(compute, late), outcome.gathered[rank]);
    }
    outcome.summed[rank] = download(compute, result);
    if (suppressed < 0) {
      EXPECT_EQ(download(compute, last)[0], static_cast<float>(ranks - 1));
    }
    outcome.hazards += hazards.count();
    outcome.waits = waits.count;
    outcome.calls = group.stats().collectives;
  });
  return outcome;
}

TEST(TensorGroup, GathersAndSumsRowsWithSequenceParallelism) {
  const GroupOutcome got = run(3, {.sequence_parallel = true});
  for (std::size_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(got.gathered[rank], (std::vector<float>{0, 0, 1, 1, 2, 2}));
    EXPECT_EQ(got.summed[rank], std::vector<float>(2, 6.0f * static_cast<float>(rank)));
  }
  EXPECT_EQ(got.calls, 3);
  EXPECT_EQ(got.hazards, 0);
}

TEST(TensorGroup, OverlappedRowsTravelInPieces) {
  const GroupOutcome got = run(3, {.sequence_parallel = true, .overlap = true});
  for (std::size_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(got.gathered[rank], (std::vector<float>{0, 0, 1, 1, 2, 2}));
    EXPECT_EQ(got.summed[rank], std::vector<float>(2, 6.0f * static_cast<float>(rank)));
  }
  EXPECT_EQ(got.calls, 2 + 2 + 2 + 1);
  EXPECT_EQ(got.hazards, 0);
}

TEST(TensorGroup, SumsInPlaceWithout) {
  const GroupOutcome got = run(2, {});
  for (std::size_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(got.gathered[rank], std::vector<float>(4, static_cast<float>(rank)));
    EXPECT_EQ(got.summed[rank], std::vector<float>(4, 2.0f));
  }
  EXPECT_EQ(got.calls, 2);
  EXPECT_EQ(got.hazards, 0);
}

TEST(TensorGroup, OneRankCommunicatesNothing) {
  const GroupOutcome got = run(1, {.sequence_parallel = true, .overlap = true});
  EXPECT_EQ(got.calls, 0);
  EXPECT_EQ(got.waits, 0);
}

TEST(TensorGroup, EverySuppressedWaitIsFound) {
  for (const TensorGroup::Options& options :
       {TensorGroup::Options{}, {.sequence_parallel = true}, {.sequence_parallel = true, .overlap = true}}) {
    const std::int64_t waits = run(2, options).waits;
    ASSERT_EQ(waits, options.overlap ? 7 : options.sequence_parallel ? 6 : 4);
    for (std::int64_t ordinal = 0; ordinal < waits; ++ordinal)
      EXPECT_GT(run(2, options, ordinal).hazards, 0) << "wait " << ordinal;
  }
}

struct LinearRun {
  std::vector<std::string> refusals;          // errors of captures, by rank
  std::vector<std::vector<float>> gradients;  // weight gradients, per rank
};

// A linear whose outputs are split; backward_data and backward_weight run eagerly, or as a graph each.
LinearRun run_linear(bool captures, bool splits_backward) {
  LinearRun result{std::vector<std::string>(2), std::vector<std::vector<float>>(2)};
  ThreadWorld world(2, std::chrono::seconds(60));
  world.run([&](Communicator& group) {
    const auto rank = static_cast<std::size_t>(group.rank());
    MemoryPool pool(DeviceType::kCpu);
    Stream compute(DeviceType::kCpu, "compute"), communication(DeviceType::kCpu, "tensor communication");
    const AbortOnUnwind guard(group);
    Arena arena(pool, Arena::Mode::kUnplanned);
    const Context ctx{.compute = compute, .arena = arena};
    TensorGroup tensor(group, communication,
                       {.sequence_parallel = true, .overlap = true, .splits_backward = splits_backward});
    ParameterStore store;
    store.begin_unit("linear");
    const Linear linear(store, {.name = "linear", .inputs = 4, .outputs = 6, .init_std = 0.1f}, tensor);
    store.allocate(pool, DType::kFp32);
    store.initialize(compute, 1);
    store.zero_gradients(compute);
    const Tensor x = ctx.empty({3, 4}, DType::kFp32, "x"), dy = ctx.empty({6, 3}, DType::kFp32, "dy");
    launch(compute, Fill{.x = x, .value = 1.5 + static_cast<double>(rank)});
    launch(compute, Fill{.x = dy, .value = 0.25});
    Stash stash;
    const Microbatch microbatch;
    linear.forward(ctx, microbatch, x, stash);
    const auto run = [&](const char* verb, const std::function<void()>& body) {
      if (!captures) return body();
      Graph graph(verb);
      graph.begin_capture(compute);
      body();
      graph.end_capture();
      graph.replay(compute);
      compute.synchronize();
    };
    try {
      run("backward_data", [&] { linear.backward_data(ctx, microbatch, dy, stash); });
      run("backward_weight", [&] { linear.backward_weight(ctx, microbatch, stash); });
    } catch (const Error& error) {
      result.refusals[rank] = error.what();
    }
    communication.synchronize();
    result.gradients[rank] = download(compute, store.units()[0].main_grads);
  });
  return result;
}

// backward_weight waits for a gather that backward_data starts; a separate graph would not see it.
TEST(TensorGroup, NoGatherOutlivesAGraphWhereBackwardIsSplit) {
  const LinearRun eager = run_linear(false, false);
  for (const std::string& refusal : run_linear(true, false).refusals)
    EXPECT_THAT(refusal, testing::HasSubstr("backward_data"));
  for (const bool captures : {false, true}) {
    const LinearRun split = run_linear(captures, true);
    EXPECT_EQ(split.refusals, std::vector<std::string>(2));
    EXPECT_EQ(split.gradients, eager.gradients);
  }
  EXPECT_GT(eager.gradients[0][0], 0);
}

std::string refusal(const ModelConfig& config, std::int64_t size, bool sequence) {
  try {
    check_tensor_parallel(config, size, sequence);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    return error.what();
  }
  return "";
}

TEST(CheckTensorParallel, NamesFlagsAndFittingValues) {
  ModelConfig config;
  config.num_layers = 1;
  config.hidden_size = 48;
  config.num_attention_heads = 12;
  config.num_query_groups = 4;
  config.seq_length = 10;
  resolve(config);
  EXPECT_EQ(refusal(config, 1, false), "");
  EXPECT_EQ(refusal(config, 2, true), "");
  EXPECT_EQ(refusal(config, 4, false), "");
  EXPECT_EQ(refusal(config, 12, false), "");  // three ranks share each head of keys and values
  EXPECT_EQ(refusal(config, 1, true),
            "--sequence-parallel and --tensor-model-parallel-size: expected --sequence-parallel together with a "
            "--tensor-model-parallel-size above 1, got --tensor-model-parallel-size 1; leave --sequence-parallel out, "
            "or use --tensor-model-parallel-size 2");
  EXPECT_EQ(refusal(config, 5, false),
            "--tensor-model-parallel-size and --num-attention-heads: expected a size that divides the other, got "
            "--tensor-model-parallel-size 5 and --num-attention-heads 12; use --tensor-model-parallel-size 1 or 2 or 3 "
            "or 4 or 6 or 12");
  ModelConfig growing = config;  // 15 heads fit its width and their groups
  growing.hidden_size = 60;
  growing.num_query_groups = 3;
  EXPECT_THAT(refusal(growing, 5, false), testing::EndsWith("or 12, or --num-attention-heads 15"));
  EXPECT_EQ(refusal(config, 6, false),
            "--tensor-model-parallel-size and --num-query-groups: expected one that divides the other, got "
            "--tensor-model-parallel-size 6 and --num-query-groups 4; use --num-query-groups 6");
  EXPECT_EQ(refusal(config, 4, true),
            "--tensor-model-parallel-size and --seq-length: expected with --sequence-parallel a size that divides the "
            "other, got --tensor-model-parallel-size 4 and --seq-length 10; use --tensor-model-parallel-size 1 or 2 or "
            "5 or 10, or --seq-length 12");
  config.ffn_hidden_size = 30;
  EXPECT_EQ(refusal(config, 4, false),
            "--tensor-model-parallel-size and --ffn-hidden-size: expected a size that divides the other, got "
            "--tensor-model-parallel-size 4 and --ffn-hidden-size 30; use --tensor-model-parallel-size 1 or 2 or 3 or "
            "5 or 6 or 10 or 15 or 30, or --ffn-hidden-size 32");
}

}  // namespace
}  // namespace megalith
