#include "tests/unit/train/draws.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <random>
#include <utility>

namespace megalith::test {

namespace {

constexpr int kSteps = 4;
const std::string kResumed = "resumed: ";  // prefix of messages about the second part of a run
constexpr int kStop = 2;                   // step after which a resumed run stops

Words steps_of_run() { return words("--hidden-size 16 --lr-warmup-iters 1 --train-iters " + std::to_string(kSteps)); }

std::size_t index_of(std::string_view name) {
  const auto found = std::ranges::find(rows(), name, &Row::name);
  if (found == rows().end()) throw std::logic_error(fmt::format("no row {}", name));
  return static_cast<std::size_t>(found - rows().begin());
}

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : engine_(seed) {}
  int below(std::size_t n) { return static_cast<int>(engine_() % n); }

 private:
  std::mt19937_64 engine_;
};

// Draws the values of the rows of one kind; none of them in percent_none of 100 cases.
void draw_rows(Draw& draw, Dice& dice, bool (*is_drawn)(Bits), int percent_none) {
  for (std::size_t r = 0; r < rows().size(); ++r) {
    const Row& row = rows()[r];
    if (!is_drawn(row.bits)) continue;
    draw.values[r] = 0;
    if (row.fits && !row.fits(draw)) continue;
    // Draws each model equally often; models that fit only some draws are drawn often in these.
    const int none = r == 0 ? 0 : row.fits ? 25 : percent_none;
    if (dice.below(100) >= none) draw.values[r] = dice.below(row.values.size());
  }
}

// Numbers left out: reasons that differ in them are one.
std::string without_numbers(const std::string& text) {
  std::string plain;
  for (const char c : text.substr(0, text.find(';'))) {
    const bool is_digit = c >= '0' && c <= '9';
    if (!is_digit)
      plain += c;
    else if (!plain.ends_with('N'))
      plain += 'N';
  }
  return plain;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {  // any NaN equals any NaN
  return std::ranges::equal(
      a, b, [](float x, float y) { return std::bit_cast<std::uint32_t>(x) == std::bit_cast<std::uint32_t>(y); });
}

std::string first_difference(const Tensors& a, const Tensors& b) {
  if (a.size() != b.size()) return fmt::format("{} tensors in place of {}", a.size(), b.size());
  for (const auto& [name, values] : a) {
    const auto other = b.find(name);
    if (other == b.end()) return fmt::format("{} is in one of them", name);
    if (!same_bits(values, other->second)) return fmt::format("{} differs", name);
  }
  return "";
}

template <class T>
std::string first_difference(const std::string& what, const std::vector<T>& got, const std::vector<T>& want) {
  if (got.size() != want.size()) return fmt::format("{}: {} of them in place of {}", what, got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (got[i] != want[i]) return fmt::format("{} {}: {}, expected {}", what, i + 1, got[i], want[i]);
  }
  return "";
}

std::string far_from(const RunResult& run, const RunResult& want, double tolerance) {
  for (std::size_t i = 0; i < want.loss_values.size() && i < run.loss_values.size(); ++i) {
    const double a = run.loss_values[i], b = want.loss_values[i];
    if (std::isfinite(a) != std::isfinite(b) || std::abs(a / b - 1) > tolerance)
      return fmt::format("loss {}: {}, expected {} of one rank within {}", i + 1, a, b, tolerance);
  }
  return "";
}

std::string not_in_order(const RunResult& run) {
  if (!run.copies_agree) return "ranks that hold the same differ";
  if (!run.memory_as_planned) return "memory differs from the plan's";
  if (run.hazards != 0) return fmt::format("{} hazards", run.hazards);
  return "";
}

template <class T>
void put_before(std::vector<T>& values, const std::vector<T>& first) {
  values.insert(values.begin(), first.begin(), first.end());
}

}  // namespace

int Draw::at(std::string_view row) const { return values[index_of(row)]; }

Words Draw::flags_of(const std::vector<int>& values) {
  Words flags = steps_of_run();
  for (std::size_t r = 0; r < rows().size(); ++r)
    flags = flags + rows()[r].values[static_cast<std::size_t>(values[r])].flags;
  return flags;
}

bool Draw::operator<(const Draw& other) const {
  return std::tie(ranks, values, resumed) < std::tie(other.ranks, other.values, other.resumed);
}

Draw plain(const Draw& draw) {
  Draw plain = draw;
  plain.resumed.clear();
  for (std::size_t r = 0; r < rows().size(); ++r) {
    int& value = plain.values[r];
    if (rows()[r].bits == Bits::kSame) value = rows()[r].values[static_cast<std::size_t>(value)].plain;
  }
  return plain;
}

Draw one_rank(const Draw& draw) {
  Draw one = plain(draw);
  one.ranks = 1;
  for (std::size_t r = 0; r < rows().size(); ++r) {
    if (rows()[r].bits != Bits::kModel) one.values[r] = 0;
  }
  return one;
}

std::string DrawRequest::requested_row() {
  const char* const row = std::getenv("MEGALITH_DRAWS_WITH");
  return row != nullptr ? row : "";
}

bool suits_one_rank(const Draw& draw) {
  for (std::size_t r = 0; r < rows().size(); ++r) {
    if (rows()[r].per_rank && draw.values[r] > 0) return false;
  }
  return draw.at("dtype") == 0;
}

namespace {

bool has_requested(const Draw& draw, const DrawRequest& request) {
  return request.with.empty() || draw.at(request.with) > 0;
}

Draw any_draw(const DrawRequest& request, Dice& dice) {
  constexpr std::array kRanks = {1, 2, 4, 4, 4, 8};
  Draw draw{.ranks = request.ranks > 0 ? request.ranks : kRanks[static_cast<std::size_t>(dice.below(kRanks.size()))]};
  draw.values.resize(rows().size());
  const int percent_none = 25 + 25 * dice.below(3);
  draw_rows(
      draw, dice, [](Bits) { return true; }, percent_none);
  if (dice.below(4) > 0) return draw;
  Draw resumed = draw;  // with other features of the same class of bits
  draw_rows(
      resumed, dice, [](Bits bits) { return bits == Bits::kSame; }, percent_none);
  if (plain(resumed).values == plain(draw).values) draw.resumed = resumed.values;
  return draw;
}

Draw draw(const DrawRequest& request, Dice& dice) {
  for (;;) {
    Draw draw = any_draw(request, dice);
    if (has_requested(draw, request)) return draw;
  }
}

// Draws the value of one row again, among the rows whose flags the rejection mentions.
Draw without_refusal(const Draw& refused, const std::string& reason, Dice& dice) {
  const bool is_resumed = reason.starts_with(kResumed);
  const std::vector<int>& values = is_resumed ? refused.resumed : refused.values;
  std::vector<std::size_t> named, any;
  for (std::size_t r = 0; r < rows().size(); ++r) {
    if (values[r] == 0 || (is_resumed && rows()[r].bits != Bits::kSame)) continue;
    any.push_back(r);
    const Words& flags = rows()[r].values[static_cast<std::size_t>(values[r])].flags;
    if (std::ranges::any_of(flags, [&](const std::string& word) {
          return word.starts_with("--") && reason.find(word) != std::string::npos;
        }))
      named.push_back(r);
  }
  const std::vector<std::size_t>& rows_to_change = named.empty() ? any : named;
  Draw draw = refused;
  if (rows_to_change.empty()) {
    draw.resumed.clear();
    return draw;
  }
  const std::size_t changed = rows_to_change[static_cast<std::size_t>(dice.below(rows_to_change.size()))];
  draw.values = values;
  draw.values[changed] = dice.below(rows()[changed].values.size());
  for (std::size_t r = 0; r < rows().size(); ++r) {
    if (rows()[r].fits && !rows()[r].fits(draw)) draw.values[r] = 0;
  }
  if (is_resumed) draw.resumed = std::exchange(draw.values, refused.values);
  for (std::size_t r = 0; r < rows().size() && !draw.resumed.empty(); ++r) {
    if (rows()[r].bits != Bits::kSame) draw.resumed[r] = draw.values[r];
  }
  const Draw resumed{.ranks = draw.ranks, .values = draw.resumed.empty() ? draw.values : draw.resumed};
  if (plain(resumed).values != plain(draw).values) draw.resumed.clear();
  return draw;
}

}  // namespace

std::string command_of(const Words& flags, int ranks) {
  Words quoted;
  for (const std::string& word : flags)
    quoted.push_back(word.find_first_of("[]()*|") == std::string::npos ? word : "'" + word + "'");
  return fmt::format("mpirun -np {} --oversubscribe build/cpu-release/apps/train {}", ranks, fmt::join(quoted, " "));
}

std::string commands_of(const Draw& draw) {
  const Words base = tiny_flags();
  if (draw.resumed.empty()) return command_of(base + draw.flags(), draw.ranks);
  return fmt::format("{}\n{}",
                     command_of(base + draw.flags() + words("--exit-interval 2 --save CHECKPOINTS"), draw.ranks),
                     command_of(base + Draw::flags_of(draw.resumed) + words("--load CHECKPOINTS"), draw.ranks));
}

std::string difference(const RunResult& run, const RunResult& want) {
  for (const std::string& problem :
       {not_in_order(run), first_difference("loss", run.losses, want.losses),
        first_difference("gradient norm", run.grad_norms, want.grad_norms),
        first_difference("validation loss", run.validation_losses, want.validation_losses),
        first_difference("square", run.squares, want.squares), first_difference(run.weights, want.weights),
        first_difference(run.whole_state, want.whole_state)}) {
    if (!problem.empty()) return problem;
  }
  if (run.skipped_steps != want.skipped_steps)
    return fmt::format("{} steps were skipped, expected {}", run.skipped_steps, want.skipped_steps);
  for (std::size_t i = 0; i < want.balancing_losses.size() && i < run.balancing_losses.size(); ++i) {
    const double a = run.balancing_losses[i], b = want.balancing_losses[i];  // the sum over layers has any order
    if (std::isfinite(a) && std::isfinite(b) && std::abs(a - b) > 1e-6)
      return fmt::format("balancing loss {}: {}, expected {}", i + 1, a, b);
  }
  return "";
}

Outcome Draws::run_whole(const Draw& draw) {
  if (draw.resumed.empty()) {
    Outcome whole = way_.run(draw.flags(), draw.ranks);
    if (whole.problem.empty() && whole.run.code != ExitCode::kOk)
      whole.problem = fmt::format("exit code {}", static_cast<int>(whole.run.code));
    return whole;
  }
  way_.clear();
  const Words stop = {"--exit-interval", std::to_string(kStop), "--save", way_.folder};
  const Outcome first = way_.run(draw.flags() + stop, draw.ranks);
  if (!first.problem.empty()) return first;
  if (first.run.code != ExitCode::kStoppedOnRequest) return {.problem = "it did not stop", .run = first.run};
  const std::string problem = not_in_order(first.run);
  if (way_.any(!problem.empty())) return {.problem = "before the stop: " + problem, .run = first.run};
  Outcome whole = way_.run(Draw::flags_of(draw.resumed) + Words{"--load", way_.folder}, draw.ranks);
  if (!whole.problem.empty()) whole.problem = kResumed + whole.problem;
  RunResult& run = whole.run;
  put_before(run.losses, first.run.losses);
  put_before(run.grad_norms, first.run.grad_norms);
  put_before(run.loss_values, first.run.loss_values);
  put_before(run.validation_losses, first.run.validation_losses);
  put_before(run.balancing_losses, first.run.balancing_losses);
  run.skipped_steps += first.run.skipped_steps;
  return whole;
}

const Outcome& Draws::reference(const Draw& draw) {
  constexpr std::size_t kMost = 64;
  if (references_.size() >= kMost && !references_.contains(draw)) references_.clear();
  const auto found = references_.find(draw);
  return found != references_.end() ? found->second : references_.emplace(draw, run_whole(draw)).first->second;
}

// Returns "" for a correct run, otherwise the problem, or the reason of the rejection.
std::string Draws::problem_of(const Draw& draw, bool& refused) {
  const Outcome outcome = run_whole(draw);
  refused = outcome.refused;
  if (refused) {
    ++totals_.refused;
    ++totals_.refusals[without_numbers(outcome.problem)];
    return outcome.problem;
  }
  if (!outcome.problem.empty()) return outcome.problem;
  const Outcome& want = reference(plain(draw));
  for (const std::string& problem : {want.problem, not_in_order(want.run)})
    if (!problem.empty()) return "its plain run: " + problem;
  std::string problem = difference(outcome.run, want.run);
  if (way_.has_metrics && outcome.run.losses.size() != kSteps)
    problem = fmt::format("{} steps, expected {}", outcome.run.losses.size(), kSteps);
  if (problem.empty() && way_.takes_fewer_ranks && suits_one_rank(draw)) {
    const Outcome& one = reference(one_rank(draw));
    if (!one.problem.empty()) return "its run on one rank: " + one.problem;
    problem = far_from(outcome.run, one.run, 1e-5);
    ++totals_.with_one_rank;
  }
  if (problem.empty()) count(draw, outcome.run);
  return problem;
}

// Removes values, and the stop, as long as the rest still has a problem.
Draw Draws::smallest(Draw draw, std::string& problem) {
  const auto is_wrong = [&](const Draw& less) {
    bool refused = false;
    const std::string still = problem_of(less, refused);
    const bool wrong = !refused && way_.any(!still.empty());
    if (wrong && !still.empty()) problem = still;
    return wrong;
  };
  for (bool smaller = true; smaller;) {
    smaller = false;
    if (!draw.resumed.empty()) {
      Draw less = draw;
      less.resumed.clear();
      if (is_wrong(less)) draw = less, smaller = true;
    }
    if (way_.takes_fewer_ranks && draw.ranks > 1) {
      Draw less = draw;
      less.ranks /= 2;
      if (is_wrong(less)) draw = less, smaller = true;
    }
    for (std::size_t r = 0; r < rows().size(); ++r) {
      Draw less = draw;
      less.values[r] = 0;
      if (!less.resumed.empty()) less.resumed[r] = 0;
      if ((less.values == draw.values && less.resumed == draw.resumed) || !is_wrong(less)) continue;
      draw = less;
      smaller = true;
    }
  }
  return draw;
}

void Draws::count(const Draw& draw, const RunResult& run) {
  for (std::size_t r = 0; r < rows().size(); ++r)
    ++totals_.values[fmt::format("{} {}", rows()[r].name, draw.values[r])];
  const auto any = [&](auto&& did) { return std::ranges::any_of(run.ranks, did) ? 1 : 0; };
  totals_.graphs += any([](const RankActivity& rank) { return rank.replays > 0; });
  totals_.offloads += any([](const RankActivity& rank) { return rank.offload.offloads > 0; });
  totals_.units += any([](const RankActivity& rank) { return rank.units_gathered > 0; });
  totals_.regrows += !run.regrows.empty() && run.regrows.back() > 0 ? 1 : 0;
  totals_.skips += run.skipped_steps > 0 ? 1 : 0;
  totals_.evaluations += run.validation_losses.empty() ? 0 : 1;
  totals_.resumed += draw.resumed.empty() ? 0 : 1;
}

std::string Draws::run(const DrawRequest& request) {
  constexpr int kAttempts = 1000, kRepairs = 50;
  Dice dice(request.seed * 1'000'003 + static_cast<std::uint64_t>(request.number));
  Draw drawn;
  std::string problem;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    if (attempt % kRepairs > 0) drawn = without_refusal(drawn, problem, dice);
    if (attempt % kRepairs == 0 || !has_requested(drawn, request)) drawn = draw(request, dice);
    bool refused = false;
    problem = problem_of(drawn, refused);
    if (refused) continue;
    ++totals_.draws;
    if (!way_.any(!problem.empty())) return "";
    const std::string before = problem;
    const Draw least = smallest(drawn, problem);
    return fmt::format(
        "seed {}, draw {}: {}\nits smallest part that is wrong too: {}\n{}\nto compare with:\n{}\nas drawn:\n{}",
        request.seed, request.number, before, problem, commands_of(least), commands_of(plain(least)),
        commands_of(drawn));
  }
  return fmt::format("seed {}, draw {}: all {} attempts were refused", request.seed, request.number, kAttempts);
}

std::string text_of(const DrawTotals& totals) {
  std::string text = fmt::format(
      "{} draws: {} with replays, {} moved activations, {} gathered units, {} regrew a room, {} skipped steps, {} were "
      "evaluated, {} resumed, {} compared with one rank\n{} refused:\n",
      totals.draws, totals.graphs, totals.offloads, totals.units, totals.regrows, totals.skips, totals.evaluations,
      totals.resumed, totals.with_one_rank, totals.refused);
  for (const Row& row : rows()) {
    for (std::size_t value = 0; value < row.values.size(); ++value) {
      if (!totals.values.contains(fmt::format("{} {}", row.name, value)))
        text += fmt::format("not drawn: {} {}\n", row.name, fmt::join(row.values[value].flags, " "));
    }
  }
  for (const auto& [reason, times] : totals.refusals) text += fmt::format("{:6} {}\n", times, reason);
  return text;
}

}  // namespace megalith::test
