// --rampup-batch-size: at each stage a step has more microbatches, its memory is planned and its graphs are captured
// again. The bits equal those of separate runs, each of one batch, that are resumed at the begin of a stage.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <iterator>
#include <set>

#include "apps/planning/plan_steps.h"
#include "core/ops/elementwise/elementwise.h"
#include "tests/support/matchers.h"
#include "tests/support/op_test.h"
#include "tests/support/tier.h"
#include "tests/unit/train/layouts.h"

namespace megalith::test {
namespace {

// Steps 1 to 3 have one unit of samples, 4 and 5 two, 6 and 7 three; one sample of the last unit remains.
constexpr int kSteps = 7;
const std::vector<int> kUnitsOfStep{1, 1, 1, 2, 2, 3, 3};

struct Cell {
  std::string name;
  Layout layout = {};
  Words flags = {};
  int microbatches = 1;  // per unit and rank
  bool graphs = false;
  bool on_gpu = false;
  std::string room = "", enough = "";  // --moe-expert-rank-capacity-factor, too small and large enough

  int unit() const { return microbatches * layout.data; }
  Words base() const {
    return sizes_for(layout) + flags + layout.flags() +
           words(fmt::format("--train-iters 0 --train-samples {} --lr-warmup-samples {} --hidden-dropout 0.1",
                             13 * unit() + 1, 2 * unit())) +
           (graphs ? words("--cuda-graph-impl local") : Words{}) +
           (on_gpu ? words("--device cuda --deterministic-mode") : Words{});
  }
  Words of_batch(int units) const { return base() + Words{"--global-batch-size", std::to_string(units * unit())}; }
  Words ramp() const { return of_batch(3) + words(fmt::format("--rampup-batch-size {0} {0} {1}", unit(), 6 * unit())); }
};

void append(RunResult& all, RunResult next) {
  next.losses.insert(next.losses.begin(), all.losses.begin(), all.losses.end());
  next.grad_norms.insert(next.grad_norms.begin(), all.grad_norms.begin(), all.grad_norms.end());
  all = std::move(next);
}

// Runs that end after these steps, one after the other.
RunResult in_parts(const std::vector<std::pair<Words, int>>& parts, int ranks) {
  const TestFolder folder;
  RunResult all;
  for (const auto& [flags, end] : parts) {
    const Words kept{"--save", folder.path("kept"), "--load", folder.path("kept")};
    append(all, train({.flags = flags + kept + Words{"--exit-interval", std::to_string(end)}, .ranks = ranks}));
    EXPECT_EQ(all.code, end < kSteps ? ExitCode::kStoppedOnRequest : ExitCode::kOk);
    EXPECT_EQ(std::ssize(all.losses), end);
  }
  return all;
}

void expect_same(const RunResult& got, const RunResult& want) {
  expect_same_run(got, want);
  EXPECT_TRUE(got.whole_state == want.whole_state);
  EXPECT_EQ(got.hazards, 0);
  EXPECT_TRUE(got.copies_agree);
}

// The memory at the end is the plan's, and the peak is that of the largest stage. This is mostly the last one, but
// layouts of a few microbatches may be as large.
void expect_planned_memory(const Cell& cell, Trainer& trainer, int index) {
  const Rank& rank = trainer.rank();
  EXPECT_EQ(rank.memory.arena.touched_bytes(), trainer.plans().block_bytes());
  if (rank.offload) {
    EXPECT_EQ(rank.offload->host.touched_bytes(), trainer.plans().host.peak_bytes);
  }
  if (!cell.room.empty()) return;  // other plans than these until it was regrown
  std::size_t arena = 0;
  for (const int units : {1, 2, 3}) {
    RunConfig config = rank.config;
    config.microbatches = units * cell.microbatches;
    arena = std::max(arena, plan_steps(rank.options, config, index, trainer.plans().offload).block_bytes());
  }
  const MemoryUse use = memory_use(trainer.plans());
  EXPECT_EQ(rank.memory.pool.peak_allocated_bytes(), use.total() - use.arena + arena);
}

// Phases of the first layer's forwards on rank 0, by step.
using Phases = std::vector<std::set<Phase>>;
std::function<void(Trainer&, int)> note_phases(const Cell& cell, Phases& phases) {
  return [&phases, cell](Trainer& trainer, int rank) {
    if (rank != 0) return;
    phases.assign(kSteps, {});
    trainer.rank().runner.hooks(1).add(
        HookPoint::kPreForward, [&phases, cell, calls = 0](const HookContext& at) mutable {
          if (at.phase == Phase::kCaptureAhead) return;  // once more for each microbatch
          int step = 0;
          for (int done = calls++; step < kSteps; ++step) {
            const int of_step = kUnitsOfStep[static_cast<std::size_t>(step)] * cell.microbatches;
            if (done < of_step) break;
            done -= of_step;
          }
          ASSERT_LT(step, kSteps) << "more microbatches than the ramp has";
          phases[static_cast<std::size_t>(step)].insert(at.phase);
        });
  };
}

void expect_ramps(const Cell& cell) {
  SCOPED_TRACE(cell.name);
  const int ranks = cell.layout.ranks();
  const Words few = cell.room.empty() ? Words{} : Words{"--moe-expert-rank-capacity-factor", cell.room};
  const Words many = cell.room.empty() ? Words{} : Words{"--moe-expert-rank-capacity-factor", cell.enough};
  Phases phases;
  // Steps that are done again, and a GPU's library pass, call hooks too.
  const bool notes = cell.room.empty() && !cell.on_gpu;
  std::vector<std::int64_t> microbatches(static_cast<std::size_t>(ranks));
  std::vector<std::size_t> peaks(static_cast<std::size_t>(ranks));  // ahead of the first step
  const auto finish = [&](Trainer& trainer, int rank) {
    microbatches[static_cast<std::size_t>(rank)] = trainer.rank().config.microbatches;
    expect_planned_memory(cell, trainer, rank);
    if (cell.room.empty()) {
      EXPECT_EQ(trainer.rank().memory.pool.peak_allocated_bytes(), peaks[static_cast<std::size_t>(rank)]);
    }
    EXPECT_EQ(trainer.rank().graphs != nullptr && trainer.rank().graphs->complete(), cell.graphs);
  };
  const auto prepare = [&](Trainer& trainer, int rank) {
    peaks[static_cast<std::size_t>(rank)] = trainer.rank().memory.pool.peak_allocated_bytes();
    if (notes) note_phases(cell, phases)(trainer, rank);
  };
  const RunResult ramp = train(
      {.flags = cell.ramp() + few + Words{"--check-hazards"}, .ranks = ranks, .prepare = prepare, .finish = finish});
  EXPECT_EQ(ramp.code, ExitCode::kOk);
  EXPECT_EQ(std::ssize(ramp.losses), kSteps);
  EXPECT_THAT(microbatches, Each(3 * cell.microbatches));
  if (!cell.room.empty()) {
    EXPECT_GT(ramp.regrows.back(), 0);
  } else if (notes && cell.graphs &&
             cell.layout.pipeline == 1) {  // the second step captures, and the first of a stage again
    for (const int step : {1, 3, 5})
      EXPECT_TRUE(phases[static_cast<std::size_t>(step)].contains(Phase::kCapture)) << step;
    for (const int step : {2, 4, 6})
      EXPECT_THAT(phases[static_cast<std::size_t>(step)], ElementsAre(Phase::kReplay)) << step;
  } else if (notes && !cell.graphs) {
    EXPECT_THAT(phases, Each(ElementsAre(Phase::kEager)));
  }
  const RunResult separate =
      in_parts({{cell.of_batch(1) + many, 3}, {cell.of_batch(2) + many, 5}, {cell.of_batch(3) + many, kSteps}}, ranks);
  expect_same(ramp, separate);
  // Ended and resumed within each stage.
  expect_same(in_parts({{cell.ramp() + few, 2}, {cell.ramp() + few, 4}, {cell.ramp() + few, kSteps}}, ranks), ramp);
}

const Words kMoves = offload({"attn_norm", "act"});

std::vector<Cell> cells() {
  std::vector<Cell> cells{
      {.name = "plain"},
      {.name = "graphs and activations on the host", .flags = kMoves, .microbatches = 2, .graphs = true},
      {.name = "units, graphs, activations on the host",
       .layout = {.data = 2, .sharing = Sharing::kUnits},
       .flags = kMoves + words("--fsdp-prefetch 2 --fsdp-unit-slots 3"),
       .graphs = true},
      {.name = "units in two instances",
       .layout = {.data = 4, .sharing = Sharing::kUnitsOfTwoInstances},
       .microbatches = 2},
      {.name = "a sharded optimizer", .layout = {.data = 2, .sharing = Sharing::kOptimizer}, .graphs = true},
      {.name = "recomputed layers",
       .layout = {.data = 2, .sharing = Sharing::kUnitsSummedLast},
       .flags = words("--recompute-granularity full --recompute-method uniform"),
       .graphs = true},
      {.name = "split rows", .layout = {.tensor = 2, .sequence = true, .overlap = true, .context = 2}, .graphs = true},
  };
  for (const std::string& schedule : schedules()) {
    cells.push_back({.name = schedule,
                     .layout = {.pipeline = 2, .schedule = schedule},
                     .microbatches = schedule == "dualpipe-v"    ? 4
                                     : schedule == "interleaved" ? 2
                                                                 : 1,
                     .graphs = true});
  }
  cells.push_back({.name = "units in a pipeline",
                   .layout = {.pipeline = 2, .data = 2, .schedule = "interleaved", .sharing = Sharing::kUnits},
                   .flags = kMoves,
                   .microbatches = 2,
                   .graphs = true});
  const Words experts =
      llama_flags() + words("--seq-length 128 --ffn-hidden-size 32 --num-experts 4 --moe-router-topk 2");
  cells.push_back({.name = "experts whose room is regrown",
                   .layout = {.data = 2, .sharing = Sharing::kUnits, .expert = 2},
                   .flags = experts,
                   .microbatches = 2,
                   .room = "0.5",
                   .enough = "4"});
  cells.push_back({.name = "experts in graphs whose room is regrown",
                   .layout = {.pipeline = 2, .data = 2, .expert = 2},
                   .flags = experts + words("--cuda-graph-modules attn moe"),
                   .graphs = true,
                   .room = "0.5",
                   .enough = "4"});
  const int one = one_of(3);
  std::vector<Cell> chosen;
  for (int i = one - 1; i < std::ssize(cells); i += one) chosen.push_back(cells[static_cast<std::size_t>(i)]);
  return chosen;
}

class RampTest : public testing::TestWithParam<Cell> {};

TEST_P(RampTest, HasTheBitsOfSeparateRuns) { expect_ramps(GetParam()); }

INSTANTIATE_TEST_SUITE_P(All, RampTest, testing::ValuesIn(cells()), [](const testing::TestParamInfo<Cell>& cell) {
  std::string name = cell.param.name;
  for (char& c : name)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  return name;
});

TEST(RampCuda, HasTheBitsOfSeparateRuns) {
  if (const std::string reason = missing(DeviceType::kCuda); !reason.empty()) GTEST_SKIP() << reason;
  const Words sizes = words("--hidden-size 128 --num-attention-heads 2 --seq-length 64");
  expect_ramps({.name = "eager", .flags = sizes, .on_gpu = true});
  expect_ramps(
      {.name = "graphs", .flags = sizes + kMoves + Words{"--bf16"}, .microbatches = 2, .graphs = true, .on_gpu = true});
}

// The memory of the largest stage is allocated ahead of the first step, and equals the plan for that batch.
TEST(Ramp, TheLargestStageHasItsMemoryBeforeTheFirstStep) {
  const Cell cell{.name = "pipeline", .layout = {.pipeline = 2}};
  std::vector<std::size_t> before(2), small(2), largest(2);
  train({.flags = cell.ramp() + Words{"--exit-interval", "1"},
         .ranks = 2,
         .prepare =
             [&](Trainer& trainer, int rank) {
               before[static_cast<std::size_t>(rank)] = trainer.rank().memory.pool.peak_allocated_bytes();
             },
         .finish = [&](Trainer& trainer,
                       int rank) { small[static_cast<std::size_t>(rank)] = memory_use(trainer.plans()).total(); }});
  train({.flags = cell.of_batch(3) + Words{"--exit-interval", "1"},
         .ranks = 2,
         .finish = [&](Trainer& trainer, int rank) {
           largest[static_cast<std::size_t>(rank)] = memory_use(trainer.plans()).total();
         }});
  EXPECT_EQ(before, largest);
  EXPECT_LT(small[0], largest[0]);  // with two microbatches the first stage has two in flight
}

// An evaluation uses --global-batch-size at each stage, as in Megatron-LM.
TEST(Ramp, EvaluationsTakeTheWholeBatch) {
  const Cell cell{.name = "data", .layout = {.data = 2, .sharing = Sharing::kUnits}, .graphs = true};
  const Words evaluates = words("--eval-iters 2 --eval-interval 3");
  const RunResult ramp = train({.flags = cell.ramp() + evaluates + Words{"--exit-interval", "3"}, .ranks = 2});
  ASSERT_EQ(ramp.validation_losses.size(), 1U);
  const TestFolder folder;
  const Words kept{"--save", folder.path("kept"), "--load", folder.path("kept")};
  train({.flags = cell.of_batch(1) + kept + Words{"--exit-interval", "3"}, .ranks = 2});
  const RunResult alone = train({.flags = cell.of_batch(3) + kept + evaluates + Words{"--skip-train"}, .ranks = 2});
  EXPECT_EQ(alone.validation_losses, ramp.validation_losses);
}

// The last step of a stage is skipped: it is run again with the microbatches that it had, and the next stage begins.
TEST(Ramp, AStepThatIsSkippedBeforeAStageIsExplained) {
  const Cell cell{.name = "plain"};
  std::int64_t calls = 0;
  const auto poison = [&calls](Trainer& trainer, int) {
    Rank& own = trainer.rank();
    own.runner.hooks(0).add(HookPoint::kPostWeight, [&own, &calls](const HookContext&) {
      if (++calls != 3 && calls != 4) return;  // in step 3 and its rerun
      launch(own.streams.compute,
             Fill{.x = own.model.gpt.parameters->units()[1].main_grads.slice(0, 5, 1), .value = std::nan("")});
    });
  };
  const RunResult run = train({.flags = cell.ramp(), .prepare = poison});
  EXPECT_EQ(run.code, ExitCode::kOk);
  EXPECT_EQ(run.skipped_steps, 1);
  EXPECT_EQ(std::ssize(run.losses), kSteps);
  EXPECT_EQ(calls, 13 + 1);
}

}  // namespace
}  // namespace megalith::test
