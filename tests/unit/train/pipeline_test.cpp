// Pipeline parallelism beyond the guarantees of every layout (layout_claims_test.cpp): messages, splits, failures,
// rejections.
#include <gtest/gtest.h>

#include <fstream>
#include <string_view>

#include "tests/support/error_of.h"
#include "tests/support/matchers.h"
#include "tests/unit/train/layouts.h"

namespace megalith::test {
namespace {

// 4 layers, 8 microbatches a step with one replica.
const Words kSmallPipeline = {"--num-layers", "4", "--hidden-size",      "16",
                              "--seq-length", "8", "--micro-batch-size", "1"};

// Each stage sent and received one message for each microbatch and neighboring part.
void expect_messages(const RunResult& run, int num_stages) {
  ASSERT_EQ(run.transfers.size(), static_cast<std::size_t>(num_stages));
  std::int64_t sent = 0, received = 0;
  for (const auto& [stage, stats] : run.transfers) {
    EXPECT_GT(stats.sent, 0) << "stage " << stage;
    EXPECT_GT(stats.received, 0) << "stage " << stage;
    EXPECT_GT(stats.bytes_sent, 0) << "stage " << stage;
    sent += stats.sent;
    received += stats.received;
  }
  EXPECT_EQ(sent, received);
}

// Their operands are kept longer.
TEST(Pipeline, DelayedWeightGradientsGiveTheSameBitsInMoreMemory) {
  const Words flags = kSmallPipeline + kDropout + stages(2) + Words{"--train-iters", "2"};
  for (const char* name : {"gpipe", "1f1b", "interleaved", "dualpipe-v"}) {
    SCOPED_TRACE(name);
    const auto run = [&](const Words& more) {
      std::size_t live = 0;
      std::mutex mutex;
      const RunResult result =
          train({.flags = flags + schedule(name) + more, .ranks = 2, .finish = [&](Trainer& trainer, int) {
                   const std::lock_guard lock(mutex);
                   live += trainer.plans().train.live_bytes;
                 }});
      EXPECT_TRUE(result.memory_as_planned);
      expect_messages(result, 2);
      return std::pair(result, live);
    };
    const auto [joined, less] = run({});
    const auto [delayed, more] = run({"--delay-wgrad-compute"});
    expect_same_run(delayed, joined);
    EXPECT_GT(more, less);
  }
}

TEST(Pipeline, ChunksOfOneStageAreHandedOver) {
  const Words flags = kSmallPipeline + kDropout + Words{"--train-iters", "2"};
  const RunResult plain = train({.flags = flags});
  for (const char* name : {"interleaved", "zb-v", "dualpipe-v"}) {
    SCOPED_TRACE(name);
    const RunResult run = train({.flags = flags + schedule(name)});
    expect_same_run(run, plain);
    EXPECT_EQ(run.transfers.at(0).sent, 0);
    EXPECT_EQ(run.transfers.at(0).handed_over, 2 * 2 * 8);
  }
}

TEST(Pipeline, CopiesOfATiedEmbeddingStayIdentical) {
  const RunResult run = train({.flags = kSmallPipeline + stages(4), .ranks = 8});
  ASSERT_EQ(run.word_tables.size(), 2u);
  EXPECT_TRUE(run.word_tables.at(0) == run.word_tables.at(3));
}

TEST(Pipeline, TrainsInBf16AndWithTheLossInChunks) {
  const Words flags = kSmallPipeline + kDropout + Words{"--train-iters", "3", "--bf16", "--main-grads-dtype", "bf16"};
  for (const Words& more : {Words{}, Words{"--loss-chunk-size", "3"}}) {
    const RunResult one = train({.flags = flags + more});
    const RunResult two = train({.flags = flags + more + stages(2), .ranks = 2});
    EXPECT_EQ(one.losses, two.losses);
    expect_messages(two, 2);
  }
}

TEST(Pipeline, UnevenSplitsTrainTheSameModel) {
  const Words flags = kSmallPipeline + kDropout + Words{"--num-layers", "5", "--train-iters", "2"};
  const RunResult one = train({.flags = flags});
  for (const Words& split :
       {Words{"--decoder-first-pipeline-num-layers", "2"}, Words{"--decoder-last-pipeline-num-layers", "1"},
        Words{"--account-for-embedding-in-pipeline-split"}, Words{"--account-for-loss-in-pipeline-split"},
        Words{"--pipeline-model-parallel-layout", "E|t*5L"}}) {
    SCOPED_TRACE(split[0]);
    const RunResult two = train({.flags = flags + stages(2) + split, .ranks = 2});
    EXPECT_EQ(two.losses, one.losses);
    expect_messages(two, 2);
  }
  // Chunks that hold a single end of the model, or nothing.
  const RunResult thin =
      train({.flags = flags + stages(2) + Words{"--pipeline-model-parallel-layout", "E|tt||tttL"}, .ranks = 2});
  EXPECT_EQ(thin.losses, one.losses);
}

// Leaves out each event wait, like Hazards.EverySuppressedWaitIsFound. Two waits order nothing in a run this short. The
// first receive writes to unused memory, and after the last wait for a send nobody writes.
#if !defined(__SANITIZE_THREAD__)
TEST(Pipeline, SuppressedWaitsOfMessagesAreFound) {
  const Words flags =
      kSmallPipeline + stages(2) + Words{"--train-iters", "2", "--check-hazards", "--global-batch-size", "2"};
  const SuppressedWaits waits = suppress_each_wait(flags, 2);
  EXPECT_GT(waits.all, 16);
  EXPECT_LE(waits.idle.size(), 2u);
  EXPECT_EQ(waits.refused, 0);
}
#endif

TEST(Pipeline, ANanOfOneStageSkipsTheStepOnAllAndIsNamedThere) {
  const Words flags = kSmallPipeline + stages(2) + Words{"--lr-decay-style", "constant"};
  // Eight microbatches a step: the first of step 2.
  const auto poisoned = poison({.calls = {9}, .rank = 1, .unit = -1, .element = 0});
  expect_second_step_skipped(train({.flags = flags, .ranks = 2, .prepare = poisoned}),
                             train({.flags = flags, .ranks = 2}));
}

TEST(Pipeline, TheFirstNanOfTheDataIsNamedWhereverItGoes) {
  testing::internal::CaptureStderr();
  const RunResult run = train({.flags = kSmallPipeline + stages(2) + Words{"--max-skipped-steps", "6"},
                               .ranks = 2,
                               .prepare = poison_weights(1)});
  EXPECT_EQ(run.skipped_steps, 6);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("the first value that is not finite: rank 1, layer 2 attention, forward, microbatch 0"));
}

TEST(Pipeline, TheTraceShowsEveryAction) {
  const TestFolder scratch;
  const std::string path = scratch.path("trace.json");
  train({.flags = kSmallPipeline + stages(2) +
                  Words{"--train-iters", "2", "--trace", path, "--profile-step-start", "2", "--profile-step-end", "3"},
         .ranks = 2});
  std::ifstream file(path);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  for (const char* name :
       {"\"send pp 0 to 1\"", "\"receive pp 0 to 1\"", "\"send pp 1 to 0\"", "\"receive pp 1 to 0\"",
        "\"send chunk 0 microbatch 7 output to stage 1\"", "\"post_receive chunk 0 microbatch 7 output from stage 0\"",
        "\"wait_receive chunk 0 microbatch 7 gradient from stage 1\"", "\"layer 3 mlp backward_weight microbatch 7\"",
        "\"wait_send chunk 0 microbatch 7 gradient to stage 0\"", "\"tie_gradients\"", "\"reduce_sums\"",
        "\"reduce_norm\"", "\"optimizer_step\""})
    EXPECT_THAT(text, HasSubstr(name));
}

std::string refused(const Words& flags, int ranks) {
  return error_of(ExitCode::kUsage, [&] { train({.flags = kSmallPipeline + flags, .ranks = ranks}); });
}

TEST(Pipeline, SizesThatDoNotFitAreRefusedWithThoseThatDo) {
  EXPECT_EQ(refused(stages(2), 3),
            "--pipeline-model-parallel-size 2: expected a number of ranks that is a multiple of 2, got 3; start 2 or 4 "
            "ranks, or use --pipeline-model-parallel-size 1 or 3");
  EXPECT_EQ(
      refused(stages(3), 3),
      "--num-layers: expected a multiple of 3 (--pipeline-model-parallel-size 3), got 4; 3 or 6 would fit; or give "
      "--pipeline-model-parallel-layout");
  EXPECT_EQ(refused(stages(2) + schedule("dualpipe-v") + Words{"--global-batch-size", "2"}, 2),
            "--pipeline-schedule dualpipe-v: expected at least 4 microbatches per step, twice "
            "--pipeline-model-parallel-size 2, got 2; raise --global-batch-size, or use --pipeline-schedule zb-v");
  EXPECT_EQ(refused(stages(2) + schedule("interleaved") + Words{"--global-batch-size", "5"}, 2),
            "--pipeline-schedule interleaved: expected a multiple of --pipeline-model-parallel-size 2 as the number of "
            "microbatches per step, got 5; choose --global-batch-size and --micro-batch-size for 4 or 6");
  EXPECT_EQ(refused(stages(2) + Words{"--pipeline-schedule", "interleaved"}, 2),
            "--pipeline-schedule interleaved: expected at least 2 chunks per stage, got 1; set "
            "--num-layers-per-virtual-pipeline-stage, or use --pipeline-schedule 1f1b");
  EXPECT_EQ(refused(stages(2) + schedule("zb-v") + Words{"--num-layers-per-virtual-pipeline-stage", "2"}, 2),
            "--num-layers-per-virtual-pipeline-stage and --pipeline-schedule zb-v: expected 2 chunks per stage, got 1; "
            "remove --num-layers-per-virtual-pipeline-stage");
  EXPECT_EQ(refused(stages(2) + Words{"--pipeline-model-parallel-layout", "Ett|t*3L"}, 2),
            "--pipeline-model-parallel-layout and --num-layers: expected 4 t for --num-layers, got 5");
  EXPECT_EQ(refused(stages(2) + Words{"--pipeline-model-parallel-layout", "Ett|ttL",
                                      "--num-virtual-stages-per-pipeline-rank", "2"},
                    2),
            "--pipeline-model-parallel-layout and --num-virtual-stages-per-pipeline-rank: expected one of them, got "
            "both; remove the other flag, as the layout already assigns the layers");
  EXPECT_EQ(refused(stages(3) + Words{"--pipeline-model-parallel-layout", "Ett||ttL"}, 3),
            "--pipeline-model-parallel-layout: expected a layer, the embedding or the loss on each stage, got none on "
            "stage 1; add a t to this stage, or lower --pipeline-model-parallel-size");
}

// Ahead of the first step of a GPU, everything runs once; with graphs a microbatch runs once more. No state changes.
TEST(Pipeline, WarmUpSendsNothingAndChangesNothing) {
  for (const char* name : {"1f1b", "zb-v"}) {
    const bool graphs = name == std::string_view("zb-v");
    const Words flags =
        kSmallPipeline + kDropout + stages(2) + schedule(name) + Words{"--cuda-graph-impl", graphs ? "local" : "none"};
    std::vector<std::int64_t> messages(2);
    const RunResult cold = train({.flags = flags, .ranks = 2});
    const RunResult warm = train({.flags = flags, .ranks = 2, .prepare = [&](Trainer& trainer, int rank) {
                                    trainer.step().warm_up();
                                    messages[static_cast<std::size_t>(rank)] =
                                        trainer.rank().transfer.stats().sent + trainer.rank().transfer.stats().received;
                                  }});
    EXPECT_EQ(messages, std::vector<std::int64_t>(2)) << name;
    expect_same_run(warm, cold);
    for (const auto& [stage, stats] : warm.transfers) EXPECT_EQ(stats.sent, cold.transfers.at(stage).sent) << name;
  }
}

}  // namespace
}  // namespace megalith::test
