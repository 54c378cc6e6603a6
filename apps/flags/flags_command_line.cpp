#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <set>
#include <string>

#include "apps/flags/flags_source.h"
#include "apps/flags/unknown_flags.h"
#include "core/base/error.h"

namespace megalith {

namespace {

bool is_list_kind(ValueKind kind) {
  return kind == ValueKind::kList || kind == ValueKind::kReals || kind == ValueKind::kIntegers;
}
// A list that one flag gives whole; of others each flag adds an item.
bool is_whole_list(const Flag& flag) {
  return flag.binding.kind == ValueKind::kIntegers || (is_list_kind(flag.binding.kind) && flag.unit.ends_with("..."));
}

// The program's flag that an argument "--NAME" gives, or null.
const Flag* flag_of(App app, const FlagTable& table, std::string_view argument) {
  if (!argument.starts_with("--")) return nullptr;
  const auto flag = std::ranges::find_if(table, [&](const Flag& f) { return is_named(f, argument.substr(2)); });
  return flag != table.end() && takes(*flag, app) ? &*flag : nullptr;
}

[[noreturn]] void refuse_without_value(App app, const Flag* flag, const std::string& argument) {
  refuse_usage(argument, {.expected = flag == nullptr ? "a value" : flag->binding.expected,
                          .got = "no value",
                          .remedy = fmt::format("see {} --help", name_of(app))});
}

// `words` are those that no flag took.
[[noreturn]] void refuse_words(App app, const FlagTable& table, const std::vector<std::string>& words) {
  std::vector<std::string> own;
  for (const Flag& flag : table) {
    if (takes(flag, app) && !flag.traits.positional) own.emplace_back(flag.name);
  }
  std::vector<UnknownFlag> unknown = unknown_flags(words, own);
  for (UnknownFlag& entry : unknown) {
    const auto flag = std::ranges::find(table, entry.name, &Flag::name);
    if (flag == table.end() || flag->traits.positional || entry.is_word || takes(*flag, app)) continue;
    for (const App other : kApps) {
      if (takes(*flag, other) && entry.other.empty()) entry.other = name_of(other);
    }
  }
  refuse_unknown(name_of(app), unknown, fmt::format("see {} --help", name_of(app)));
}

// "--flag=" as two arguments, and an error where the next flag stands in place of a value: CLI11 would in both cases
// take the next argument for the value.
std::vector<std::string> prepared(App app, const FlagTable& table, const std::vector<std::string>& arguments) {
  const auto takes_value = [](const Flag* flag) { return flag != nullptr && flag->binding.kind != ValueKind::kToggle; };
  std::vector<std::string> out;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument.ends_with('=') && takes_value(flag_of(app, table, argument.substr(0, argument.size() - 1)))) {
      out.push_back(argument.substr(0, argument.size() - 1));
      out.emplace_back();
      continue;
    }
    const Flag* const flag = flag_of(app, table, argument);
    if (takes_value(flag) && i + 1 < arguments.size() && flag_of(app, table, arguments[i + 1]) != nullptr)
      refuse_without_value(app, flag, argument);
    out.push_back(argument);
  }
  return out;
}

// Of a list given twice the last one counts, as of any other flag.
std::vector<std::string> without_earlier_lists(App app, const FlagTable& table, const std::vector<std::string>& words) {
  std::vector<std::string> out;
  std::set<const Flag*> given;
  for (auto end = words.end(); end != words.begin();) {  // a flag with its values at a time, from the last one on
    auto begin = end - 1;
    while (begin != words.begin() && !begin->starts_with("--")) --begin;
    const Flag* const flag = flag_of(app, table, begin->substr(0, begin->find('=')));
    const bool is_earlier = flag != nullptr && is_whole_list(*flag) && !flag->traits.adds && !given.insert(flag).second;
    if (!is_earlier) out.insert(out.begin(), begin, end);
    end = begin;
  }
  return out;
}

// NAME of --NAME and --NAME=VALUE, also after -h: CLI11 reads -h-NAME as -h --NAME. Empty for other words.
std::string_view name_in(std::string_view word) {
  const std::size_t dash = word.starts_with('-') ? word.find_first_not_of('h', 1) : std::string_view::npos;
  if (dash == std::string_view::npos || word[dash] != '-') return {};
  word.remove_prefix(dash + 1);
  return word.substr(0, word.find('='));
}

// CLI11 gives words without a flag to the positional ones.
bool may_be_given(const Flag& flag, const std::vector<std::string_view>& names) {
  if (flag.traits.positional || flag.name == "help") return true;
  return std::ranges::any_of(names, [&](std::string_view name) { return is_named(flag, name); });
}

// Declares a flag to CLI11.
CLI::Option* declare(CLI::App& parser, const Flag& flag) {
  std::string name = flag.traits.positional ? std::string(flag.name) : "--" + std::string(flag.name);
  if (flag.name == "help") name += ",-h";
  if (!flag.traits.synonym.empty()) name += ",--" + std::string(flag.traits.synonym);
  const bool is_toggle = flag.binding.kind == ValueKind::kToggle, is_list = is_list_kind(flag.binding.kind);
  CLI::Option* const option = is_toggle ? parser.add_flag(name) : parser.add_option(name);
  option->multi_option_policy(is_list ? CLI::MultiOptionPolicy::TakeAll : CLI::MultiOptionPolicy::TakeLast);
  if (is_whole_list(flag)) option->expected(-1);
  return option;
}

}  // namespace

std::vector<RawValue> read_command_line(App app, const FlagTable& table, const std::vector<std::string>& arguments) {
  const std::vector<std::string> words = without_earlier_lists(app, table, prepared(app, table, arguments));
  std::vector<std::string_view> names;
  for (const std::string& word : words) {
    if (const std::string_view name = name_in(word); !name.empty()) names.push_back(name);
  }
  CLI::App parser;
  parser.set_help_flag();
  parser.allow_extras();
  std::vector<std::pair<const Flag*, const CLI::Option*>> declared;  // not all, which takes the square of their number
  for (const Flag& flag : table) {
    if (takes(flag, app) && may_be_given(flag, names)) declared.emplace_back(&flag, declare(parser, flag));
  }
  try {
    parser.parse(std::vector<std::string>(words.rbegin(), words.rend()));
  } catch (const CLI::ArgumentMismatch& error) {
    const std::string message = error.what(), argument = message.substr(0, message.find(':'));
    refuse_without_value(app, flag_of(app, table, argument), argument);
  } catch (const CLI::ParseError& error) {
    refuse_usage(error.what(), {.remedy = fmt::format("see {} --help", name_of(app))});
  }
  if (const std::vector<std::string> extra = parser.remaining(); !extra.empty()) refuse_words(app, table, extra);
  std::vector<RawValue> values;
  for (const auto& [flag, option] : declared) {
    if (option->count() == 0) continue;
    RawValue value{.name = std::string(flag->name), .items = option->results()};
    if (!is_list_kind(flag->binding.kind)) value.items.erase(value.items.begin(), value.items.end() - 1);
    values.push_back(std::move(value));
  }
  return values;
}

}  // namespace megalith
