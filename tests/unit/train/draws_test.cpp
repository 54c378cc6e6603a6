// Random draws of layouts and features on thread ranks (draws.h): MEGALITH_DRAWS of them, of SEED, from
// MEGALITH_FIRST_DRAW on.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "tests/support/tier.h"
#include "tests/unit/train/draws.h"

namespace megalith::test {
namespace {

int number_of(const char* variable, int otherwise) {
  const char* const text = std::getenv(variable);
  return text != nullptr ? std::atoi(text) : otherwise;
}

Outcome run_on_threads(const Words& flags, int ranks) {
  try {
    const Options options = parse_flags(App::kTrain, tiny_flags() + flags).options;
    static_cast<void>(prepare_run(options, 0, ranks));
  } catch (const Error& error) {
    return {.refused = error.code() == ExitCode::kUsage, .problem = error.what()};
  }
  try {
    return {.run = train({.flags = flags + Words{"--check-hazards"}, .ranks = ranks})};
  } catch (const Error& error) {
    return {.refused = error.code() == ExitCode::kUsage, .problem = error.what()};
  } catch (const std::exception& error) {
    return {.problem = error.what()};
  }
}

TEST(Draws, ChangeNoBit) {
  const int seed = number_of("SEED", 1), first = number_of("MEGALITH_FIRST_DRAW", 0);
  const int count = number_of("MEGALITH_DRAWS", 200 / one_of(12));
  const TestFolder scratch;
  const std::string folder = scratch.path("checkpoints");
  Draws draws({.run = run_on_threads, .folder = folder, .clear = [&] { std::filesystem::remove_all(folder); }});
  for (int number = first; number < first + count; ++number) {
    const std::string problem = draws.run({.seed = static_cast<std::uint64_t>(seed), .number = number});
    if (!problem.empty()) ADD_FAILURE() << problem;
  }
  const DrawTotals& totals = draws.totals();
  fmt::print("seed {}: {}", seed, text_of(totals));
  EXPECT_EQ(totals.draws, count);
  if (count < 40) return;
  EXPECT_GE(totals.graphs, count / 8);
  EXPECT_GE(totals.offloads, count / 16);
  EXPECT_GE(totals.units, count / 16);
  EXPECT_GE(totals.with_one_rank, count / 16);
  EXPECT_GE(totals.resumed, count / 16);
  EXPECT_GE(totals.skips, 1);
  EXPECT_GE(totals.regrows, count / 200);
}

// A program that fails if two features meet in an unbroken run: draws find it and are reduced to these two.
TEST(Draws, AFailureIsReducedToTheFewestFlagsAndPrintedAsACommand) {
  const auto has = [](const Words& flags, const std::string& word) { return std::ranges::count(flags, word) > 0; };
  const auto run = [&](const Words& flags, int ranks) {
    if (has(flags, "--moe-combine-groups")) return Outcome{.refused = true, .problem = "--moe-combine-groups: no"};
    Outcome outcome;
    outcome.run.losses = {"1", "2", "3", "4"};
    outcome.run.ranks.resize(static_cast<std::size_t>(ranks));
    outcome.run.code = has(flags, "--save") ? ExitCode::kStoppedOnRequest : ExitCode::kOk;
    if (has(flags, "--save")) outcome.run.losses.resize(2);
    if (has(flags, "--load")) outcome.run.losses = {"3", "4"};
    const bool unbroken = !has(flags, "--save") && !has(flags, "--load");
    if (unbroken && has(flags, "full") && has(flags, "--bf16")) outcome.run.losses.back() = "5";
    return outcome;
  };
  Draws draws({.run = run, .folder = "x", .clear = [] {}});
  std::vector<std::string> smallest;
  for (const int dtype : {1, 2, 3}) {
    for (const int recomputation : {1, 2, 3}) {
      Draw least{.values = std::vector<int>(rows().size())};
      for (std::size_t r = 0; r < rows().size(); ++r) {
        if (rows()[r].name == "dtype") least.values[r] = dtype;
        if (rows()[r].name == "recomputation") least.values[r] = recomputation;
      }
      smallest.push_back("\n" + command_of(tiny_flags() + least.flags(), 1) + "\nto compare with:\n");
    }
  }
  int found = 0;
  for (int number = 0; number < 100; ++number) {
    const std::string problem = draws.run({.seed = 3, .number = number});
    if (problem.empty()) continue;
    ++found;
    EXPECT_EQ(problem.substr(0, problem.find(':')), fmt::format("seed 3, draw {}", number));
    EXPECT_TRUE(std::ranges::any_of(smallest, [&](const std::string& command) {
      return problem.find(command) != std::string::npos;
    })) << problem;
  }
  EXPECT_GE(found, 3);
  EXPECT_LE(found, 50);
  EXPECT_EQ(draws.totals().draws, 100);
  EXPECT_EQ(draws.totals().refusals.at("--moe-combine-groups: no"), draws.totals().refused);
}

}  // namespace
}  // namespace megalith::test
