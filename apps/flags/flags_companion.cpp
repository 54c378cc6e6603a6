#include "apps/flags/flags_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "apps/flags/flags_table.h"
#include "core/base/error.h"

namespace megalith {

namespace {

// Value as a command line writes it.
std::string plain_value(const Flag& flag) {
  std::string value = flag.binding.get();
  std::erase_if(value, [](char c) { return std::string_view("[\",]").find(c) != std::string_view::npos; });
  return value;
}

// True if `flag` has the value that another flag needs or excludes, whatever its origin.
bool has_value(const Flag& flag, const OtherFlag& other) {
  const std::string value = plain_value(flag);
  std::string_view wanted = other.value;
  if (wanted.empty()) return !value.empty() && value != "false" && value != "0";
  constexpr std::string_view kAbove = "above ";
  if (!other.also.empty() && value == other.also) return true;
  if (wanted.starts_with(kAbove)) {
    const std::string bound(wanted.substr(kAbove.size()));
    return std::strtod(value.c_str(), nullptr) > std::strtod(bound.c_str(), nullptr);
  }
  constexpr std::string_view kOr = " or ";
  for (std::size_t end = 0; !wanted.empty(); wanted.remove_prefix(std::min(end + kOr.size(), wanted.size()))) {
    end = std::min(wanted.find(kOr), wanted.size());
    if (wanted.substr(0, end) == value) return true;
  }
  return false;
}

void check_needs(const Flag& flag, const OtherFlag& need, const Flag& other) {
  if (has_value(other, need)) return;
  const std::string got =
      need.value.empty() ? std::string(need.got) : fmt::format("--{} {}", need.flag, plain_value(other));
  only_with(false, {.flag = fmt::format("--{}", flag.name),
                    .needs = fmt::format("--{}{}{}", need.flag, need.value.empty() ? "" : " ", need.value),
                    .got = got,
                    .remedy = std::string(need.remedy)});
}

}  // namespace

const OtherFlag* unmet_need(const FlagTable& table, const Flag& flag, App app) {
  for (const OtherFlag& need : flag.traits.needs) {
    const Flag& other = *std::ranges::find(table, need.flag, &Flag::name);
    const bool holds = (need.apps & static_cast<unsigned>(app)) != 0 && takes(other, app);
    if (holds && !has_value(other, need)) return &need;
  }
  return nullptr;
}

void check_companions(App app, const Options& options) {
  Options copy = options;
  Requests requests;
  const FlagTable table = make_table(copy, requests);
  const auto find = [&](std::string_view name) -> const Flag& { return *std::ranges::find(table, name, &Flag::name); };
  const auto is_active = [&](const Flag& flag) { return options.is_given(flag.name); };
  for (const Flag& flag : table) {
    const bool has_others = !flag.traits.needs.empty() || !flag.traits.excludes.empty();
    if (!has_others || !takes(flag, app) || !is_active(flag)) continue;
    const auto holds = [app](const OtherFlag& other) { return (other.apps & static_cast<unsigned>(app)) != 0; };
    for (const OtherFlag& need : flag.traits.needs)
      if (const Flag& other = find(need.flag); holds(need) && takes(other, app)) check_needs(flag, need, other);
    for (const OtherFlag& excluded : flag.traits.excludes) {
      const Flag& other = find(excluded.flag);
      const bool both = holds(excluded) && is_active(other) && (excluded.value.empty() || has_value(other, excluded));
      not_both(both, fmt::format("--{}", flag.name), fmt::format("--{}", other.name),
               excluded.remedy.empty() ? "remove one" : excluded.remedy);
    }
  }
}

void only_with(bool holds, const Companion& pair) {
  if (holds) return;
  refuse_usage(
      fmt::format("{} and {}", pair.flag, pair.needs.substr(0, pair.needs.find(' '))),
      {.expected = fmt::format("{} only with {}", pair.flag, pair.needs),
       .got = pair.got.empty() ? pair.flag + " alone" : pair.got,
       .remedy = fmt::format("{}, or remove {}", pair.remedy.empty() ? "use " + pair.needs : pair.remedy, pair.flag)});
}

void refuse_numbers(const FlagNumber& one, const FlagNumber& other, const std::string& expected,
                    const std::string& remedy) {
  refuse_usage(fmt::format("{} and {}", one.flag, other.flag),
               {.expected = expected,
                .got = fmt::format("{} {} and {} {}", one.flag, one.value, other.flag, other.value),
                .remedy = remedy});
}

void not_both(bool both, std::string_view one, std::string_view other, std::string_view remedy) {
  if (!both) return;
  refuse_usage(fmt::format("{} and {}", one, other),
               {.expected = "one of them", .got = "both", .remedy = std::string(remedy)});
}

}  // namespace megalith
