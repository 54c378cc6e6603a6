// Runs with captured graphs, for the tests that compare them with others: cells of a table.
#pragma once

#include <map>
#include <string>

#include "tests/unit/train/layouts.h"

namespace megalith::test {

struct Cell {
  Words modules;  // in graphs
  Layout layout;
  std::string recompute = "none";  // none, selective, full
  Words more = {};
  int steps = 20;
  int eval_interval = 5;  // below `steps`: evaluations stand between steps too

  std::string name() const;
  bool delays_weights() const;  // the gradients of all
  Words eager() const;
  Words graphs() const;
};

struct Books {
  std::map<int, GraphedRunner::Stats> stats;  // by rank
  std::map<int, RunPlan> plans;
  std::map<int, std::vector<Action>> actions;  // of a step
  std::map<int, StepGraphs> planned;
  std::map<int, double> flops;  // planned, of a step
};

void note(Books& books, Trainer& trainer, int rank);  // of a run with graphs that has ended
RunResult run_graphs(const Cell& cell, Books& books);
RunResult run_eagerly(const Cell& cell);
// In graphs where it names modules.
RunResult run(const Cell& cell, Books& books);

// There are evaluations between steps.
void expect_evaluated(const Cell& cell, const RunResult& run);
// Each rank captured what the plan says, once, and replayed each run in every step but the first. Weight gradients that
// are delayed are graphs of their own.
void expect_replayed(const Cell& cell, const Books& books);

}  // namespace megalith::test
