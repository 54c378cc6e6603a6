// Tests: `value is name`.
#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "core/chat/jinja_interpreter.h"
#include "core/chat/jinja_text.h"
#include "core/chat/python_text.h"

namespace megalith::jinja {

namespace {

template <bool (*passes)(const Value&)>
Value simple_test(Interpreter&, const Value& value, const Arguments& arguments) {
  arguments.bind({});
  return Value::boolean(passes(value));
}

template <Operator operation>
Value compare_test(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Value* other = arguments.bind({"other"})[0];
  if (other == nullptr) throw Problem("a test without the value to compare with");
  return Value::boolean(compare(interpreter, operation, value, *other));
}

bool is_defined(const Value& value) { return !value.is_undefined(); }
bool is_undefined(const Value& value) { return value.is_undefined(); }
bool is_none(const Value& value) { return value.is(Value::Kind::kNone); }
bool is_string(const Value& value) { return value.is_text(); }
bool is_mapping(const Value& value) { return value.is(Value::Kind::kDict); }
bool is_true_value(const Value& value) { return value.is(Value::Kind::kBool) && value.as_bool(); }
bool is_false_value(const Value& value) { return value.is(Value::Kind::kBool) && !value.as_bool(); }
bool is_boolean(const Value& value) { return value.is(Value::Kind::kBool); }
bool is_number(const Value& value) { return value.is_number(); }
bool is_integer(const Value& value) { return value.is(Value::Kind::kInt); }
bool is_float(const Value& value) { return value.is(Value::Kind::kFloat); }
bool is_callable(const Value& value) { return value.is(Value::Kind::kCallable); }

bool is_iterable(const Value& value) {
  return value.is_undefined() || value.is_text() || value.is(Value::Kind::kList) || value.is(Value::Kind::kDict) ||
         value.is(Value::Kind::kLoop);
}

bool is_sequence(const Value& value) {
  if (value.is(Value::Kind::kList)) return has_positions(value.as_list().kind);
  return is_iterable(value) && !value.is(Value::Kind::kLoop);
}

std::int64_t rest_of(Interpreter& interpreter, const Value& value, std::int64_t divisor) {
  const Value rest = calculate(interpreter, Operator::kModulo, value, Value::integer(divisor));
  return rest.is_integer() ? rest.as_integer() : (rest.as_real() == 0 ? 0 : rest.as_real() == 1 ? 1 : 2);
}

Value test_odd(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  arguments.bind({});
  return Value::boolean(rest_of(interpreter, value, 2) == 1);
}

Value test_even(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  arguments.bind({});
  return Value::boolean(rest_of(interpreter, value, 2) == 0);
}

Value test_divisible(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Value* divisor = arguments.bind({"num"})[0];
  if (divisor == nullptr) throw Problem("divisibleby without a number");
  return Value::boolean(rest_of(interpreter, value, integer_argument(divisor, 1, "the divisor")) == 0);
}

// Identity of Python objects, which is that of values for None and the booleans alone.
Value test_same(Interpreter&, const Value& value, const Arguments& arguments) {
  const Value* other = arguments.bind({"other"})[0];
  if (other == nullptr || !(is_none(*other) || is_boolean(*other))) {
    throw Problem("sameas of another value than None, True or False", "compare with ==");
  }
  return Value::boolean(value.kind() == other->kind() && equal(value, *other));
}

template <bool wants_upper>
Value test_case(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  arguments.bind({});
  const std::string text = interpreter.text_of(value);
  const std::string changed = wants_upper ? upper(text) : lower(text);
  const bool has_case = upper(text) != lower(text);
  return Value::boolean(has_case && changed == text);
}

Value test_filter(Interpreter&, const Value& value, const Arguments& arguments) {
  arguments.bind({});
  const std::string& name = text_argument(value, "the name of a filter");
  return Value::boolean(find_filter(name) != nullptr || find_list_filter(name) != nullptr);
}

Value test_test(Interpreter&, const Value& value, const Arguments& arguments) {
  arguments.bind({});
  return Value::boolean(find_test(text_argument(value, "the name of a test")) != nullptr);
}

}  // namespace

Operation find_test(std::string_view name) {
  static const std::unordered_map<std::string_view, Operation> kTests = {
      {"defined", simple_test<is_defined>},
      {"undefined", simple_test<is_undefined>},
      {"none", simple_test<is_none>},
      {"string", simple_test<is_string>},
      {"mapping", simple_test<is_mapping>},
      {"iterable", simple_test<is_iterable>},
      {"sequence", simple_test<is_sequence>},
      {"true", simple_test<is_true_value>},
      {"false", simple_test<is_false_value>},
      {"boolean", simple_test<is_boolean>},
      {"number", simple_test<is_number>},
      {"integer", simple_test<is_integer>},
      {"float", simple_test<is_float>},
      {"callable", simple_test<is_callable>},
      {"odd", test_odd},
      {"even", test_even},
      {"divisibleby", test_divisible},
      {"sameas", test_same},
      {"upper", test_case<true>},
      {"lower", test_case<false>},
      {"filter", test_filter},
      {"test", test_test},
      {"in", compare_test<Operator::kIn>},
      {"eq", compare_test<Operator::kEqual>},
      {"equalto", compare_test<Operator::kEqual>},
      {"==", compare_test<Operator::kEqual>},
      {"ne", compare_test<Operator::kNotEqual>},
      {"!=", compare_test<Operator::kNotEqual>},
      {"lt", compare_test<Operator::kLess>},
      {"lessthan", compare_test<Operator::kLess>},
      {"<", compare_test<Operator::kLess>},
      {"le", compare_test<Operator::kLessEqual>},
      {"<=", compare_test<Operator::kLessEqual>},
      {"gt", compare_test<Operator::kGreater>},
      {"greaterthan", compare_test<Operator::kGreater>},
      {">", compare_test<Operator::kGreater>},
      {"ge", compare_test<Operator::kGreaterEqual>},
      {">=", compare_test<Operator::kGreaterEqual>},
  };
  const auto found = kTests.find(name);
  return found == kTests.end() ? nullptr : found->second;
}

}  // namespace megalith::jinja
