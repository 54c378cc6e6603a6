#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>

#include "apps/flags_source.h"
#include "apps/unknown_flags.h"
#include "core/base/error.h"

namespace megalith {

namespace {

[[noreturn]] void refuse_without_value(App app, const std::vector<Flag>& table, std::string_view name) {
  const auto flag =
      std::find_if(table.begin(), table.end(), [&](const Flag& f) { return name == "--" + std::string(f.name); });
  refuse_usage(std::string(name), {.expected = flag == table.end() ? "a value" : flag->binding.expected,
                                   .got = "no value",
                                   .remedy = "see " + std::string(name_of(app)) + " --help"});
}

// `words` are those that no flag took.
[[noreturn]] void refuse_words(App app, const std::vector<Flag>& table, const std::vector<std::string>& words) {
  std::vector<std::string> own;
  for (const Flag& flag : table) {
    if (takes(flag, app) && !flag.positional) own.emplace_back(flag.name);
  }
  std::vector<UnknownFlag> unknown = unknown_flags(words, own);
  for (UnknownFlag& entry : unknown) {
    const auto flag =
        std::find_if(table.begin(), table.end(), [&](const Flag& f) { return f.name == entry.name && !f.positional; });
    if (flag == table.end() || entry.is_word || takes(*flag, app)) continue;
    for (const App other : kApps) {
      if (takes(*flag, other) && entry.other.empty()) entry.other = name_of(other);
    }
  }
  const std::string program(name_of(app));
  refuse_unknown(program, unknown, "see " + program + " --help");
}

// "--flag=" as two arguments, and an error where the next flag stands in place of a value: CLI11 would in both cases
// take the next argument for the value.
std::vector<std::string> prepared(App app, const std::vector<Flag>& table, const std::vector<std::string>& arguments) {
  const auto takes_value = [&](std::string_view argument) {
    return std::any_of(table.begin(), table.end(), [&](const Flag& flag) {
      return takes(flag, app) && flag.binding.kind != ValueKind::kToggle && argument.substr(2) == flag.name;
    });
  };
  const auto is_flag = [&](std::string_view argument) {
    return std::any_of(table.begin(), table.end(), [&](const Flag& flag) {
      return takes(flag, app) && argument.starts_with("--") && argument.substr(2) == flag.name;
    });
  };
  std::vector<std::string> out;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    const bool is_long = argument.size() > 3 && argument.starts_with("--");
    if (is_long && argument.back() == '=' && takes_value(std::string_view(argument).substr(0, argument.size() - 1))) {
      out.push_back(argument.substr(0, argument.size() - 1));
      out.emplace_back();
      continue;
    }
    if (is_long && takes_value(argument) && i + 1 < arguments.size() && is_flag(arguments[i + 1])) {
      refuse_without_value(app, table, argument);
    }
    out.push_back(argument);
  }
  return out;
}

struct Declared {
  const Flag* flag;
  CLI::Option* option;
  // CLI11 wants a place of the right type and keeps its address; the texts are read from the option.
  std::string one;
  std::vector<std::string> many;
};

}  // namespace

struct CommandLine::Parser {
  explicit Parser(App program);

  App app;
  Options options;  // what the table points to
  Requests requests;
  std::vector<Flag> table = make_table(options, requests);
  CLI::App parser;
  std::vector<Declared> declared;
};

CommandLine::Parser::Parser(App program) : app(program) {
  parser.set_help_flag();
  parser.allow_extras();
  declared.reserve(table.size());
  for (const Flag& flag : table) {
    if (!takes(flag, app)) continue;
    Declared& entry = declared.emplace_back(Declared{&flag, nullptr, {}, {}});
    std::string name = flag.positional ? std::string(flag.name) : "--" + std::string(flag.name);
    if (flag.name == "help") name += ",-h";
    if (flag.binding.kind == ValueKind::kToggle) {
      entry.option = parser.add_flag(name)->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    } else if (flag.binding.kind == ValueKind::kList) {
      entry.option = parser.add_option(name, entry.many);
      if (!flag.unit.ends_with("..."))
        entry.option->expected(1)->allow_extra_args(false)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    } else {
      entry.option = parser.add_option(name, entry.one)->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    }
  }
}

CommandLine::CommandLine(App app) : parser_(std::make_unique<Parser>(app)) {}
CommandLine::~CommandLine() = default;

std::vector<RawValue> CommandLine::read(const std::vector<std::string>& arguments) {
  auto& [app, options, requests, table, parser, declared] = *parser_;
  const std::vector<std::string> words = prepared(app, table, arguments);
  try {
    parser.parse(std::vector<std::string>(words.rbegin(), words.rend()));
  } catch (const CLI::ArgumentMismatch& error) {
    const std::string message = error.what();
    refuse_without_value(app, table, message.substr(0, message.find(':')));
  } catch (const CLI::ParseError& error) {
    refuse_usage(error.what(), {.remedy = "see " + std::string(name_of(app)) + " --help"});
  }
  if (const std::vector<std::string> extra = parser.remaining(); !extra.empty()) refuse_words(app, table, extra);
  std::vector<RawValue> values;
  for (const Declared& entry : declared) {
    if (entry.option->count() == 0) continue;
    RawValue value{.name = std::string(entry.flag->name), .items = entry.option->results()};
    if (entry.flag->binding.kind != ValueKind::kList) value.items.erase(value.items.begin(), value.items.end() - 1);
    values.push_back(std::move(value));
  }
  return values;
}

}  // namespace megalith
