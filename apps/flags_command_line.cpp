#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>

#include "apps/flags_source.h"
#include "core/base/error.h"

namespace megalith {

namespace {

[[noreturn]] void refuse(std::string subject, std::string remedy) {
  fail({.code = ExitCode::kUsage, .subject = std::move(subject), .remedy = std::move(remedy), .show_place = false});
}

[[noreturn]] void refuse_unknown(App app, const std::vector<Flag>& table, const std::string& argument) {
  const std::string program(name_of(app));
  if (argument.size() < 2 || argument[0] != '-') {
    refuse(escaped_short(argument) + ": an argument without a flag", "see " + program + " --help");
  }
  const std::string written = argument.substr(0, argument.find('='));
  const std::string name = written.substr(std::min(written.find_first_not_of('-'), written.size()));
  std::vector<std::string> own;
  for (const Flag& flag : table) {
    if (flag.name == name && !takes(flag, app) && !flag.positional) {
      for (const App other : {App::kTrain, App::kGenerate, App::kPlan, App::kReport}) {
        if (takes(flag, other))
          refuse("--" + name + ": a flag of " + std::string(name_of(other)) + ", not of " + program, {});
      }
    }
    if (takes(flag, app) && !flag.positional) own.push_back("--" + std::string(flag.name));
  }
  const std::string shown = is_utf8(written) && written.size() <= 80 ? written : escaped_short(written);
  refuse(shown + ": unknown flag of " + program, suggestion("--" + name, own, "see " + program + " --help"));
}

// CLI11 would take the next flag for the value.
void refuse_missing_values(App app, const std::vector<Flag>& table, const std::vector<std::string>& arguments) {
  const auto find = [&](const std::string& argument) {
    return std::find_if(table.begin(), table.end(), [&](const Flag& flag) {
      return takes(flag, app) && argument.starts_with("--") && argument.substr(2) == flag.name;
    });
  };
  for (std::size_t i = 0; i + 1 < arguments.size(); ++i) {
    const auto flag = find(arguments[i]);
    if (flag == table.end() || flag->binding.kind == ValueKind::kToggle) continue;
    if (find(arguments[i + 1]) != table.end()) refuse(arguments[i] + ": a value is missing", {});
  }
}

struct Declared {
  const Flag* flag;
  CLI::Option* option;
  // CLI11 wants a place of the right type and keeps its address; the texts are read from the option.
  std::string one;
  std::vector<std::string> many;
};

}  // namespace

std::vector<RawValue> read_command_line(App app, const std::vector<Flag>& table,
                                        const std::vector<std::string>& arguments) {
  refuse_missing_values(app, table, arguments);
  CLI::App parser;
  parser.set_help_flag();
  parser.allow_extras();
  std::vector<Declared> declared;
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
  try {
    parser.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::ArgumentMismatch& error) {
    const std::string message = error.what();
    refuse(message.substr(0, message.find(':')) + ": a value is missing", {});
  } catch (const CLI::ParseError& error) {
    refuse(error.what(), "see " + std::string(name_of(app)) + " --help");
  }
  if (const std::vector<std::string> extra = parser.remaining(); !extra.empty()) refuse_unknown(app, table, extra[0]);
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
