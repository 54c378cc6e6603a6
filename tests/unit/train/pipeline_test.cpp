// Pipeline parallelism: any number of stages trains the same model, every schedule of a layout gives the same bits, and
// messages really went.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <string_view>

#include "core/ops/elementwise/elementwise.h"
#include "tests/unit/train/training_support.h"

namespace megalith::test {
namespace {

using ::testing::HasSubstr;

// 4 layers, 8 microbatches a step with one replica.
const Words kSmallPipeline = {"--num-layers", "4", "--hidden-size",      "16",
                              "--seq-length", "8", "--micro-batch-size", "1"};

const Words kSchedules = {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe-v"};

// Each stage sent and received, as many messages as there are microbatches and neighbour parts.
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

void expect_near(const RunResult& run, const RunResult& want, std::size_t steps) {
  EXPECT_EQ(want.loss_values.size(), steps);
  expect_losses_near(run, want);
}

void expect_gradients_near(const RunResult& run, const RunResult& want) {
  EXPECT_EQ(run.gradients.size(), want.gradients.size());
  for (const auto& [name, wanted] : want.gradients) {
    ASSERT_TRUE(run.gradients.contains(name)) << name;
    const std::vector<float>& got = run.gradients.at(name);
    ASSERT_EQ(got.size(), wanted.size()) << name;
    double difference = 0, norm = 0;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      difference += std::pow(static_cast<double>(got[i]) - wanted[i], 2);
      norm += std::pow(static_cast<double>(wanted[i]), 2);
    }
    EXPECT_GT(norm, 0) << name;
    EXPECT_LE(std::sqrt(difference), 2e-6 * std::sqrt(norm)) << name;
  }
}

class PipelineModels : public testing::TestWithParam<bool> {
 protected:
  Words model() const {
    return GetParam() ? kSmallPipeline + Words{"--hidden-size", "32"} + llama_flags() : kSmallPipeline;
  }
};

INSTANTIATE_TEST_SUITE_P(Shapes, PipelineModels, testing::Bool(),
                         [](const auto& shape) { return shape.param ? "Llama" : "Gpt"; });

TEST_P(PipelineModels, LossesAndGradientsAgreeWithOneRankOver20Steps) {
  const Words flags = model() + kDropout + Words{"--train-iters", "20", "--lr-warmup-iters", "2"};
  const RunResult one = train({.flags = flags});
  EXPECT_EQ(one.transfers.at(0).sent, 0);
  for (const int count : {2, 4}) {
    SCOPED_TRACE(count);
    const RunResult many = train({.flags = flags + stages(count), .ranks = count});
    expect_near(many, one, 20);
    expect_messages(many, count);
    EXPECT_TRUE(many.memory_as_planned);
    // 20 steps of 8 microbatches: an output and a gradient at each of the borders.
    EXPECT_EQ(many.transfers.at(0).sent, 160);
    EXPECT_EQ(many.transfers.at(count - 1).sent, 160);
  }
  const Words step = model() + kDropout + Words{"--train-iters", "1"};
  const RunResult one_step = train({.flags = step});
  for (const int count : {2, 4})
    expect_gradients_near(train({.flags = step + stages(count), .ranks = count}), one_step);
}

TEST_P(PipelineModels, EveryScheduleGivesTheSameBits) {
  const Words flags = model() + kDropout + kEvaluations + stages(2) + Words{"--train-iters", "3"};
  const RunResult first = train({.flags = flags + schedule(kSchedules[0]), .ranks = 2});
  expect_messages(first, 2);
  for (std::size_t i = 1; i < kSchedules.size(); ++i) {
    SCOPED_TRACE(kSchedules[i]);
    const RunResult run = train({.flags = flags + schedule(kSchedules[i]), .ranks = 2});
    expect_same_run(run, first);
    expect_messages(run, 2);
    EXPECT_TRUE(run.memory_as_planned);
    const bool is_v = kSchedules[i] == "zb-v" || kSchedules[i] == "dualpipe-v";
    EXPECT_EQ(run.transfers.at(1).handed_over > 0, is_v);
  }
}

TEST(Pipeline, EveryScheduleOnFourStagesGivesTheSameBits) {
  const Words flags = kSmallPipeline + kDropout + stages(4) + Words{"--num-layers", "8", "--train-iters", "2"};
  const RunResult first = train({.flags = flags + schedule(kSchedules[0]), .ranks = 4});
  for (std::size_t i = 1; i < kSchedules.size(); ++i) {
    SCOPED_TRACE(kSchedules[i]);
    const RunResult run = train({.flags = flags + schedule(kSchedules[i]), .ranks = 4});
    expect_same_run(run, first);
    expect_messages(run, 4);
  }
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

TEST(Pipeline, ComposesWithDataParallelism) {
  const Words flags =
      kSmallPipeline + kDropout + Words{"--train-iters", "20", "--overlap-grad-reduce", "--ddp-bucket-size", "1000"};
  const RunResult one = train({.flags = flags});
  const RunResult plain = train({.flags = flags + stages(2), .ranks = 4});
  expect_near(plain, one, 20);
  expect_messages(plain, 2);
  EXPECT_GT(plain.buckets_reduced, 20);
  for (const char* name : {"zb-h1", "zb-v"})
    expect_same_run(train({.flags = flags + stages(2) + schedule(name), .ranks = 4}), plain);
}

TEST(Pipeline, CopiesOfATiedEmbeddingStayAlike) {
  const RunResult run = train({.flags = kSmallPipeline + stages(4), .ranks = 8});
  ASSERT_EQ(run.word_tables.size(), 2u);
  EXPECT_TRUE(run.word_tables.at(0) == run.word_tables.at(3));
}

TEST(Pipeline, RecomputeChangesNoBit) {
  const Words flags = kSmallPipeline + kDropout + stages(2) + Words{"--train-iters", "2"};
  for (const char* name : {"1f1b", "zb-v"}) {
    const RunResult plain = train({.flags = flags + schedule(name), .ranks = 2});
    for (const Words& mode : recompute_modes()) {
      const RunResult recomputed = train({.flags = flags + schedule(name) + mode, .ranks = 2});
      expect_same_run(recomputed, plain);
      EXPECT_LT(recomputed.arena_planned, plain.arena_planned) << mode[1] << " " << mode[3];
    }
  }
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

TEST(Pipeline, HasNoHazards) {
  const Words flags = kSmallPipeline + kDropout + kEvaluations + stages(2) +
                      Words{"--train-iters", "2", "--check-hazards", "--overlap-grad-reduce", "--ddp-bucket-size", "1"};
  for (const std::string& name : kSchedules) {
    SCOPED_TRACE(name);
    const RunResult run = train({.flags = flags + schedule(name), .ranks = 2});
    EXPECT_EQ(run.hazards, 0);
    EXPECT_EQ(run.code, ExitCode::kOk);
    expect_messages(run, 2);
    EXPECT_GT(run.event_waits, 50);
  }
}

// As Hazards.EverySuppressedWaitIsFound. Two waits order nothing in so short a run: the first receive writes to memory
// that nobody has used, and after the last wait for a send nobody writes.
#if !defined(__SANITIZE_THREAD__)
TEST(Pipeline, SuppressedWaitsOfMessagesAreFound) {
  const Words flags =
      kSmallPipeline + stages(2) + Words{"--train-iters", "2", "--check-hazards", "--global-batch-size", "2"};
  const std::int64_t waits = train({.flags = flags, .ranks = 2}).event_waits;
  ASSERT_GT(waits, 16);
  const auto found = [&](std::int64_t ordinal) {
    return train({.flags = flags + Words{"--suppress-wait", std::to_string(ordinal)}, .ranks = 2}).hazards > 0;
  };
  std::vector<std::int64_t> idle;
  for (std::int64_t ordinal = 0; ordinal < waits; ++ordinal) {
    if (!found(ordinal)) idle.push_back(ordinal);
  }
  EXPECT_THAT(idle, ::testing::SizeIs(::testing::Le(2u)));
}
#endif

TEST(Pipeline, ResumesBitForBitAndUnderOtherLayouts) {
  const TestFolder scratch;
  const Words flags = kSmallPipeline + kDropout;
  const RunResult unbroken = train({.flags = flags + stages(2), .ranks = 4});
  const RunResult first =
      train({.flags = flags + stages(2) + Words{"--exit-interval", "3", "--save", scratch.path("c")}, .ranks = 4});
  ASSERT_EQ(first.losses.size(), 3u);
  const Words load = {"--load", scratch.path("c")};
  const RunResult second = train({.flags = flags + stages(2) + load, .ranks = 4});
  EXPECT_EQ(first.losses + second.losses, unbroken.losses);
  EXPECT_EQ(first.grad_norms + second.grad_norms, unbroken.grad_norms);
  EXPECT_TRUE(second.weights == unbroken.weights);
  const auto expect_continues = [&](const RunResult& other) {
    ASSERT_EQ(other.loss_values.size(), 3u);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(other.loss_values[i] / unbroken.loss_values[i + 3], 1, 1e-5);
  };
  expect_continues(train({.flags = flags + load}));
  expect_continues(train({.flags = flags + stages(4) + load, .ranks = 4}));
  expect_continues(train({.flags = flags + stages(2) + schedule("zb-v") + load, .ranks = 2}));
}

TEST(Pipeline, ANanOfOneStageSkipsTheStepOnAllAndIsNamedThere) {
  const auto poison = [](Trainer& trainer, int rank) {
    if (rank != 1) return;
    Rank& own = trainer.rank();
    own.runner.hooks(0).add(HookPoint::kPostWeight, [&own, calls = 0](const HookContext&) mutable {
      if (++calls != 9) return;  // eight microbatches a step: the first of step 2
      const Tensor gradient = own.model.gpt.parameters->units().back().main_grads;
      launch(own.streams.compute, Fill{.x = gradient.slice(0, 0, 1), .value = std::nan("")});
    });
  };
  const Words flags = kSmallPipeline + stages(2) + Words{"--lr-decay-style", "constant"};
  const RunResult poisoned = train({.flags = flags, .ranks = 2, .prepare = poison});
  const RunResult clean = train({.flags = flags, .ranks = 2});
  EXPECT_EQ(poisoned.skipped_steps, 1);
  EXPECT_EQ(poisoned.grad_norms[1], "nan");
  EXPECT_EQ(poisoned.losses[1], clean.losses[1]);
  EXPECT_NE(poisoned.losses[2], clean.losses[2]);
  for (const auto& [name, weights] : poisoned.weights) {
    for (const float weight : weights) ASSERT_TRUE(std::isfinite(weight)) << name;
  }
}

TEST(Pipeline, TheFirstNanOfTheDataIsNamedWhereverItGoes) {
  const auto poison = [](Trainer& trainer, int rank) {
    if (rank != 1) return;
    Rank& own = trainer.rank();
    for (const ParameterUnit& unit : own.model.gpt.parameters->units())
      launch(own.streams.compute, Fill{.x = unit.weights.slice(0, 0, 1), .value = std::nan("")});
    own.streams.compute.synchronize();
  };
  testing::internal::CaptureStderr();
  const RunResult run =
      train({.flags = kSmallPipeline + stages(2) + Words{"--max-skipped-steps", "6"}, .ranks = 2, .prepare = poison});
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
  try {
    train({.flags = kSmallPipeline + flags, .ranks = ranks});
    return "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage) << error.what();
    return error.what();
  }
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
  EXPECT_EQ(
      refused(stages(2) +
                  Words{"--pipeline-model-parallel-layout", "Ett|ttL", "--num-virtual-stages-per-pipeline-rank", "2"},
              2),
      "--pipeline-model-parallel-layout and --num-virtual-stages-per-pipeline-rank: expected one of them, got both; "
      "the layout says which layers each stage holds: remove the other flag");
  EXPECT_EQ(refused(stages(3) + Words{"--pipeline-model-parallel-layout", "Ett||ttL"}, 3),
            "--pipeline-model-parallel-layout: expected a layer, the embedding or the loss on each stage, got none on "
            "stage 1; give it a t, or lower --pipeline-model-parallel-size");
}

// Before the first step of a GPU: everything runs once, with graphs a microbatch once more, and nothing of it
// stays.
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
