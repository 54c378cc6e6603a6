#include "core/flags/binding.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>

#include "core/base/text/text.h"

namespace megalith {

namespace {

// Bound from which --help leaves the bound out.
constexpr std::int64_t kUnbounded = 1'000'000'000'000;

template <typename Number>
std::optional<Number> number_from(const std::string& text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

bool contains(const IntegerRange& range, std::int64_t value) { return value >= range.low && value <= range.high; }

// True if `value` is in the range after rounding to fp32, the dtype of devices. Infinite values are not, nor is 0 if
// the range excludes 0.
bool contains(const RealRange& range, double value) {
  constexpr double kLargest = std::numeric_limits<float>::max(), kSmallest = std::numeric_limits<float>::min();
  if (!(std::abs(value) <= kLargest)) return false;
  const double low = range.low_open && range.low == 0 ? kSmallest : range.low;
  const bool above = range.low_open && range.low != 0 ? value > low : value >= low;
  const bool below = range.high_open ? value < range.high : value <= range.high;
  return above && below;
}

struct RangeText {
  std::string expected;
  std::string range;
};

RangeText describe(const IntegerRange& range) {
  const bool is_open = range.high >= kUnbounded;
  return {fmt::format("an integer from {} to {}", range.low, range.high),
          is_open ? fmt::format(">={}", range.low) : fmt::format("{} to {}", range.low, range.high)};
}

RangeText describe(const RealRange& range) {
  const std::string low = fmt::format("{} {}", range.low_open ? "above" : "at least", range.low);
  const std::string low_sign = fmt::format("{}{}", range.low_open ? ">" : ">=", range.low);
  const std::string number = fmt::format("a number {}{}", range.low_open ? "" : "of ", low);
  if (std::isinf(range.high)) return {number + " and finite, in fp32", low_sign};
  const bool rounds = range.low_open && range.low == 0;  // small values round to 0
  return {fmt::format("{} and {} {}{}", number, range.high_open ? "below" : "at most", range.high,
                      rounds ? ", in fp32" : ""),
          fmt::format("{}, {}{}", low_sign, range.high_open ? "<" : "<=", range.high)};
}

template <class Number, class Range>
Binding number(ValueKind kind, Number* field, const Range& range) {
  const auto [expected, shown] = describe(range);
  return {.kind = kind,
          .expected = expected,
          .range = shown,
          .set =
              [=](const std::vector<std::string>& texts) {
                const auto value = number_from<Number>(texts[0]);
                if (!value || !contains(range, *value)) return false;
                *field = *value;
                return true;
              },
          .get = [=] { return fmt::format("{}", *field); }};
}

// Text "[a, b, c]", each item as `shown` prints it.
template <class Items, class Shown>
std::string in_brackets(const Items& items, const Shown& shown) {
  std::string text;  // joining numbers by fmt makes GCC 13 warn
  for (const auto& item : items) text.append(text.empty() ? "" : ", ").append(shown(item));
  return "[" + text + "]";
}

// Binding of a list of numbers; `takes` returns true if it accepts this number of items.
template <class Number, class Range, class Takes>
Binding numbers(ValueKind kind, std::vector<Number>* field, const Range& range, const std::string& expected,
                const Takes& takes) {
  return {.kind = kind,
          .expected = expected,
          .set =
              [=](const std::vector<std::string>& texts) {
                std::vector<Number> values;
                for (const std::string& text : texts) {
                  const auto value = number_from<Number>(text);
                  if (!value || !contains(range, *value)) return false;
                  values.push_back(*value);
                }
                if (!takes(values.size())) return false;
                *field = std::move(values);
                return true;
              },
          .get = [=] { return in_brackets(*field, [](Number value) { return fmt::format("{}", value); }); }};
}

}  // namespace

Binding toggle(bool* field) { return toggle_of(field, true, false); }
Binding inverted_toggle(bool* field) { return toggle_of(field, false, true); }

Binding integer(std::int64_t* field, IntegerRange range) { return number(ValueKind::kInteger, field, range); }
Binding real(double* field, RealRange range) { return number(ValueKind::kReal, field, range); }

Binding integers(std::vector<std::int64_t>* field, IntegerRange range, std::size_t count) {
  return numbers(ValueKind::kIntegers, field, range,
                 fmt::format("{} integers, each from {} to {}", count, range.low, range.high),
                 [count](std::size_t number) { return number == 0 || number == count; });
}

Binding any_integers(std::vector<std::int64_t>* field, IntegerRange range) {
  return numbers(ValueKind::kIntegers, field, range, fmt::format("integers, each from {} to {}", range.low, range.high),
                 [](std::size_t) { return true; });
}

Binding reals(std::vector<double>* field, RealRange range, std::size_t fewest, std::size_t most) {
  return numbers(ValueKind::kReals, field, range,
                 fmt::format("a list of {} to {} items, each {}", fewest, most, describe(range).expected),
                 [=](std::size_t number) { return number >= fewest && number <= most; });
}

Binding text(std::string* field) {
  return {.kind = ValueKind::kText,
          .expected = "text in UTF-8",
          .set =
              [=](const std::vector<std::string>& texts) {
                if (!is_utf8(texts[0])) return false;
                *field = texts[0];
                return true;
              },
          .get = [=] { return escaped(*field); }};
}

Binding list(std::vector<std::string>* field, std::vector<std::string_view> allowed) {
  Binding binding{.kind = ValueKind::kList, .expected = "a list of texts in UTF-8"};
  if (!allowed.empty()) {
    binding.expected = "a list of " + alternatives(allowed);
    binding.range = alternatives(allowed);
  }
  binding.set = [=](const std::vector<std::string>& texts) {
    const bool valid = std::all_of(texts.begin(), texts.end(), [&](const std::string& item) {
      return is_utf8(item) && (allowed.empty() || std::find(allowed.begin(), allowed.end(), item) != allowed.end());
    });
    if (valid) *field = texts;
    return valid;
  };
  binding.get = [=] { return in_brackets(*field, [](const std::string& item) { return escaped(item); }); };
  return binding;
}

Binding choice_of(const std::vector<std::string_view>& names, const Aliases& aliases,
                  const std::function<std::size_t()>& get_index, const std::function<void(std::size_t)>& set_index) {
  return {.kind = ValueKind::kChoice,
          .expected = alternatives(names),
          .range = alternatives(names),
          .choices = std::vector<std::string>(names.begin(), names.end()),
          .set =
              [=](const std::vector<std::string>& texts) {
                const auto alias = std::ranges::find(aliases, texts[0], &Aliases::value_type::first);
                const auto found = std::ranges::find(names, alias == aliases.end() ? texts[0] : alias->second);
                if (found == names.end()) return false;
                set_index(static_cast<std::size_t>(found - names.begin()));
                return true;
              },
          .get = [=] { return escaped(names[get_index()]); }};
}

}  // namespace megalith
