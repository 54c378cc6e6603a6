#include "apps/flags/flags_binding.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>

#include "core/base/text/text.h"

namespace megalith {

namespace {

// A bound so far away that --help leaves it out.
constexpr std::int64_t kUnbounded = 1'000'000'000'000;

template <typename Number>
std::optional<Number> number_from(const std::string& text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// What is infinite, or 0 where that is excluded, once it is rounded to fp32, in which devices compute, is not in a
// range.
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

RangeText describe(const RealRange& range) {
  const std::string low = fmt::format("{} {}", range.low_open ? "above" : "at least", range.low);
  const std::string low_sign = fmt::format("{}{}", range.low_open ? ">" : ">=", range.low);
  const std::string number = fmt::format("a number {}{}", range.low_open ? "" : "of ", low);
  if (std::isinf(range.high)) return {number + " and finite, in fp32", low_sign};
  const bool rounds = range.low_open && range.low == 0;  // small ones to 0
  return {fmt::format("{} and {} {}{}", number, range.high_open ? "below" : "at most", range.high,
                      rounds ? ", in fp32" : ""),
          fmt::format("{}, {}{}", low_sign, range.high_open ? "<" : "<=", range.high)};
}

}  // namespace

Binding toggle(bool* field) { return toggle_of(field, true, false); }
Binding inverted_toggle(bool* field) { return toggle_of(field, false, true); }

Binding integer(std::int64_t* field, IntegerRange range) {
  return {.kind = ValueKind::kInteger,
          .expected = fmt::format("an integer from {} to {}", range.low, range.high),
          .range = range.high >= kUnbounded ? fmt::format(">={}", range.low)
                                            : fmt::format("{} to {}", range.low, range.high),
          .set =
              [=](const std::vector<std::string>& texts) {
                const auto value = number_from<std::int64_t>(texts[0]);
                if (!value || *value < range.low || *value > range.high) return false;
                *field = *value;
                return true;
              },
          .get = [=] { return fmt::format("{}", *field); }};
}

Binding integers(std::vector<std::int64_t>* field, IntegerRange range, std::size_t count) {
  Binding binding{.kind = ValueKind::kIntegers,
                  .expected = fmt::format("{} integers, each from {} to {}", count, range.low, range.high)};
  binding.set = [=](const std::vector<std::string>& texts) {
    std::vector<std::int64_t> values;
    for (const std::string& text : texts) {
      const auto value = number_from<std::int64_t>(text);
      if (!value || *value < range.low || *value > range.high) return false;
      values.push_back(*value);
    }
    if (!values.empty() && values.size() != count) return false;
    *field = std::move(values);
    return true;
  };
  binding.get = [=] {
    std::string items;
    for (const std::int64_t value : *field) items += fmt::format("{}{}", items.empty() ? "" : ", ", value);
    return "[" + items + "]";
  };
  return binding;
}

Binding real(double* field, RealRange range) {
  const RangeText text = describe(range);
  return {.kind = ValueKind::kReal,
          .expected = text.expected,
          .range = text.range,
          .set =
              [=](const std::vector<std::string>& texts) {
                const auto value = number_from<double>(texts[0]);
                if (!value || !contains(range, *value)) return false;
                *field = *value;
                return true;
              },
          .get = [=] { return fmt::format("{}", *field); }};
}

Binding reals(std::vector<double>* field, RealRange range, std::size_t fewest, std::size_t most) {
  Binding binding{.kind = ValueKind::kReals,
                  .expected = fmt::format("a list of {} to {} items, each {}", fewest, most, describe(range).expected)};
  binding.set = [=](const std::vector<std::string>& texts) {
    std::vector<double> values;
    for (const std::string& text : texts) {
      const auto value = number_from<double>(text);
      if (!value || !contains(range, *value)) return false;
      values.push_back(*value);
    }
    if (values.size() < fewest || values.size() > most) return false;
    *field = std::move(values);
    return true;
  };
  binding.get = [=] {  // each by itself: to join numbers compiles their formatting here, of which GCC 13 warns
    std::string items;
    for (const double value : *field) items += fmt::format("{}{}", items.empty() ? "" : ", ", value);
    return "[" + items + "]";
  };
  return binding;
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
  binding.get = [=] {
    std::string items;
    for (const std::string& item : *field) items += (items.empty() ? "" : ", ") + escaped(item);
    return "[" + items + "]";
  };
  return binding;
}

Binding choice_of(std::vector<std::string_view> names, Aliases aliases, std::function<std::size_t()> get_index,
                  std::function<void(std::size_t)> set_index) {
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
