// Operators, attributes and items, with Python's semantics.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <span>
#include <utility>

#include "core/chat/jinja_interpreter.h"
#include "core/chat/jinja_text.h"
#include "core/chat/python_text.h"
#include "core/checkpoint/printable.h"

namespace megalith::jinja {

namespace {

constexpr std::string_view kSymbols[] = {
    "+", "-", "*", "/", "//", "%", "**", "==", "!=", "<", "<=", ">", ">=", "in", "not in"};

[[noreturn]] void refuse_operands(Operator operation, const Value& left, const Value& right) {
  for (const Value* value : {&left, &right}) {
    if (value->is_undefined()) throw Problem(value->undefined_name());
  }
  throw Problem(
      fmt::format("{} {} {}", left.type_name(), kSymbols[static_cast<std::size_t>(operation)], right.type_name()),
      "convert the operands, as with '| string'");
}

[[noreturn]] void refuse_overflow() { throw Problem("an integer of more than 64 bits", "use smaller numbers"); }

std::int64_t floor_divided(std::int64_t a, std::int64_t b) {
  if (b == -1) {
    if (a == std::numeric_limits<std::int64_t>::min()) refuse_overflow();
    return -a;
  }
  const std::int64_t quotient = a / b;
  return quotient - static_cast<std::int64_t>(a % b != 0 && (a < 0) != (b < 0));
}

Value power_of(std::int64_t base, std::int64_t exponent) {
  if (exponent < 0) return Value::real(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  std::int64_t result = 1;
  if (base == 0 || base == 1) return Value::integer(exponent == 0 ? 1 : base);
  if (base == -1) return Value::integer(exponent % 2 == 0 ? 1 : -1);
  for (; exponent > 0; --exponent) {
    if (__builtin_mul_overflow(result, base, &result)) refuse_overflow();
  }
  return Value::integer(result);
}

Value calculate_integers(Operator operation, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  bool overflows = false;
  switch (operation) {
    case Operator::kAdd: overflows = __builtin_add_overflow(a, b, &result); break;
    case Operator::kSubtract: overflows = __builtin_sub_overflow(a, b, &result); break;
    case Operator::kMultiply: overflows = __builtin_mul_overflow(a, b, &result); break;
    case Operator::kPower: return power_of(a, b);
    default:
      if (b == 0) throw Problem("a division by zero");
      if (operation == Operator::kDivide) return Value::real(static_cast<double>(a) / static_cast<double>(b));
      result = operation == Operator::kFloorDivide ? floor_divided(a, b) : b == -1 ? 0 : a - floor_divided(a, b) * b;
      break;
  }
  if (overflows) refuse_overflow();
  return Value::integer(result);
}

Value calculate_reals(Operator operation, double a, double b) {
  switch (operation) {
    case Operator::kAdd: return Value::real(a + b);
    case Operator::kSubtract: return Value::real(a - b);
    case Operator::kMultiply: return Value::real(a * b);
    case Operator::kPower: return Value::real(std::pow(a, b));
    default: break;
  }
  if (b == 0) throw Problem("a division by zero");
  if (operation == Operator::kDivide) return Value::real(a / b);
  double rest = std::fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
  if (operation == Operator::kModulo) return Value::real(rest);
  const double quotient = (a - rest) / b, whole = std::floor(quotient);
  return Value::real(quotient - whole > 0.5 ? whole + 1 : whole);
}

// Text or a list, several times.
Value repeated(Interpreter& interpreter, const Value& value, std::int64_t count) {
  const auto times = static_cast<std::size_t>(std::max<std::int64_t>(count, 0));
  const std::size_t bytes = value.is_text() ? value.as_text().size() : value.as_list().items.size() * sizeof(Value);
  if (bytes > 0 && times > std::numeric_limits<std::size_t>::max() / bytes) refuse_overflow();
  interpreter.charge(bytes * times);
  if (value.is_text()) {
    std::string text;
    for (std::size_t i = 0; i < times && bytes > 0; ++i) text += value.as_text();
    return Value::text(std::move(text));
  }
  std::vector<Value> items;
  for (std::size_t i = 0; i < times && bytes > 0; ++i)
    items.insert(items.end(), value.as_list().items.begin(), value.as_list().items.end());
  return value.as_list().kind == ListKind::kTuple ? Value::tuple(std::move(items)) : Value::list(std::move(items));
}

bool is_addable(const Value& value) {
  return value.is_text() || (value.is(Value::Kind::kList) &&
                             (value.as_list().kind == ListKind::kList || value.as_list().kind == ListKind::kTuple));
}

std::string escape_html(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '\'': out += "&#39;"; break;
      case '"': out += "&#34;"; break;
      default: out += c;
    }
  }
  return out;
}

// Text of `safe` makes `+` escape the other text; `~` does not.
Value add_texts(Interpreter& interpreter, const Value& left, const Value& right) {
  const bool is_safe = left.is_safe_text() || right.is_safe_text();
  interpreter.charge((left.as_text().size() + right.as_text().size()) * (is_safe ? 6 : 1));
  if (!is_safe) return Value::text(left.as_text() + right.as_text());
  const auto part = [](const Value& text) {
    return text.is_safe_text() ? text.as_text() : escape_html(text.as_text());
  };
  return Value::safe_text(part(left) + part(right));
}

Value add_lists(Interpreter& interpreter, const Value& left, const Value& right) {
  std::vector<Value> items = left.as_list().items;
  items.insert(items.end(), right.as_list().items.begin(), right.as_list().items.end());
  interpreter.charge(items.size() * sizeof(Value));
  return left.as_list().kind == ListKind::kTuple ? Value::tuple(std::move(items)) : Value::list(std::move(items));
}

// Names of Python's attributes of values; `methods` are those that find_method knows.
Value method_or_undefined(const Value& object, const std::string& name) {
  static constexpr std::string_view kOtherText[] = {
      "casefold",   "center",    "encode",    "expandtabs",   "format_map", "isalnum",   "isalpha",
      "isascii",    "isdecimal", "isdigit",   "isidentifier", "islower",    "isnumeric", "isprintable",
      "isspace",    "istitle",   "isupper",   "ljust",        "maketrans",  "partition", "rjust",
      "rpartition", "swapcase",  "translate", "zfill"};
  static constexpr std::string_view kOtherDict[] = {"clear",   "copy",       "fromkeys", "pop",
                                                    "popitem", "setdefault", "update"};
  static constexpr std::string_view kOtherList[] = {"append", "clear",  "copy",    "extend", "insert",
                                                    "pop",    "remove", "reverse", "sort"};
  const std::string full = object.type_name() + "." + name;
  if (find_method(full) != nullptr) return Value::callable({.name = full, .self = object, .macro = nullptr});
  const auto holds = [&](std::span<const std::string_view> names) {
    return std::ranges::find(names, name) != names.end();
  };
  const bool is_other = (object.is_text() && holds(kOtherText)) ||
                        (object.is(Value::Kind::kDict) && holds(kOtherDict)) ||
                        (object.is(Value::Kind::kList) && holds(kOtherList)) || name.starts_with("__");
  if (is_other)
    throw Problem("the method " + printable(full) + ", which is not supported", "write the template without it");
  return Value::undefined(fmt::format("{} of a {}, which has none", printable(name), object.type_name()));
}

// Returns the member, null if there is none.
const Value* member_of(const Value& object, const std::string& name) {
  if (object.is(Value::Kind::kDict)) return object.as_dict().find(name);
  return object.is(Value::Kind::kNamespace) ? object.as_namespace().attributes.find(name) : nullptr;
}

std::optional<Value> item_at(const Value& object, std::int64_t index) {
  if (object.is_text()) {
    const auto size = static_cast<std::int64_t>(count_characters(object.as_text()));
    if (index < -size || index >= size) return std::nullopt;
    const std::size_t begin = byte_of(object.as_text(), static_cast<std::size_t>(index < 0 ? index + size : index));
    const std::string_view rest = std::string_view(object.as_text()).substr(begin);
    return Value::text(std::string(rest.substr(0, byte_of(rest, 1))));
  }
  if (!object.is(Value::Kind::kList) || !has_positions(object.as_list().kind)) return std::nullopt;
  const std::vector<Value>& items = object.as_list().items;
  const auto size = std::ssize(items);
  if (index < -size || index >= size) return std::nullopt;
  return items[static_cast<std::size_t>(index < 0 ? index + size : index)];
}

}  // namespace

