// Filters of one value. Those of lists are in jinja_list_filters.cpp.
#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <unordered_map>

#include "core/base/text/parse_number.h"
#include "core/chat/jinja_interpreter.h"
#include "core/chat/jinja_text.h"
#include "core/chat/python_text.h"

namespace megalith::jinja {

namespace {

constexpr std::int64_t kMaxIndent = 1000;

std::string spaces(std::int64_t count) {
  if (count > kMaxIndent) throw Problem(fmt::format("an indentation of {}", count), "indent less");
  return std::string(static_cast<std::size_t>(std::max<std::int64_t>(count, 0)), ' ');
}

Value filter_trim(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Value* characters = arguments.bind({"chars"})[0];
  const std::string text = interpreter.text_of(value);
  if (characters == nullptr || characters->is(Value::Kind::kNone)) return Value::text(std::string(strip(text)));
  const std::string& set = text_argument(*characters, "the characters to trim");
  interpreter.charge(text.size() * set.size());
  return Value::text(std::string(strip(text, set)));
}

template <std::string (*change_case)(std::string_view)>
Value filter_case(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  arguments.bind({});
  return Value::text(change_case(interpreter.text_of(value)));
}

// The separators (',', ': ') of tojson.
void set_separators(JsonStyle& style, const Value& pair) {
  if (!pair.is(Value::Kind::kList) || pair.as_list().items.size() != 2) throw Problem("separators that are no pair");
  style.item_separator = text_argument(pair.as_list().items[0], "the separator of items");
  style.key_separator = text_argument(pair.as_list().items[1], "the separator of keys");
}

Value filter_to_json(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const auto bound = arguments.bind({"ensure_ascii", "indent", "separators", "sort_keys"});
  const auto given = [&](std::size_t i) { return bound[i] != nullptr && !bound[i]->is(Value::Kind::kNone); };
  JsonStyle style;
  style.ascii = given(0) && bound[0]->is_true();
  if (given(1))
    style.indent = bound[1]->is_text() ? bound[1]->as_text() : spaces(integer_argument(bound[1], 0, "indent"));
  if (given(2)) set_separators(style, *bound[2]);
  style.sorted = given(3) && bound[3]->is_true();
  const std::size_t per_item = (style.indent ? style.indent->size() * static_cast<std::size_t>(value.depth()) : 0) +
                               (style.item_separator ? style.item_separator->size() : 0) + style.key_separator.size();
  interpreter.charge(value.weight() * (6 + per_item));
  return Value::text(to_json(value, style));
}

Value filter_string(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  arguments.bind({});
  return value.is_text() ? value : Value::text(interpreter.text_of(value));
}

Value filter_safe(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  arguments.bind({});
  return value.is_safe_text() ? value : Value::safe_text(interpreter.text_of(value));
}

Value filter_default(Interpreter&, const Value& value, const Arguments& arguments) {
  const auto bound = arguments.bind({"default_value", "boolean"});
  const bool by_truth = bound[1] != nullptr && bound[1]->is_true();
  if (!value.is_undefined() && (!by_truth || value.is_true())) return value;
  return bound[0] != nullptr ? *bound[0] : Value::text("");
}

Value filter_length(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  arguments.bind({});
  if (value.is_text()) interpreter.charge(value.as_text().size());
  return Value::integer(length_of(value));
}

Value filter_replace(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const auto bound = arguments.bind({"old", "new", "count"});
  if (bound[0] == nullptr || bound[1] == nullptr) throw Problem("replace without two texts");
  const std::string text = interpreter.text_of(value), from = interpreter.text_of(*bound[0]),
                    to = interpreter.text_of(*bound[1]);
  const bool is_counted = bound[2] != nullptr && !bound[2]->is(Value::Kind::kNone);
  const std::int64_t count = is_counted ? integer_argument(bound[2], -1, "count") : -1;
  interpreter.charge_search(text, from);
  if (to.size() > from.size()) {
    interpreter.charge(text.size() / std::max<std::size_t>(from.size(), 1) * (to.size() - from.size()) + to.size());
  }
  return Value::text(replace(text, from, to, count));
}

Value filter_indent(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const auto bound = arguments.bind({"width", "first", "blank"});
  const bool is_text = bound[0] != nullptr && bound[0]->is_text();
  const std::string margin = is_text ? bound[0]->as_text() : spaces(integer_argument(bound[0], 4, "width"));
  const bool first = bound[1] != nullptr && bound[1]->is_true(), blank = bound[2] != nullptr && bound[2]->is_true();
  const std::string text = text_argument(value, "the text to indent") + "\n";  // the last line counts even if empty
  interpreter.charge(text.size() * 16);
  const std::vector<std::string_view> lines = split_lines(text, false);
  interpreter.charge(lines.size() * margin.size());
  std::string out = first ? margin : "";
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out += '\n';
    if (i > 0 && (blank || !lines[i].empty())) out += margin;
    out += lines[i];
  }
  return Value::text(std::move(out));
}

Value integer_of_real(double value, const Value& otherwise) {
  constexpr double kLimit = 9223372036854775808.0;  // 2^63
  if (!(value > -kLimit && value < kLimit)) return otherwise;
  return Value::integer(static_cast<std::int64_t>(value));
}

// Text of a number without the white space and the plus that Python accepts around it.
std::string_view number_text(std::string_view text) {
  text = strip(text);
  if (text.starts_with('+') && text.size() > 1 && text[1] != '-') text.remove_prefix(1);
  return text;
}

Value filter_int(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const auto bound = arguments.bind({"default", "base"});
  if (bound[1] != nullptr) throw Problem("the base of an integer, which is not supported", "leave it out");
  const Value otherwise = bound[0] != nullptr ? *bound[0] : Value::integer(0);
  if (value.is_integer()) return Value::integer(value.as_integer());
  if (value.is(Value::Kind::kFloat)) return integer_of_real(value.as_real(), otherwise);
  if (!value.is_text()) return otherwise;
  interpreter.charge(value.as_text().size());
  const std::string_view text = number_text(value.as_text());
  if (const auto integer = parse_number<std::int64_t>(text)) return Value::integer(*integer);
  const auto real = parse_number<double>(text);
  return real ? integer_of_real(*real, otherwise) : otherwise;
}

Value filter_float(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const auto bound = arguments.bind({"default"});
  const Value otherwise = bound[0] != nullptr ? *bound[0] : Value::real(0);
  if (value.is_number()) return Value::real(value.as_real());
  if (!value.is_text()) return otherwise;
  interpreter.charge(value.as_text().size());
  const auto real = parse_number<double>(number_text(value.as_text()));
  return real ? Value::real(*real) : otherwise;
}

Value filter_abs(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  arguments.bind({});
  if (!value.is_number()) throw Problem("abs of " + value.type_name());
  if (!value.is_integer()) return Value::real(std::abs(value.as_real()));
  return value.as_integer() >= 0 ? Value::integer(value.as_integer())
                                 : calculate(interpreter, Operator::kSubtract, Value::integer(0), value);
}

}  // namespace

Operation find_filter(std::string_view name) {
  static const std::unordered_map<std::string_view, Operation> kFilters = {
      {"trim", filter_trim},
      {"upper", filter_case<upper>},
      {"lower", filter_case<lower>},
      {"title", filter_case<filter_title>},
      {"capitalize", filter_case<capitalize>},
      {"tojson", filter_to_json},
      {"string", filter_string},
      {"safe", filter_safe},
      {"default", filter_default},
      {"d", filter_default},
      {"length", filter_length},
      {"count", filter_length},
      {"replace", filter_replace},
      {"indent", filter_indent},
      {"int", filter_int},
      {"float", filter_float},
      {"abs", filter_abs},
  };
  const auto found = kFilters.find(name);
  return found == kFilters.end() ? nullptr : found->second;
}

}  // namespace megalith::jinja
