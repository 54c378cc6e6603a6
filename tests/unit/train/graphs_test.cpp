// Captured graphs under every schedule and layout against eager steps: bit for bit, and really replayed. The table is
// the place for the columns of later systems (sharding, experts, offload).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "core/layers/hooks.h"
#include "tests/support/op_test.h"
#include "tests/support/tier.h"
#include "tests/unit/train/graph_cells.h"

namespace megalith {
namespace {

using test::Books;
using test::Cell;
using test::expect_same_run;
using test::RunResult;
using test::Words;
using test::operator+;
using ::testing::HasSubstr;

void expect_as_eager(const std::vector<Cell>& cells) {
  std::map<Words, RunResult> eager;  // one run for cells that differ in what they capture alone
  for (const Cell& cell : cells) {
    SCOPED_TRACE(cell.name());
    const Words flags = cell.eager();
    if (!eager.contains(flags)) eager[flags] = test::train({.flags = flags, .ranks = cell.layout.ranks()});
    Books books;
    const RunResult run = run_graphs(cell, books);
    expect_same_run(run, eager.at(flags));
    EXPECT_TRUE(run.memory_as_planned);
    EXPECT_EQ(run.hazards, 0);
    for (std::size_t rank = 0; rank < run.ranks.size(); ++rank) {
      const test::RankActivity &with = run.ranks[rank], &without = eager.at(flags).ranks[rank];
      EXPECT_EQ(with.tensor_calls, without.tensor_calls);
      EXPECT_EQ(with.context_calls, without.context_calls);
      EXPECT_EQ(with.buckets_reduced, without.buckets_reduced);
      EXPECT_EQ(with.units_gathered, without.units_gathered);
      EXPECT_EQ(with.units_reduced, without.units_reduced);
      EXPECT_EQ(with.units_gathered > 0, cell.layout.gathers_units());
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
  if (const std::string reason = test::missing(GetParam()); !reason.empty()) GTEST_SKIP() << reason;
  const bool on_gpu = GetParam() == DeviceType::kCuda;
  const Words device =
      on_gpu ? Words{"--device", "cuda", "--bf16", "--deterministic-mode", "--hidden-size", "128", "--seq-length", "64"}
             : Words{};
  std::vector<Cell> cells;
  const std::vector<Words> modules{kLayer, kAttention, kMlp, kBoth};
  const Words recompute{"none", "selective", "full"};
  for (std::size_t s = 0; s < test::schedules().size(); ++s) {
    for (std::size_t m = 0; m < modules.size(); ++m) {
      const std::string& mode = m == 0 ? recompute[s % 3] : recompute[(s + m) % 2];
      cells.push_back(
          {.modules = modules[m], .layout = {.schedule = test::schedules()[s]}, .recompute = mode, .more = device});
    }
  }
  expect_as_eager(cells);
}

// Pairs of a layout and what else it meets.
TEST(Graphs, EveryLayout) {
  std::vector<Cell> cells{
      {kLayer, {.tensor = 2}},
      {kBoth, {.tensor = 2, .sequence = true}, "selective"},
      {kLayer, {.tensor = 2, .sequence = true, .overlap = true}},
      {kLayer, {.tensor = 2, .sequence = true, .overlap = true, .schedule = "zb-h1"}},
      {kAttention, {.tensor = 2, .sequence = true, .overlap = true, .schedule = "zb-v"}},
      {kAttention, {.context = 2}},
      {kLayer, {.context = 2, .communication = "all_gather"}, "full"},
      {kLayer, {.schedule = "zb-v", .context = 2, .communication = "a2a"}},
      {kLayer, {.data = 2, .sharing = 1}},
      {kBoth, {.data = 2, .sharing = 2}},
      {kMlp, {.data = 2, .schedule = "interleaved", .sharing = 2}, "selective"},
      {kLayer, {.data = 2, .sharing = 3}, "full"},
      {kAttention, {.data = 2, .sharing = 3}},
      {kLayer, {.data = 2, .sharing = 5}},
      {kBoth, {.data = 4, .sharing = 6}, "selective"},
      {kBoth, {.data = 2, .schedule = "zb-h1", .sharing = 3}, "selective"},
      {kLayer, {.tensor = 2, .sequence = true, .overlap = true, .data = 2, .sharing = 3}},
      {kMlp, {.pipeline = 2, .data = 2, .schedule = "zb-v", .sharing = 3}},
      {kLayer, {.pipeline = 2}},
      {kLayer, {.pipeline = 2, .schedule = "gpipe"}, "full"},
      {kAttention, {.pipeline = 2, .schedule = "interleaved"}},
      {kBoth, {.pipeline = 2, .schedule = "zb-h1"}, "selective"},
      {kLayer, {.pipeline = 2, .schedule = "zb-v"}},
      {kMlp, {.pipeline = 2, .schedule = "dualpipe-v"}},
      {kLayer, {.pipeline = 2, .data = 2, .schedule = "dualpipe-v", .sharing = 2}},
      {kLayer, {.tensor = 2, .sequence = true, .pipeline = 2, .schedule = "interleaved"}},
  };
  for (Cell& cell : cells) cell.more = {"--check-hazards"};
  expect_as_eager(cells);
}

// Every combination of schedule, modules, recomputation and sharding; of the quick tier's some.
TEST(Graphs, EveryCombination) {
  std::vector<Cell> cells;
  int number = 0;
  for (const std::string& schedule : test::schedules()) {
    for (const char* const recompute : {"none", "selective"}) {
      for (const int sharing : {1, 2, 3}) {
        for (const Words& modules : {kAttention, kMlp, kBoth, kLayer}) {
          if (number++ % test::one_of(23) != 0) continue;
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
      {.modules = kBoth, .layout = {.data = 2, .schedule = "interleaved", .sharing = 1}, .more = delayed},
      {.modules = kLayer, .layout = {.tensor = 2, .sequence = true, .overlap = true}, .more = delayed},
  });
}

}  // namespace
}  // namespace megalith
