// The proof that no event wait of the product is missing or idle. The untouched run has no hazard. With any one wait
// left out, the checker finds the race at any timing.
#include <gtest/gtest.h>

#include <map>

#include "tests/support/tier.h"
#include "tests/unit/train/training_support.h"

namespace megalith::test {
namespace {

const Words kRun = {"--train-iters", "2", "--micro-batch-size", "4", "--check-hazards",      "--eval-interval", "1",
                    "--eval-iters",  "1", "--ddp-bucket-size",  "1", "--overlap-grad-reduce"};

TEST(Hazards, AnUntouchedRunIsClean) {
  const RunResult result = train({.flags = kRun, .ranks = 2});
  EXPECT_EQ(result.hazards, 0);
  EXPECT_EQ(result.code, ExitCode::kOk);
  EXPECT_GT(result.event_waits, 4);
  EXPECT_GT(result.buckets_reduced, 1);
}

// Not under ThreadSanitizer, which cannot see the difference: only the checker is not informed of a wait.
#if !defined(__SANITIZE_THREAD__)
TEST(Hazards, EverySuppressedWaitIsFound) { expect_each_wait_needed(5, kRun, 2); }

// Waits around graphs, and waits of captured collectives inside of graphs: there the capture may fail early.
TEST(Hazards, EverySuppressedWaitOfARunWithGraphsIsFound) {
  const Words graphs =
      words("--train-iters 3 --micro-batch-size 4 --eval-iters 0 --check-hazards --cuda-graph-impl local");
  // In the pipeline some waits are idle: after other waits, nothing remains to wait for.
  struct Way {
    const char* flags;
    std::map<std::int64_t, const char*> idle = {};
  };
  const std::map<std::int64_t, const char*> pipeline_idle = {
      {0, "of step 1 the first receive, for memory that nothing had used"},
      {4, "of step 1 the second one, likewise"},
      {16, "of step 2 the first receive, behind the drain before the captures"},
      {20, "of step 2 the second one, for memory that nothing had used since the first one waited"},
      {32, "the host's for the losses of step 1, behind the drain"},
      {37, "of step 3 the second receive, as in step 2"}};
  int refused = 0;
  for (const Way& way :
       {Way{"--tensor-model-parallel-size 2 --sequence-parallel --tp-comm-overlap"},
        Way{"--overlap-grad-reduce --ddp-bucket-size 1 --delay-wgrad-compute"},
        Way{"--swiglu --disable-bias-linear --num-experts 4 --moe-router-topk 2 --moe-ffn-hidden-size 16 "
            "--moe-shared-expert-intermediate-size 16 --moe-shared-expert-overlap --expert-model-parallel-size 2"},
        Way{"--swiglu --disable-bias-linear --num-experts 4 --moe-router-topk 2 --moe-ffn-hidden-size 16 "
            "--expert-model-parallel-size 2 --global-batch-size 16 --overlap-moe-expert-parallel-comm"},
        Way{"--num-layers 4 --pipeline-model-parallel-size 2 --pipeline-schedule zb-v", pipeline_idle}}) {
    SCOPED_TRACE(way.flags);
    const Words run = graphs + words(way.flags);
    const int stride = one_of(9);
    const SuppressedWaits waits = suppress_each_wait(run, 2, stride);
    EXPECT_GT(waits.all, 15);
    std::vector<std::int64_t> idle;
    for (const auto& [ordinal, why] : way.idle) {
      if (ordinal % stride == 0) idle.push_back(ordinal);
    }
    EXPECT_EQ(waits.idle, idle) << "of " << waits.all;
    refused += waits.refused;
  }
  if (one_of(9) == 1) {
    EXPECT_GT(refused, 0);
  }
}
#endif

}  // namespace
}  // namespace megalith::test
