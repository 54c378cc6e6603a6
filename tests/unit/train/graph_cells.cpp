#include "tests/unit/train/graph_cells.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>

namespace megalith::test {

std::string Cell::name() const {
  std::string name = layout.name() + " " + layout.schedule + " recompute " + recompute;
  for (const std::string& module : modules) name += " " + module;
  return name;
}

bool Cell::delays_weights() const {
  return layout.schedule == "zb-h1" || layout.schedule == "zb-v" ||
         std::ranges::count(more, "--delay-wgrad-compute") > 0;
}

Words Cell::eager() const {
  Words flags = sizes_for(layout) + layout.flags() + Words{"--hidden-dropout", "0.1",
                                                           "--train-iters",    std::to_string(steps),
                                                           "--eval-interval",  std::to_string(eval_interval),
                                                           "--eval-iters",     "1"} +
                more;
  if (recompute == "selective")
    flags = flags +
            Words{"--recompute-granularity", "selective", "--recompute-modules", "core_attn", "layernorm", "mlp_act"};
  if (recompute == "full") flags = flags + Words{"--recompute-granularity", "full"};
  return flags;
}

Words Cell::graphs() const { return eager() + Words{"--cuda-graph-impl", "local", "--cuda-graph-modules"} + modules; }

void note(Books& books, Trainer& trainer, int rank) {
  const Rank& own = trainer.rank();
  books.stats[rank] = own.graphs->stats();
  books.plans[rank] = own.graphs->plan();
  books.actions[rank] = trainer.step().actions().train;
  books.planned[rank] = trainer.plans().graphs;
  books.flops[rank] = trainer.plans().train_flops;
}

RunResult run_graphs(const Cell& cell, Books& books) {
  std::mutex mutex;
  return train({.flags = cell.graphs(), .ranks = cell.layout.ranks(), .finish = [&](Trainer& trainer, int rank) {
                  const std::lock_guard lock(mutex);
                  note(books, trainer, rank);
                }});
}

RunResult run_eagerly(const Cell& cell) { return train({.flags = cell.eager(), .ranks = cell.layout.ranks()}); }

void expect_evaluated(const Cell& cell, const RunResult& run) {
  EXPECT_LT(cell.eval_interval, cell.steps);
  const int between = (cell.steps - 1) / cell.eval_interval;
  EXPECT_EQ(std::ssize(run.validation_losses), between + 1);  // and one after the last step
}

RunResult run(const Cell& cell, Books& books) {
  return cell.modules.empty() ? run_eagerly(cell) : run_graphs(cell, books);
}

namespace {

// Runs of weight gradients only; dualpipe-v delays those of some microbatches, and runs the others with their data's.
void expect_split_backward(const std::vector<Action>& actions, const GraphRunPlan& plan, bool all) {
  int alone = 0;
  for (const GraphRun& run : plan.runs) {
    const auto first = actions.begin() + static_cast<std::ptrdiff_t>(run.first);
    const auto weights = std::count_if(first, first + static_cast<std::ptrdiff_t>(run.count),
                                       [](const Action& a) { return a.kind == ActionKind::kBackwardWeight; });
    if (weights == 0 || (!all && first->kind != ActionKind::kBackwardWeight)) continue;
    EXPECT_EQ(weights, run.count) << "from " << to_string(*first) << " on";
    ++alone;
  }
  EXPECT_GT(alone, 0);
}

}  // namespace

Column module_column(const std::vector<Words>& modules) {
  return column(modules, [](Cell& cell, const Words& value) { cell.modules = value; });
}
Column flag_column(const std::vector<Words>& flags) {
  return column(flags, [](Cell& cell, const Words& value) { cell.more = cell.more + value; });
}
Column layout_column(const std::vector<Layout>& layouts) {
  return column(layouts, [](Cell& cell, Layout value) {
    value.schedule = cell.layout.schedule;
    value.sharing = cell.layout.sharing;
    cell.layout = value;
  });
}
Column sharing_column(const std::vector<Sharing>& sharings) {
  return column(sharings, [](Cell& cell, Sharing value) { cell.layout.sharing = value; });
}
Column schedule_column() {
  return column(schedules(), [](Cell& cell, const std::string& value) { cell.layout.schedule = value; });
}

Matrix<kNumGraphFactors> matrix_of_graphs(const Cell& base, const std::vector<Layout>& layouts, const Column& sharings,
                                          const std::function<bool(const Cell&)>& fits) {
  const Words recomputed{"none", "selective", "full"};
  Matrix<kNumGraphFactors> matrix{
      .base = base,
      .columns = {module_column({{"layer"}, {"attn"}, {"mlp"}, {"attn", "mlp"}}),
                  column(recomputed, [](Cell& cell, const std::string& value) { cell.recompute = value; }),
                  layout_column(layouts), sharings, schedule_column()}};
  matrix.is_legal = [columns = matrix, fits](const GraphCase& c) {
    const Cell cell = columns.cell(c);
    const bool is_one_segment = cell.recompute == "full";  // a full layer
    return fits(cell) && (!is_one_segment || cell.modules == Words{"layer"});
  };
  return matrix;
}

void expect_replayed(const Cell& cell, const Books& books) {
  for (const auto& [rank, stats] : books.stats) {
    SCOPED_TRACE(testing::Message() << "rank " << rank);
    const GraphRunPlan& plan = books.plans.at(rank);
    EXPECT_GT(plan.graphs, 0);
    EXPECT_GT(plan.runs.size(), 0u);
    EXPECT_EQ(stats.graphs, plan.graphs);
    EXPECT_EQ(stats.graphs, books.planned.at(rank).graphs);
    EXPECT_EQ(stats.ops, books.planned.at(rank).captured_ops);
    EXPECT_EQ(stats.digest_of_ops, books.planned.at(rank).digest_of_ops) << "other ops than the plan's, by name";
    EXPECT_EQ(std::ssize(plan.runs), books.planned.at(rank).replays);
    EXPECT_GT(stats.ops, stats.graphs);
    if (cell.delays_weights() || cell.layout.schedule == "dualpipe-v")
      expect_split_backward(books.actions.at(rank), plan, cell.delays_weights());
    EXPECT_EQ(stats.replays, static_cast<std::int64_t>(plan.runs.size()) * (cell.steps - 1));
  }
}

}  // namespace megalith::test
