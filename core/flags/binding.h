// Field of one flag: how a text becomes its value, and how the value is printed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace megalith {

enum class ValueKind { kToggle, kInteger, kReal, kText, kList, kReals, kIntegers, kChoice };

struct Binding {
  ValueKind kind = ValueKind::kText;
  std::string expected;                   // valid values, as errors print them
  std::string range;                      // short form for --help; may be empty
  std::vector<std::string> choices = {};  // names of a value with fixed names
  // Sets the field from one text, or from the texts of a list. False: invalid, the field is unchanged.
  std::function<bool(const std::vector<std::string>&)> set;
  std::function<std::string()> get;  // value that is valid TOML and JSON
};

struct IntegerRange {
  std::int64_t low;
  std::int64_t high;
};

// Open ends exclude the bound itself.
struct RealRange {
  double low;
  double high;
  bool low_open = false;
  bool high_open = false;
};

Binding toggle(bool* field);
Binding inverted_toggle(bool* field);  // the flag clears the field
Binding integer(std::int64_t* field, IntegerRange range);
Binding integers(std::vector<std::int64_t>* field, IntegerRange range, std::size_t count);  // none, or `count`
Binding any_integers(std::vector<std::int64_t>* field, IntegerRange range);                 // any number of them
Binding real(double* field, RealRange range);
Binding reals(std::vector<double>* field, RealRange range, std::size_t fewest, std::size_t most);
Binding text(std::string* field);
Binding list(std::vector<std::string>* field, std::vector<std::string_view> allowed = {});

// Alias of a name in `names`; `names[i]` stands for the value i of an enumeration.
using Aliases = std::vector<std::pair<std::string_view, std::string_view>>;
Binding choice_of(const std::vector<std::string_view>& names, const Aliases& aliases,
                  const std::function<std::size_t()>& get_index, const std::function<void(std::size_t)>& set_index);

template <typename Enum>
Binding choice(Enum* field, const std::vector<std::string_view>& names, const Aliases& aliases = {}) {
  return choice_of(
      names, aliases, [field] { return static_cast<std::size_t>(*field); },
      [field](std::size_t index) { *field = static_cast<Enum>(index); });
}

// A flag that sets an enumeration to `on` and otherwise leaves it at `off`.
template <typename Enum>
Binding toggle_of(Enum* field, Enum on, Enum off) {
  return {.kind = ValueKind::kToggle,
          .expected = "true or false",
          .set =
              [=](const std::vector<std::string>& texts) {
                if (texts[0] != "true" && texts[0] != "false") return false;
                *field = texts[0] == "true" ? on : off;
                return true;
              },
          .get = [=] { return std::string(*field == on ? "true" : "false"); }};
}

}  // namespace megalith