void require_plain(const Value& value) {
  if (value.is_safe_text()) {
    throw Problem("an operation on text of 'safe', which Jinja treats as HTML", "remove '| safe'");
  }
}

Value calculate(Interpreter& interpreter, Operator operation, const Value& left, const Value& right) {
  if (operation == Operator::kAdd && left.is_text() && right.is_text()) return add_texts(interpreter, left, right);
  require_plain(left);
  require_plain(right);
  if (left.is_integer() && right.is_integer()) {
    return calculate_integers(operation, left.as_integer(), right.as_integer());
  }
  if (left.is_number() && right.is_number()) return calculate_reals(operation, left.as_real(), right.as_real());
  if (operation == Operator::kMultiply) {
    if (is_addable(left) && right.is_integer()) return repeated(interpreter, left, right.as_integer());
    if (is_addable(right) && left.is_integer()) return repeated(interpreter, right, left.as_integer());
  }
  if (operation == Operator::kAdd && is_addable(left) && left.type_name() == right.type_name()) {
    return add_lists(interpreter, left, right);
  }
  refuse_operands(operation, left, right);
}

bool compare(Interpreter& interpreter, Operator operation, const Value& left, const Value& right) {
  switch (operation) {
    case Operator::kEqual:
    case Operator::kNotEqual:
      interpreter.charge(std::min(left.weight(), right.weight()));
      return equal(left, right) == (operation == Operator::kEqual);
    case Operator::kIn:
    case Operator::kNotIn: {
      const bool by_key = right.is(Value::Kind::kDict);
      if (left.is_text() && right.is_text()) {
        interpreter.charge_search(right.as_text(), left.as_text());
      } else {
        interpreter.charge(by_key ? left.weight() : left.weight() + right.weight());
      }
      return contains(right, left) == (operation == Operator::kIn);
    }
    default: break;
  }
  if (!(left.is_number() && right.is_number()) && !(left.is_text() && right.is_text())) {
    refuse_operands(operation, left, right);
  }
  interpreter.charge(std::min(left.weight(), right.weight()));
  switch (operation) {
    case Operator::kLess: return less(left, right);
    case Operator::kGreater: return less(right, left);
    case Operator::kLessEqual: return less(left, right) || equal(left, right);
    default: return less(right, left) || equal(left, right);
  }
}

