// Captured graphs under every schedule and layout against eager steps: bit for bit, and really replayed. The table is
// the place for the columns of later systems (sharding, experts, offload).
#include <gtest/gtest.h>

#include <map>

#include "core/layers/hooks.h"
#include "tests/support/matchers.h"
#include "tests/support/op_test.h"
#include "tests/support/tier.h"
#include "tests/unit/train/graph_cells.h"

namespace megalith::test {
namespace {

// The plan of a run says how much it recomputes.
void expect_recomputed(const Cell& cell, const Books& books) {
  if (cell.recompute == "none") return;
  Cell plain = cell;
  plain.recompute = "none";
  const Options options = parse_flags(App::kTrain, tiny_flags() + plain.eager()).options;
  const double without = prepare_run(options, 0, cell.layout.ranks()).plans.train_flops;
  EXPECT_GT(books.flops.at(0), without);
}

// The plan without overlap has other ops.
void expect_overlapped(const Cell& cell, const Books& books) {
  if (!cell.layout.overlap) return;
  Cell plain = cell;
  plain.layout.overlap = false;
  const Options options = parse_flags(App::kTrain, tiny_flags() + plain.graphs()).options;
  EXPECT_NE(books.stats.at(0).digest_of_ops, prepare_run(options, 0, cell.layout.ranks()).plans.graphs.digest_of_ops);
}

// The forms of context parallelism differ in how often two ranks call each other in a layer.
void expect_exchanged(const Cell& cell, const RunResult& run) {
  if (cell.layout.context == 1) return;
  const std::string& form = cell.layout.communication;
  const std::int64_t forward = form == "a2a" ? 2 : 1, backward = form == "p2p" ? 3 : 2;
  const Sizes sizes = sizes_of(cell.layout);
  const std::int64_t layers = sizes.layers / cell.layout.pipeline * sizes.global_batch / cell.layout.data;
  const std::int64_t calls =
      layers * (forward * (cell.steps + std::ssize(run.validation_losses)) + backward * cell.steps);
  for (const RankActivity& rank : run.ranks) {
    if (cell.recompute == "none") {
      EXPECT_EQ(rank.context_calls, calls);
    } else {
      EXPECT_GE(rank.context_calls, calls + layers * cell.steps);
    }
  }
}

void expect_as_eager(const std::vector<Cell>& cells) {
  std::map<Words, RunResult> eager;  // one run for cells that differ only in their captures
  for (const Cell& cell : cells) {
    SCOPED_TRACE(cell.name());
    const Words flags = cell.eager();
    if (!eager.contains(flags)) eager[flags] = train({.flags = flags, .ranks = cell.layout.ranks()});
    Books books;
    const RunResult run = run_graphs(cell, books);
    expect_same_run(run, eager.at(flags));
    EXPECT_EQ(run.hazards, 0);
    expect_evaluated(cell, run);
    expect_acted(run, cell.layout, sizes_of(cell.layout),
                 {.steps = cell.steps, .evaluations = std::ssize(run.validation_losses)}, sizeof(float));
    expect_recomputed(cell, books);
    expect_overlapped(cell, books);
    expect_exchanged(cell, run);
    for (std::size_t rank = 0; rank < run.ranks.size(); ++rank) {
      const RankActivity &with = run.ranks[rank], &without = eager.at(flags).ranks[rank];
      EXPECT_EQ(with.tensor_calls, without.tensor_calls);
      EXPECT_EQ(with.context_calls, without.context_calls);
      EXPECT_EQ(with.buckets_reduced, without.buckets_reduced);
      // Once more if stages capture ahead.
      const auto ahead = [&](ActionKind kind) {
        const std::vector<Action>& actions = books.actions.at(static_cast<int>(rank));
        return cell.layout.pipeline == 1 ? 0 : std::ranges::count(actions, kind, &Action::kind);
      };
      EXPECT_EQ(with.units_gathered, without.units_gathered + ahead(ActionKind::kUnshard));
      EXPECT_EQ(with.units_reduced, without.units_reduced + ahead(ActionKind::kReduceShard));
      EXPECT_EQ(with.transfer.sent, without.transfer.sent);
      EXPECT_EQ(with.transfer.handed_over, without.transfer.handed_over);
    }
    expect_replayed(cell, books);
  }
}

const Words kAttention{"attn"}, kMlp{"mlp"}, kBoth{"attn", "mlp"}, kLayer{"layer"};

// Every schedule with every choice of modules, each pair once, on one rank, whose stage hands over to itself.
class GraphsOnDevice : public testing::TestWithParam<DeviceType> {};
INSTANTIATE_TEST_SUITE_P(Backends, GraphsOnDevice, testing::Values(DeviceType::kCpu, DeviceType::kCuda),
                         [](const auto& device) { return std::string(name_of(device.param)); });

TEST_P(GraphsOnDevice, EverySchedule) {
  if (const std::string reason = missing(GetParam()); !reason.empty()) GTEST_SKIP() << reason;
  const bool on_gpu = GetParam() == DeviceType::kCuda;
  const Words device =
      on_gpu ? Words{"--device", "cuda", "--bf16", "--deterministic-mode", "--hidden-size", "128", "--seq-length", "64"}
             : Words{};
  std::vector<Cell> cells;
  const std::vector<Words> modules{kLayer, kAttention, kMlp, kBoth};
  const Words recompute{"none", "selective", "full"};
  for (std::size_t s = 0; s < schedules().size(); ++s) {
    for (std::size_t m = 0; m < modules.size(); ++m) {
      const std::string& mode = m == 0 ? recompute[s % 3] : recompute[(s + m) % 2];
      cells.push_back(
          {.modules = modules[m], .layout = {.schedule = schedules()[s]}, .recompute = mode, .more = device});
    }
  }
  expect_as_eager(cells);
}

const std::vector<Layout> kLayouts = {{.tensor = 2},
                                      {.tensor = 2, .sequence = true, .overlap = true},
                                      {.context = 2},
                                      {.context = 2, .communication = "all_gather"},
                                      {.context = 2, .communication = "a2a"},
                                      {.pipeline = 2},
                                      {.tensor = 2, .sequence = true},  // this one and the next of the full tier
                                      {.tensor = 2, .sequence = true, .pipeline = 2}};
const std::vector<Sharing> kSharings = {
    Sharing::kNone,  Sharing::kOverlapped, Sharing::kOptimizer,
    Sharing::kUnits, Sharing::kGradients,  Sharing::kUnitsOfTwoInstances};  // the last one of the full tier

// Each two values of two columns once.
TEST(Graphs, EveryLayout) {
  const bool is_quick = one_of(2) > 1;
  const Column sharings = column(kSharings, [](Cell& cell, Sharing sharing) {
    cell.layout.sharing = sharing;
    if (sharing != Sharing::kNone)
      cell.layout.data = (sharing == Sharing::kUnitsOfTwoInstances ? 4 : 2) / cell.layout.context;  // each of two ranks
  });
  const auto has_microbatches = [](const Cell& cell) { return cell.layout.pipeline == 1 || cell.layout.data < 4; };
  const Matrix<kNumGraphFactors> table =
      matrix_of_graphs({.more = {"--check-hazards"}, .steps = is_quick ? 4 : 20, .eval_interval = is_quick ? 2 : 5},
                       kLayouts, sharings, has_microbatches);
  std::map<int, std::size_t> first_values;
  if (is_quick) first_values = {{kGraphLayout, 6}, {kGraphSharing, 5}};
  std::vector<GraphCase> cases = pairwise<kNumGraphFactors>(table.legal_cases(first_values));
  if (is_quick) {  // one of each other column
    cases.push_back({/*layer*/ 0, /*none*/ 0, /*tp2 pp2*/ 7, /*not overlapped*/ 0, /*interleaved*/ 2});
    cases.push_back({/*both*/ 3, /*selective*/ 1, /*tp2*/ 6, /*two instances*/ 5, /*1f1b*/ 1});
  }
  std::vector<Cell> cells;
  for (const GraphCase& c : cases) cells.push_back(table.cell(c));
  EXPECT_GE(cells.size(), 36u);
  expect_as_eager(cells);
}

// Every combination of schedule, modules, recomputation and sharding; the quick tier has some of them.
TEST(Graphs, EveryCombination) {
  std::vector<Cell> cells;
  int number = 0;
  for (const std::string& schedule : schedules()) {
    for (const char* const recompute : {"none", "selective"}) {
      for (const Sharing sharing : {Sharing::kOverlapped, Sharing::kOptimizer, Sharing::kUnits}) {
        for (const Words& modules : {kAttention, kMlp, kBoth, kLayer}) {
          if (number++ % one_of(23) != 0) continue;
          cells.push_back({.modules = modules,
                           .layout = {.data = 2, .schedule = schedule, .sharing = sharing},
                           .recompute = recompute});
        }
      }
    }
  }
  EXPECT_GE(cells.size(), 5u);
  expect_as_eager(cells);
}

TEST(Graphs, DelayedWeightGradients) {
  const Words delayed{"--delay-wgrad-compute"};
  expect_as_eager({
      {.modules = kLayer, .layout = {}, .more = delayed},
      {.modules = kBoth,
       .layout = {.data = 2, .schedule = "interleaved", .sharing = Sharing::kOverlapped},
       .more = delayed},
      {.modules = kLayer, .layout = {.tensor = 2, .sequence = true, .overlap = true}, .more = delayed},
  });
}

}  // namespace
}  // namespace megalith::test
