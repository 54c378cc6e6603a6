// Runs with captured graphs, for the tests that compare them with others. They are cells of a table, whose columns must
// change no bit.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/support/pairwise.h"
#include "tests/unit/train/layouts.h"

namespace megalith::test {

struct Cell {
  Words modules;  // in graphs
  Layout layout;
  std::string recompute = "none";  // none, selective, full
  Words more = {};
  int steps = 20;
  int eval_interval = 5;  // below `steps`: evaluations between steps too

  std::string name() const;
  bool delays_weights() const;  // the gradients of all
  Words eager() const;
  Words graphs() const;
};

struct Books {
  std::map<int, GraphedRunner::Stats> stats;  // key: rank
  std::map<int, GraphRunPlan> plans;
  std::map<int, std::vector<Action>> actions;  // actions of a step
  std::map<int, StepGraphs> planned;
  std::map<int, double> flops;  // planned, of a step
};

void note(Books& books, Trainer& trainer, int rank);  // for a finished run with graphs
RunResult run_graphs(const Cell& cell, Books& books);
RunResult run_eagerly(const Cell& cell);
// Runs in graphs if the cell lists modules.
RunResult run(const Cell& cell, Books& books);

// There are evaluations between steps.
void expect_evaluated(const Cell& cell, const RunResult& run);
// Each rank captured the plan's graphs once, and replayed each run in every step but the first. Delayed weight
// gradients have separate graphs.
void expect_replayed(const Cell& cell, const Books& books);

// A column of a table: for each of its values, its effect on a cell.
using Column = std::vector<std::function<void(Cell&)>>;
template <class T, class Change>
Column column(const std::vector<T>& values, const Change& change) {
  Column column;
  for (const T& value : values) column.push_back([change, value](Cell& cell) { change(cell, value); });
  return column;
}
Column module_column(const std::vector<Words>& modules);
Column flag_column(const std::vector<Words>& flags);       // more of them
Column layout_column(const std::vector<Layout>& layouts);  // but for the next two
Column sharing_column(const std::vector<Sharing>& sharings);
Column schedule_column();  // all schedules

// A table of cells.
template <std::size_t N>
struct Matrix {
  using Case = Combination<N>;
  Cell base;
  std::array<Column, N> columns;
  std::function<bool(const Case&)> is_legal;
  std::function<Case(const Case&)> plain = nullptr;  // case for comparison: a run of the same class of bits
  mutable std::map<Case, RunResult> plain_runs = {};

  Cell cell(const Case& c) const {
    Cell cell = base;
    for (std::size_t i = 0; i < N; ++i) columns[i][static_cast<std::size_t>(c[i])](cell);
    return cell;
  }
  // All legal cases; the columns of `first_values` are limited to their first values.
  std::vector<Case> legal_cases(const std::map<int, std::size_t>& first_values = {}) const {
    std::array<std::vector<int>, N> values;
    for (std::size_t i = 0; i < N; ++i) {
      const auto first = first_values.find(static_cast<int>(i));
      values[i] = numbers(first == first_values.end() ? columns[i].size() : first->second);
    }
    std::vector<Case> cases = combinations<N>(values);
    std::erase_if(cases, [this](const Case& c) { return !is_legal(c); });
    return cases;
  }
  // Value of this case in a column whose values rotate, each for `length` cases.
  int by_turns(std::size_t number, int factor, std::size_t length) const {
    return static_cast<int>(number / length % columns[static_cast<std::size_t>(factor)].size());
  }
  const RunResult& plain_run(const Case& c) const {
    const auto [run, is_new] = plain_runs.try_emplace(plain(c));
    if (is_new) run->second = run_eagerly(cell(run->first));
    return run->second;
  }
  // Runs the cases until one fails. check(case, cell, run, plain run) checks all other equal results.
  template <class Check>
  void expect_no_bit_changed(const std::vector<Case>& cases, const Check& check) const {
    for (const Case& c : cases) {
      const Cell of = cell(c);
      SCOPED_TRACE(of.name() + testing::PrintToString(of.more));
      const RunResult& want = plain_run(c);
      Books books;
      const RunResult got = run(of, books);
      expect_same_run(got, want);
      EXPECT_TRUE(got.copies_agree);
      EXPECT_TRUE(got.memory_as_planned);
      EXPECT_EQ(got.hazards, 0);
      EXPECT_EQ(books.stats.empty(), of.modules.empty());
      expect_evaluated(of, got);
      expect_replayed(of, books);
      check(c, of, got, want);
      if (testing::Test::HasFailure()) return;
    }
  }
};

// Graphs of dense models: sets of modules, recomputation, layouts, sharding, schedules.
enum GraphFactor { kGraphModules, kGraphRecompute, kGraphLayout, kGraphSharing, kGraphSchedule, kNumGraphFactors };
using GraphCase = Combination<kNumGraphFactors>;
Matrix<kNumGraphFactors> matrix_of_graphs(const Cell& base, const std::vector<Layout>& layouts, const Column& sharings,
                                          const std::function<bool(const Cell&)>& fits);

}  // namespace megalith::test
