#include "apps/plan/suggestion_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <set>
#include <string_view>

#include "core/base/log.h"
#include "core/base/text/units.h"

namespace megalith {

namespace {

// Flags that train does not have, and the micro batch size, which each suggestion gives.
constexpr std::array<std::string_view, 4> kReplaced = {"--world-size", "--rates", "--device-memory-gib",
                                                       "--micro-batch-size"};

// Flags with their values, one text each.
std::vector<std::string> flags_with_values(const std::vector<std::string>& arguments) {
  std::vector<std::string> flags;
  for (const std::string& argument : arguments) {
    if (argument.starts_with("--") || flags.empty()) {
      flags.push_back(argument);
    } else {
      flags.back() += " " + argument;
    }
  }
  return flags;
}

std::string quoted(const std::string& argument) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./=:,+@%";
  if (!argument.empty() && argument.find_first_not_of(kPlain) == std::string::npos) return argument;
  std::string text = "'";
  for (const char c : argument) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

// Flags of `one` that `other` lacks.
std::string difference(const Suggestion& one, const Suggestion& other) {
  const std::vector<std::string> flags = flags_with_values(other.flags);
  const std::set<std::string> others(flags.begin(), flags.end());
  std::string text;
  for (const std::string& flag : flags_with_values(one.flags))
    if (!others.contains(flag)) text += (text.empty() ? "" : " ") + flag;
  return text.empty() ? "no flags" : text;
}

std::string describe_step(const StepForecast& step, double exposed) {
  const auto share = [&](double seconds) { return 100 * seconds / step.seconds; };
  const double bubble = step.bubble_share * step.pipeline_seconds;
  const double rest = std::max(0.0, step.seconds - step.pipeline_seconds);
  const std::string text = fmt::format(
      "step: {:.1f} ms: {:.1f} % pipeline bubble, {:.1f} % exposed communication, {:.1f} % after the last layer",
      1e3 * step.seconds, share(bubble), share(exposed), share(rest));
  return step.host_seconds >= step.seconds ? text + "; the host's launches bound it" : text;
}

}  // namespace

std::string train_command(const std::string& program, const std::vector<std::string>& arguments,
                          const Suggestion& suggestion, int world, const Rates& rates) {
  const std::size_t slash = program.rfind('/');
  std::vector<std::string> words = {"mpirun", "-np", fmt::to_string(world)};
  if (world > rates.host_ranks) {
    words.emplace_back("--map-by");
    words.push_back(fmt::format("ppr:{}:node", rates.host_ranks));
  }
  words.push_back(quoted(slash == std::string::npos ? "train" : program.substr(0, slash + 1) + "train"));
  bool is_kept = true;
  for (const std::string& argument : arguments) {
    if (argument.starts_with("--"))
      is_kept = argument != "--suggest" &&
                std::ranges::find(kReplaced, argument.substr(0, argument.find('='))) == kReplaced.end();
    if (is_kept) words.push_back(quoted(argument));
  }
  words.insert(words.end(), suggestion.flags.begin(), suggestion.flags.end());
  return fmt::format("{}", fmt::join(words, " "));
}

Table reasons_table(const Suggestions& found, const Rates& rates, double memory) {
  Table table{.title = "fastest layout"};
  if (found.best.empty()) return table;
  const Suggestion& best = found.best.front();
  const double usable = memory - rates.device_reserve, used = static_cast<double>(best.step.max_memory);
  table.add(
      {}, fmt::format("memory: {:.1f} of {:.1f} GiB per rank ({:.0f} %)", gib(used), gib(usable), 100 * used / usable));
  table.add({}, describe_step(best.step, best.exposed_seconds));
  if (found.best.size() == 1) {
    table.add({}, "next: no other layout fits");
    return table;
  }
  const Suggestion& next = found.best[1];
  table.add({}, fmt::format("next: {:.1f} % slower, {:.1f} GiB, with {} instead of {}",
                            100 * (next.step.seconds / best.step.seconds - 1), gib(next.step.max_memory),
                            difference(next, best), difference(best, next)));
  return table;
}

std::function<void(const char* phase, std::size_t done, std::size_t all)> progress_line() {
  if (isatty(STDERR_FILENO) != 1) return {};
  return [](const char* phase, std::size_t done, std::size_t all) {
    show_status(fmt::format("{}: {} of {}", phase, done, all));
  };
}

}  // namespace megalith
