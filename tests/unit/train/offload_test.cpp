// Kept activations on the host between forward and backward: the bits of the same run that keeps them on the device,
// under every schedule, sharding and with graphs; each copy out has its copy back, and no memory is used beyond the
// plan's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/tier.h"
#include "tests/unit/train/layouts.h"

namespace megalith {
namespace {

using test::expect_same_run;
using test::RunResult;
using test::Words;
using test::operator+;

const Words kEvaluations = {"--eval-interval", "2", "--eval-iters", "1", "--train-iters", "3"};
Words modules(const Words& kinds) {
  return Words{"--fine-grained-activation-offloading", "--min-offload-bytes", "0", "--offload-modules"} + kinds;
}
const Words kAll = modules({"attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "fc1", "act", "fc2"});

// A step's actions: so many of the first microbatch's alone are of the warm-up.
void expect_moved(const RunResult& run, std::int64_t steps, std::int64_t microbatches, std::int64_t chunks) {
  for (const test::RankActivity& rank : run.ranks) {
    EXPECT_GT(rank.slots, 0);
    EXPECT_GE(rank.slots, chunks);
    const std::int64_t times = steps * microbatches + 1;
    EXPECT_EQ(rank.offload.offloads, times * rank.slots);
    EXPECT_EQ(rank.offload.reloads, times * rank.slots);
    EXPECT_EQ(rank.offload.bytes_out, times * rank.slot_bytes);
    EXPECT_EQ(rank.offload.bytes_back, times * rank.slot_bytes);
    EXPECT_GE(rank.host_planned, static_cast<std::size_t>(rank.slot_bytes) / static_cast<std::size_t>(chunks));
  }
}

void expect_same(const RunResult& run, const RunResult& want) {
  expect_same_run(run, want);
  EXPECT_EQ(run.validation_losses, want.validation_losses);
  EXPECT_TRUE(run.gradients == want.gradients);
  EXPECT_TRUE(run.copies_agree);
  EXPECT_TRUE(run.memory_as_planned);
  EXPECT_EQ(run.hazards, 0);
  EXPECT_EQ(run.code, ExitCode::kOk);
}

struct Case {
  std::string name;
  test::Layout layout;
  Words more = {};
};
void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }

class Offload : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(
    Layouts, Offload,
    testing::Values(
        Case{"plain", {}},                                                                                 //
        Case{"llama_bf16", {}, Words{"--bf16"} + test::llama_flags() + Words{"--ffn-hidden-size", "32"}},  //
        Case{"gpipe", {.schedule = "gpipe"}},                                                              //
        Case{"pp2", {.pipeline = 2}},                                                                      //
        Case{"pp2_interleaved", {.pipeline = 2, .schedule = "interleaved"}},                               //
        Case{"pp2_zb_h1", {.pipeline = 2, .schedule = "zb-h1"}},                                           //
        Case{"pp2_zb_v", {.pipeline = 2, .schedule = "zb-v"}},                                             //
        Case{"pp2_dualpipe_v", {.pipeline = 2, .schedule = "dualpipe-v"}},                                 //
        Case{"tp2_sp_overlap", {.tensor = 2, .sequence = true, .overlap = true}},                          //
        Case{"tp2_pp2_zb_h1", {.tensor = 2, .sequence = true, .overlap = true, .pipeline = 2, .schedule = "zb-h1"}},
        Case{"cp2", {.context = 2}},                     //
        Case{"dp2_sharded", {.data = 2, .sharing = 2}},  //
        Case{"dp2_units", {.data = 2, .sharing = 3}},    //
        Case{"pp2_units_zb_v", {.pipeline = 2, .data = 2, .schedule = "zb-v", .sharing = 3}}),
    [](const auto& one) { return one.param.name; });

TEST_P(Offload, HasTheBitsOfKeeping) {
  const auto& [name, layout, more] = GetParam();
  const Words flags = test::sizes_for(layout) + layout.flags() + kEvaluations + more + Words{"--hidden-dropout", "0.1"};
  const RunResult keep = test::train({.flags = flags, .ranks = layout.ranks()});
  const std::int64_t microbatches = 8 / layout.data, chunks = layout.chunks();
  for (const Words& way : {Words{"--check-hazards"}, Words{"--cuda-graph-impl", "local"}}) {
    SCOPED_TRACE(way[0]);
    const RunResult run = test::train({.flags = flags + kAll + way, .ranks = layout.ranks()});
    expect_same(run, keep);
    expect_moved(run, 3, microbatches, chunks);
  }
}

}  // namespace
}  // namespace megalith
