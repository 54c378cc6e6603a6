// Evaluation of expressions.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/chat/jinja_interpreter.h"
#include "core/chat/jinja_text.h"
#include "core/chat/python_text.h"
#include "core/checkpoint/printable.h"

namespace megalith::jinja {

using Kind = Expression::Kind;

// Bytes that a copy of a value has, without those of a list's items.
static std::size_t size_of(const Value& value) {
  if (value.is_text()) return value.as_text().size();
  return value.is(Value::Kind::kList) ? value.as_list().items.size() * sizeof(Value) : sizeof(Value);
}

class Interpreter::Level {
 public:
  explicit Level(Interpreter& interpreter) : interpreter_(interpreter) {
    if (++interpreter.depth_ > interpreter.limits_.depth) {
      throw Problem("macros that call each other without end", "correct the template");
    }
  }
  ~Level() { --interpreter_.depth_; }
  Level(const Level&) = delete;
  Level& operator=(const Level&) = delete;

 private:
  Interpreter& interpreter_;
};

// The result is valid as long as `storage` and the variables are. No expression assigns a variable that another part of
// it reads, since macros assign their own.
const Value& Interpreter::evaluate_into(const Expression& expression, Value& storage) {
  const Level level(*this);
  charge(16);
  switch (expression.kind) {
    case Kind::kConstant: return expression.constant;
    case Kind::kName:
      if (const Value* variable = find_variable(expression.name)) return *variable;
      return storage = look_up(expression.name);
    case Kind::kAttribute: return read_attribute(expression, storage);
    case Kind::kItem: return read_item(expression, storage);
    default: return storage = evaluate_other(expression);
  }
}

const Value& Interpreter::read_attribute(const Expression& expression, Value& storage) {
  const Value& object = evaluate_into(*expression.parts[0], storage);
  at_ = expression.at;
  if (object.is(Value::Kind::kDict) && !is_dict_method(expression.name)) {
    if (const Value* member = object.as_dict().find(expression.name)) return *member;
  }
  return storage = attribute_of(object, expression.name);
}

const Value& Interpreter::read_item(const Expression& expression, Value& storage) {
  Value key_storage;
  const Value& object = evaluate_into(*expression.parts[0], storage);
  const Value& key = evaluate_into(*expression.parts[1], key_storage);
  at_ = expression.at;
  if (object.is(Value::Kind::kDict) && key.is_text()) {
    if (const Value* member = object.as_dict().find(key.as_text())) return *member;
  }
  if (object.is_text()) charge(object.as_text().size());
  return storage = item_of(object, key);
}

bool Interpreter::evaluate_condition(const Expression& expression) {
  Value storage;
  return evaluate_into(expression, storage).is_true();
}

Value Interpreter::evaluate(const Expression& expression) {
  Value storage;
  const Value& value = evaluate_into(expression, storage);
  if (&value == &storage) return storage;
  return value;
}

Value Interpreter::evaluate_other(const Expression& expression) {
  switch (expression.kind) {
    case Kind::kCaptured: return captured_;
    case Kind::kNot:
    case Kind::kAnd:
    case Kind::kOr:
    case Kind::kConditional: return evaluate_logic(expression);
    case Kind::kCompare: return evaluate_compare(expression);
    case Kind::kCall: return evaluate_call(expression);
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kDict: return evaluate_items(expression);
    case Kind::kSlice: return evaluate_slice(expression);
    case Kind::kNegative:
    case Kind::kPositive: return evaluate_sign(expression);
    default: return evaluate_operation(expression);
  }
}

Value Interpreter::evaluate_operation(const Expression& expression) {
  Value first_storage, second_storage;
  if (expression.kind == Kind::kConcatenate) {
    std::string text;
    for (const ExpressionPointer& part : expression.parts) append_text(text, evaluate_into(*part, first_storage));
    return Value::text(std::move(text));
  }
  if (expression.kind == Kind::kBinary && expression.operators[0] == Operator::kAdd) return evaluate_sum(expression);
  const Value& first = evaluate_into(*expression.parts[0], first_storage);
  if (expression.kind == Kind::kBinary) {
    const Value& second = evaluate_into(*expression.parts[1], second_storage);
    at_ = expression.at;
    return calculate(*this, expression.operators[0], first, second);
  }
  const Arguments arguments = evaluate_arguments(expression);
  at_ = expression.at;
  if (expression.kind == Kind::kFilter) return filter(expression.name, first, arguments);
  return Value::boolean(test(expression.name, first, arguments));
}

// Adds the terms of a + b + c in one text as long as they are texts.
Value Interpreter::evaluate_sum(const Expression& expression) {
  const auto is_sum = [](const Expression& e) { return e.kind == Kind::kBinary && e.operators[0] == Operator::kAdd; };
  const auto is_plain = [](const Value& value) { return value.is_text() && !value.is_safe_text(); };
  std::vector<const Expression*> sums = {&expression};  // the outermost first
  while (is_sum(*sums.back()->parts[0])) sums.push_back(sums.back()->parts[0].get());
  charge(16 * (sums.size() - 1));
  Value storage;
  std::string text;
  bool is_text = false;  // the sum is `text`, else `sum`
  Value sum = evaluate(*sums.back()->parts[0]);
  for (std::size_t i = sums.size(); i-- > 0;) {
    const Value& term = evaluate_into(*sums[i]->parts[1], storage);
    at_ = sums[i]->at;
    if (!is_text && is_plain(sum) && is_plain(term)) {
      text = sum.as_text();
      is_text = true;
    }
    if (is_text && is_plain(term)) {
      charge(text.size() + term.as_text().size());
      text += term.as_text();
      continue;
    }
    if (std::exchange(is_text, false)) sum = Value::text(std::exchange(text, {}));
    sum = calculate(*this, Operator::kAdd, sum, term);
  }
  return is_text ? Value::text(std::move(text)) : sum;
}

Value Interpreter::evaluate_logic(const Expression& expression) {
  const auto part = [&](std::size_t i) { return evaluate(*expression.parts[i]); };
  if (expression.kind == Kind::kNot) return Value::boolean(!evaluate_condition(*expression.parts[0]));
  if (expression.kind == Kind::kConditional) {
    if (evaluate_condition(*expression.parts[1])) return part(0);
    return expression.parts[2] ? part(2) : Value::undefined("the else of an 'if' without one");
  }
  Value left = part(0);
  return left.is_true() == (expression.kind == Kind::kAnd) ? part(1) : left;
}

Value Interpreter::evaluate_compare(const Expression& expression) {
  Value storages[2];
  const Value* left = &evaluate_into(*expression.parts[0], storages[0]);
  for (std::size_t i = 0; i < expression.operators.size(); ++i) {
    const Value& right = evaluate_into(*expression.parts[i + 1], storages[(i + 1) % 2]);
    at_ = expression.at;
    if (!compare(*this, expression.operators[i], *left, right)) return Value::boolean(false);
    left = &right;
  }
  return Value::boolean(true);
}

Value Interpreter::evaluate_sign(const Expression& expression) {
  const Value value = evaluate(*expression.parts[0]);
  at_ = expression.at;
  if (!value.is_number()) throw Problem("a sign of " + value.type_name());
  const bool is_negative = expression.kind == Kind::kNegative;
  if (!value.is_integer()) return Value::real(is_negative ? -value.as_real() : value.as_real());
  return is_negative ? calculate(*this, Operator::kSubtract, Value::integer(0), value)
                     : Value::integer(value.as_integer());
}

Value Interpreter::evaluate_slice(const Expression& expression) {
  const Value object = evaluate(*expression.parts[0]);
  std::optional<std::int64_t> bounds[3];
  for (std::size_t i = 0; i < 3; ++i) {
    if (!expression.parts[i + 1]) continue;
    const Value bound = evaluate(*expression.parts[i + 1]);
    at_ = expression.at;
    if (bound.is(Value::Kind::kNone)) continue;
    if (!bound.is_integer()) throw Problem("a slice with " + bound.type_name());
    bounds[i] = bound.as_integer();
  }
  at_ = expression.at;
  const bool is_list = object.is(Value::Kind::kList) && has_positions(object.as_list().kind);
  if (object.is_undefined()) throw Problem("a slice of " + object.undefined_name());
  if (!object.is_text() && !is_list)
    throw Problem("a slice of " + object.type_name(), "append '| list' if it is a list");
  require_plain(object);
  charge(object.is_text() ? 32 * object.weight() : sizeof(Value) * object.as_list().items.size());
  if (object.is_text()) {
    const std::vector<std::string_view> characters = characters_of(object.as_text());
    std::string text;
    for (const std::size_t at : slice_positions(characters.size(), bounds[0], bounds[1], bounds[2].value_or(1)))
      text += characters[at];
    return Value::text(std::move(text));
  }
  std::vector<Value> items;
  const std::vector<Value>& all = object.as_list().items;
  for (const std::size_t at : slice_positions(all.size(), bounds[0], bounds[1], bounds[2].value_or(1)))
    items.push_back(all[at]);
  const bool is_tuple = object.as_list().kind == ListKind::kTuple;
  return is_tuple ? Value::tuple(std::move(items)) : Value::list(std::move(items));
}

Value Interpreter::evaluate_items(const Expression& expression) {
  std::vector<Value> items;
  for (const ExpressionPointer& part : expression.parts) items.push_back(evaluate(*part));
  at_ = expression.at;
  charge(items.size() * sizeof(Value));
  if (expression.kind == Kind::kList) return Value::list(std::move(items));
  if (expression.kind == Kind::kTuple) return Value::tuple(std::move(items));
  Dict dict;
  for (std::size_t i = 0; i < items.size(); i += 2) {
    dict.set(key_text(items[i]), std::move(items[i + 1]));
  }
  charge(dict.weight);
  return Value::dict(std::move(dict));
}

Arguments Interpreter::evaluate_arguments(const Expression& expression) {
  Arguments arguments;
  for (std::size_t i = 0; i < expression.keywords.size(); ++i) {
    Value value = evaluate(*expression.parts[i + 1]);
    if (expression.keywords[i].empty()) {
      arguments.positional.push_back(std::move(value));
    } else {
      arguments.named.emplace_back(expression.keywords[i], std::move(value));
    }
  }
  return arguments;
}

Value Interpreter::evaluate_call(const Expression& expression) {
  const Value callee = evaluate(*expression.parts[0]);
  const Arguments arguments = evaluate_arguments(expression);
  at_ = expression.at;
  return call(callee, arguments);
}

const Value* Interpreter::find_variable(const std::string& name) const {
  for (const Scope* scope = scope_; scope != nullptr; scope = scope->parent) {
    const auto found = scope->variables.find(name);
    if (found != scope->variables.end()) return &found->second;
  }
  return nullptr;
}

Value Interpreter::look_up(const std::string& name) const {
  static constexpr std::string_view kFunctions[] = {"range", "dict", "namespace", "raise_exception", "strftime_now"};
  static constexpr std::string_view kUnsupported[] = {"cycler", "joiner",  "lipsum", "self",
                                                      "caller", "varargs", "kwargs"};
  if (const Value* variable = find_variable(name)) return *variable;
  if (std::ranges::find(kFunctions, name) != std::end(kFunctions)) {
    return Value::callable({.name = name, .self = {}, .macro = nullptr});
  }
  if (std::ranges::find(kUnsupported, name) != std::end(kUnsupported)) {
    throw Problem(printable(name) + ", which is not supported", "write the template without it");
  }
  return Value::undefined_variable(name);
}

Value Interpreter::call(const Value& callee, const Arguments& arguments) {
  if (callee.is_undefined()) throw Problem("a call of " + callee.undefined_name());
  if (!callee.is(Value::Kind::kCallable)) throw Problem("a call of " + callee.type_name());
  const Callable& callable = callee.as_callable();
  if (callable.macro != nullptr) return call_macro(*callable.macro, arguments);
  if (callable.self.is_undefined()) return call_function(callable.name, arguments);
  const Operation method = find_method(callable.name);
  if (method == nullptr) throw Problem(printable(callable.name) + ", which is not supported");
  require_plain(callable.self);
  return method(*this, callable.self, arguments);
}

Value Interpreter::call_function(const std::string& name, const Arguments& arguments) {
  if (name == "range") return make_range(arguments);
  if (name == "raise_exception") {
    const std::vector<const Value*> bound = arguments.bind({"message"});
    throw Problem("an error of the template: " + (bound[0] != nullptr ? str(*bound[0]) : std::string()),
                  "correct the conversation");
  }
  if (name == "strftime_now") {
    const std::vector<const Value*> bound = arguments.bind({"format"});
    if (bound[0] == nullptr) throw Problem("strftime_now without a format");
    return Value::text(format_date(date_, text_argument(*bound[0], "the format")));
  }
  Dict content;  // of dict and namespace
  if (arguments.positional.size() > 1) throw Problem(name + " of several values");
  if (!arguments.positional.empty()) {
    if (!arguments.positional[0].is(Value::Kind::kDict)) throw Problem(name + " of no dictionary");
    content = arguments.positional[0].as_dict();
  }
  for (const auto& [key, value] : arguments.named) content.set(key, value);
  charge(content.weight);
  return name == "dict" ? Value::dict(std::move(content)) : make_namespace(std::move(content));
}

Value Interpreter::make_range(const Arguments& arguments) {
  constexpr std::int64_t kMaxRange = 100000;  // Jinja's limit
  const std::vector<Value>& given = arguments.positional;
  if (given.empty() || given.size() > 3 || !arguments.named.empty()) throw Problem("range without 1 to 3 integers");
  std::int64_t numbers[3] = {0, 0, 1};
  for (std::size_t i = 0; i < given.size(); ++i) {
    if (!given[i].is_integer()) throw Problem("range of " + given[i].type_name());
    numbers[given.size() == 1 ? 1 : i] = given[i].as_integer();
  }
  const auto [start, stop, step] = numbers;
  if (step == 0) throw Problem("range with step 0");
  std::vector<Value> items;
  for (std::int64_t at = start; step > 0 ? at < stop : at > stop;) {
    if (std::cmp_equal(items.size(), kMaxRange)) throw Problem(fmt::format("a range of more than {}", kMaxRange));
    items.push_back(Value::integer(at));
    if (__builtin_add_overflow(at, step, &at)) break;
  }
  charge(items.size() * sizeof(Value));
  return Value::range(std::move(items));
}

Value Interpreter::call_macro(const Macro& macro, const Arguments& arguments) {
  const std::size_t count = macro.parameters.size();
  if (arguments.positional.size() > count) {
    throw Problem(
        fmt::format("{} arguments of the macro {}, which has {}", arguments.positional.size(), macro.name, count));
  }
  const std::size_t begin = at_;
  Scope* const caller = std::exchange(scope_, &globals_);
  Scope scope{.parent = &globals_};
  scope_ = &scope;
  for (const auto& [name, value] : arguments.named) {
    const auto parameter = std::ranges::find(macro.parameters, name);
    const bool is_given = parameter - macro.parameters.begin() < std::ssize(arguments.positional);
    if (parameter == macro.parameters.end() || is_given) {
      throw Problem(fmt::format("the argument {} of the macro {}", printable(name), macro.name));
    }
    scope.variables[name] = value;
  }
  for (std::size_t i = 0; i < count; ++i) {
    const std::string& name = macro.parameters[i];
    if (i < arguments.positional.size()) {
      scope.variables[name] = arguments.positional[i];
    } else if (!scope.variables.contains(name)) {
      scope.variables[name] = macro.defaults[i] ? evaluate(*macro.defaults[i])
                                                : Value::undefined(printable(name) + ", which has no argument");
    }
  }
  Value text = Value::text(capture(macro.body));
  scope_ = caller;
  at_ = begin;
  return text;
}

Value Interpreter::filter(const std::string& name, const Value& value, const Arguments& arguments) {
  Operation operation = find_filter(name);
  if (operation == nullptr) operation = find_list_filter(name);
  if (operation == nullptr) {
    throw Problem("the filter " + printable(name) + ", which is not supported", "write the template without it");
  }
  static constexpr std::string_view kOfSafeText[] = {"safe", "string",  "tojson", "length", "count", "default",
                                                     "d",    "replace", "list",   "int",    "float"};
  if (std::ranges::find(kOfSafeText, name) == std::end(kOfSafeText)) require_plain(value);
  charge(2 * size_of(value));
  Value result = operation(*this, value, arguments);
  charge(size_of(result));
  return result;
}

bool Interpreter::test(const std::string& name, const Value& value, const Arguments& arguments) {
  const Operation operation = find_test(name);
  if (operation == nullptr) {
    throw Problem("the test " + printable(name) + ", which is not supported", "write the template without it");
  }
  return operation(*this, value, arguments).is_true();
}

}  // namespace megalith::jinja