// Jinja looks for an attribute, which a dictionary's method is, and then for an item.
Value attribute_of(const Value& object, const std::string& name) {
  if (object.is_undefined()) throw Problem(fmt::format("{} of {}", printable(name), object.undefined_name()));
  if (object.is(Value::Kind::kLoop)) return loop_attribute(object.as_loop(), name);
  if (object.is(Value::Kind::kDict) && is_dict_method(name)) {
    return method_or_undefined(object, name);
  }
  if (const Value* member = member_of(object, name)) return *member;
  return method_or_undefined(object, name);
}

bool is_dict_method(std::string_view name) {
  return name == "items" || name == "keys" || name == "values" || name == "get";
}

// Jinja looks for an item and then for an attribute.
Value item_of(const Value& object, const Value& key) {
  if (object.is_undefined()) throw Problem(fmt::format("an item of {}", object.undefined_name()));
  require_plain(object);
  if (key.is_text()) {
    if (const Value* member = member_of(object, key.as_text())) return *member;
    if (object.is(Value::Kind::kLoop)) return loop_attribute(object.as_loop(), key.as_text());
    return method_or_undefined(object, key.as_text());
  }
  if (object.is(Value::Kind::kDict) && key.is_integer()) {
    if (const Value* member = find_member(object.as_dict(), key)) return *member;
  }
  if (key.is_integer()) {
    if (std::optional<Value> item = item_at(object, key.as_integer())) return *std::move(item);
    return Value::undefined(fmt::format("item {} of a {}, which has none", key.as_integer(), object.type_name()));
  }
  return Value::undefined(fmt::format("an item of a {} by a {}", object.type_name(), key.type_name()));
}

Value loop_attribute(const Loop& loop, const std::string& name) {
  const std::vector<Value>& items = loop.items.as_list().items;
  const auto index = static_cast<std::int64_t>(loop.index), length = std::ssize(items);
  if (name == "index") return Value::integer(index + 1);
  if (name == "index0") return Value::integer(index);
  if (name == "revindex") return Value::integer(length - index);
  if (name == "revindex0") return Value::integer(length - index - 1);
  if (name == "first") return Value::boolean(index == 0);
  if (name == "last") return Value::boolean(index + 1 == length);
  if (name == "length") return Value::integer(length);
  if (name == "depth" || name == "depth0") return Value::integer(name == "depth" ? 1 : 0);
  if (name == "previtem")
    return index > 0 ? items[loop.index - 1] : Value::undefined("loop.previtem of the first item");
  if (name == "nextitem") {
    return index + 1 < length ? items[loop.index + 1] : Value::undefined("loop.nextitem of the last item");
  }
  if (name == "cycle") {
    return Value::callable({.name = "loop.cycle", .self = Value::list({Value::integer(index)}), .macro = nullptr});
  }
  if (name == "changed") throw Problem("loop.changed, which is not supported", "compare with loop.previtem");
  return Value::undefined(fmt::format("{} of loop, which has none", printable(name)));
}

}  // namespace megalith::jinja
