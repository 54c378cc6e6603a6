// Interpreter of a syntax tree; internal to jinja.h.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/chat/jinja.h"
#include "core/chat/jinja_nodes.h"

namespace megalith::jinja {

class Interpreter;

// Arguments of a filter, test, function or method.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;

  // Returns a value for each parameter, null if it has no argument. Other arguments are a Problem.
  std::vector<const Value*> bind(std::initializer_list<std::string_view> parameters) const;
};

// Entry of the tables of filters and tests: value | name(arguments).
using Operation = Value (*)(Interpreter&, const Value& value, const Arguments& arguments);
Operation find_filter(std::string_view name);       // null: unknown
Operation find_list_filter(std::string_view name);  // those that return or read several items
Operation find_test(std::string_view name);
// Methods of text, lists and dictionaries: `name` is "str.strip".
Operation find_method(std::string_view name);

// Attributes and items. Missing ones are undefined.
Value attribute_of(const Value& object, const std::string& name);  // object.name
Value item_of(const Value& object, const Value& key);              // object[key]
bool is_dict_method(std::string_view name);                        // which comes before a member of that name
Value loop_attribute(const Loop& loop, const std::string& name);

Value calculate(Interpreter& interpreter, Operator operation, const Value& left, const Value& right);
bool compare(Interpreter& interpreter, Operator operation, const Value& left, const Value& right);
std::string format_date(const Date& date, std::string_view format);

// Fails for text of the filter `safe`, whose methods escape their arguments as HTML in Jinja.
void require_plain(const Value& value);

// Arguments as C++ values, with Problems for other types.
std::int64_t integer_argument(const Value* value, std::int64_t otherwise, std::string_view what);
const std::string& text_argument(const Value& value, std::string_view what);

class Interpreter {
 public:
  Interpreter(const Tree& tree, const Date& date, const Limits& limits) : tree_(tree), date_(date), limits_(limits) {}
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  Rendered run(const Dict& variables);

  // For operations: counts work before it is done; applies a filter or test by name; calls a value.
  void charge(std::size_t bytes);
  void charge_search(std::string_view text, std::string_view wanted);
  Value filter(const std::string& name, const Value& value, const Arguments& arguments);
  bool test(const std::string& name, const Value& value, const Arguments& arguments);
  std::vector<Value> items(const Value& value);  // items_of, charged
  std::string text_of(const Value& value);       // str, charged
  void append_text(std::string& out, const Value& value);
  Value make_texts(const std::vector<std::string_view>& texts);
  Value make_namespace(Dict attributes);

 private:
  enum class Flow { kNext, kBreak, kContinue };
  struct Scope {
    Scope* parent = nullptr;
    std::unordered_map<std::string, Value> variables = {};
  };
  class ScopeGuard;
  class Level;

  // Statements: jinja_interpreter.cpp.
  Flow execute(const Body& body);
  Flow execute(const Statement& statement);
  Flow execute_if(const Statement& statement);
  Flow execute_for(const Statement& statement);
  void execute_generation(const Statement& statement);
  std::string capture(const Body& body);
  void assign(const Target& target, Value value, std::size_t at);
  void print(std::string_view text);
  std::vector<Value> loop_items(const Statement& statement);

  // Expressions: jinja_expressions.cpp.
  Value evaluate(const Expression& expression);
  const Value& evaluate_into(const Expression& expression, Value& storage);
  const Value& read_attribute(const Expression& expression, Value& storage);
  const Value& read_item(const Expression& expression, Value& storage);
  bool evaluate_condition(const Expression& expression);
  Value evaluate_other(const Expression& expression);
  Value evaluate_operation(const Expression& expression);
  Value evaluate_sum(const Expression& expression);
  Value evaluate_logic(const Expression& expression);
  Value evaluate_compare(const Expression& expression);
  Value evaluate_slice(const Expression& expression);
  Value evaluate_call(const Expression& expression);
  Value evaluate_items(const Expression& expression);
  Value evaluate_sign(const Expression& expression);
  Arguments evaluate_arguments(const Expression& expression);
  const Value* find_variable(const std::string& name) const;  // null: none in the template
  Value look_up(const std::string& name) const;
  Value call(const Value& callee, const Arguments& arguments);
  Value call_function(const std::string& name, const Arguments& arguments);
  Value call_macro(const Macro& macro, const Arguments& arguments);
  Value make_range(const Arguments& arguments);

  const Tree& tree_;
  const Date& date_;
  const Limits& limits_;
  std::size_t at_ = 0;  // byte of the template, for messages
  std::size_t work_ = 0;
  int depth_ = 0;
  int captures_ = 0;
  bool is_generating_ = false;
  std::string output_;
  std::vector<Range> generated_;
  Value captured_;
  Scope globals_;
  Scope* scope_ = &globals_;
  std::vector<std::shared_ptr<Namespace>> namespaces_;  // which may contain each other
};

}  // namespace megalith::jinja
