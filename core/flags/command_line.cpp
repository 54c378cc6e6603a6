#include "core/flags/command_line.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <set>
#include <utility>

#include "core/base/error.h"

namespace megalith {

namespace {

using Flags = std::vector<FlagSyntax>;

bool is_list(const FlagSyntax& flag) {
  const ValueKind kind = flag.binding->kind;
  return kind == ValueKind::kList || kind == ValueKind::kReals || kind == ValueKind::kIntegers;
}

// Flag that an argument "--NAME" gives, or null.
const FlagSyntax* flag_of(const Flags& flags, std::string_view argument) {
  if (!argument.starts_with("--")) return nullptr;
  const auto flag = std::ranges::find_if(flags, [&](const FlagSyntax& f) { return f.is_named(argument.substr(2)); });
  return flag == flags.end() ? nullptr : &*flag;
}

[[noreturn]] void refuse_without_value(std::string_view program, const FlagSyntax* flag, const std::string& argument) {
  refuse_usage(argument, {.expected = flag == nullptr ? "a value" : flag->binding->expected,
                          .got = "no value",
                          .remedy = fmt::format("see {} --help", program)});
}

// Arguments for CLI11, with "--flag=" as two arguments. A flag followed by the next flag or the end goes to `missing`,
// since CLI11 would use the next flag as the value.
std::vector<std::string> prepared(const Flags& flags, const std::vector<std::string>& arguments,
                                  std::vector<std::string>& missing) {
  const auto takes_value = [](const FlagSyntax* flag) {
    return flag != nullptr && flag->binding->kind != ValueKind::kToggle;
  };
  std::vector<std::string> out;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument.ends_with('=') && takes_value(flag_of(flags, argument.substr(0, argument.size() - 1)))) {
      out.push_back(argument.substr(0, argument.size() - 1));
      out.emplace_back();
      continue;
    }
    const FlagSyntax* const flag = flag_of(flags, argument);
    const bool is_last = i + 1 == arguments.size();
    if (takes_value(flag) && (is_last || flag_of(flags, arguments[i + 1]) != nullptr)) {
      missing.push_back(argument);
      continue;
    }
    out.push_back(argument);
  }
  return out;
}

// Words without all but the last use of each list, as the last use of any flag counts.
std::vector<std::string> without_earlier_lists(const Flags& flags, const std::vector<std::string>& words) {
  std::vector<std::string> out;
  std::set<const FlagSyntax*> given;
  for (auto end = words.end(); end != words.begin();) {  // each flag with its values, from the last to the first
    auto begin = end - 1;
    while (begin != words.begin() && !begin->starts_with("--")) --begin;
    const FlagSyntax* const flag = flag_of(flags, begin->substr(0, begin->find('=')));
    const bool is_earlier = flag != nullptr && flag->is_whole && !flag->adds && !given.insert(flag).second;
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

// True for flags that the words may give; CLI11 gives words without a flag to the positional flags.
bool may_be_given(const FlagSyntax& flag, const std::vector<std::string_view>& names) {
  if (flag.positional || flag.name == "help") return true;
  return std::ranges::any_of(names, [&](std::string_view name) { return flag.is_named(name); });
}

// Declares a flag to CLI11.
CLI::Option* declare(CLI::App& parser, const FlagSyntax& flag) {
  std::string name = flag.positional ? std::string(flag.name) : "--" + std::string(flag.name);
  if (flag.name == "help") name += ",-h";
  if (!flag.synonym.empty()) name += ",--" + std::string(flag.synonym);
  const bool is_toggle = flag.binding->kind == ValueKind::kToggle;
  CLI::Option* const option = is_toggle ? parser.add_flag(name) : parser.add_option(name);
  option->multi_option_policy(is_list(flag) ? CLI::MultiOptionPolicy::TakeAll : CLI::MultiOptionPolicy::TakeLast);
  if (flag.is_whole) option->expected(-1);
  return option;
}

}  // namespace

CommandLine read_command_line(std::string_view program, const std::vector<FlagSyntax>& flags,
                              const std::vector<std::string>& arguments) {
  CommandLine line;
  const std::vector<std::string> words = without_earlier_lists(flags, prepared(flags, arguments, line.missing));
  std::vector<std::string_view> names;
  for (const std::string& word : words) {
    if (const std::string_view name = name_in(word); !name.empty()) names.push_back(name);
  }
  CLI::App parser;
  parser.set_help_flag();
  parser.allow_extras();
  std::vector<std::pair<const FlagSyntax*, const CLI::Option*>>
      declared;  // only the flags that may be given, as CLI11's time is quadratic in their number
  for (const FlagSyntax& flag : flags) {
    if (may_be_given(flag, names)) declared.emplace_back(&flag, declare(parser, flag));
  }
  try {
    parser.parse(std::vector<std::string>(words.rbegin(), words.rend()));
  } catch (const CLI::ArgumentMismatch& error) {
    const std::string message = error.what(), argument = message.substr(0, message.find(':'));
    refuse_without_value(program, flag_of(flags, argument), argument);
  } catch (const CLI::ParseError& error) {
    refuse_usage(error.what(), {.remedy = fmt::format("see {} --help", program)});
  }
  line.unknown = parser.remaining();
  for (const auto& [flag, option] : declared) {
    if (option->count() == 0) continue;
    RawValue value{.name = std::string(flag->name), .items = option->results()};
    if (!is_list(*flag)) value.items.erase(value.items.begin(), value.items.end() - 1);
    line.values.push_back(std::move(value));
  }
  return line;
}

}  // namespace megalith
