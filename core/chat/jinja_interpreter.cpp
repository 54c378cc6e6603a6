#include "core/chat/jinja_interpreter.h"

#include <fmt/format.h>

#include <utility>

#include "core/chat/jinja_text.h"

namespace megalith::jinja {

// Opens a scope of variables.
class Interpreter::ScopeGuard {
 public:
  ScopeGuard(Interpreter& interpreter, Scope* parent) : interpreter_(interpreter), before_(interpreter.scope_) {
    scope_.parent = parent;
    interpreter.scope_ = &scope_;
  }
  ~ScopeGuard() { interpreter_.scope_ = before_; }
  ScopeGuard(const ScopeGuard&) = delete;
  ScopeGuard& operator=(const ScopeGuard&) = delete;
  void clear() { scope_.variables.clear(); }

 private:
  Interpreter& interpreter_;
  Scope* before_;
  Scope scope_;
};

Interpreter::~Interpreter() {
  for (const auto& space : namespaces_) space->attributes = {};  // they may hold each other
}

Rendered Interpreter::run(const Dict& variables) {
  for (const auto& [name, value] : variables.members) globals_.variables[name] = value;
  try {
    execute(tree_.body);
  } catch (const Problem& problem) {
    refuse_at(tree_.source, at_, "", problem.what(), problem.remedy());
  }
  return {.text = std::move(output_), .generated = std::move(generated_)};
}

void Interpreter::charge(std::size_t bytes) {
  if (bytes > limits_.work - work_) {
    throw Problem("more work than a chat template needs", "shorten the conversation or simplify the template");
  }
  work_ += bytes;
}

void Interpreter::charge_search(std::string_view text, std::string_view wanted) {
  charge(text.size() * (1 + wanted.size() / 64));  // a search compares up to `wanted` at each byte
}

std::vector<Value> Interpreter::items(const Value& value) {
  constexpr std::size_t kPerCharacter = 128;  // bytes of a text of one character
  if (value.is_text()) charge(value.as_text().size() * kPerCharacter);
  if (value.is(Value::Kind::kDict)) charge(value.as_dict().weight + value.as_dict().members.size() * kPerCharacter);
  if (value.is(Value::Kind::kList)) charge(value.as_list().items.size() * sizeof(Value));
  return items_of(value);
}

std::string Interpreter::text_of(const Value& value) {
  charge(4 * value.weight());
  return str(value);
}

void Interpreter::append_text(std::string& out, const Value& value) {
  charge(4 * value.weight());
  if (value.is_text()) {
    out += value.as_text();
  } else {
    out += str(value);
  }
}

Value Interpreter::make_texts(const std::vector<std::string_view>& texts) {
  constexpr std::size_t kPerText = 128;
  for (const std::string_view text : texts) charge(kPerText + text.size());
  std::vector<Value> values;
  for (const std::string_view text : texts) values.push_back(Value::text(std::string(text)));
  return Value::list(std::move(values));
}

Value Interpreter::make_namespace(Dict attributes) {
  charge(sizeof(Namespace));
  namespaces_.push_back(std::make_shared<Namespace>(Namespace{.attributes = std::move(attributes)}));
  return Value::of(namespaces_.back());
}

void Interpreter::print(std::string_view text) {
  charge(text.size());
  if (text.size() > limits_.output_bytes - output_.size()) {
    throw Problem(fmt::format("more than {} bytes of text", limits_.output_bytes), "shorten the conversation");
  }
  output_ += text;
}

Interpreter::Flow Interpreter::execute(const Body& body) {
  if (++depth_ > limits_.depth) throw Problem("macros that call each other without end", "correct the template");
  Flow flow = Flow::kNext;
  for (const Statement& statement : body) {
    at_ = statement.at;
    charge(16);
    flow = execute(statement);
    if (flow != Flow::kNext) break;
  }
  --depth_;
  return flow;
}

Interpreter::Flow Interpreter::execute(const Statement& statement) {
  switch (statement.kind) {
    case Statement::Kind::kText: print(statement.text); break;
    case Statement::Kind::kOutput: {
      Value storage;
      const Value& value = evaluate_into(*statement.expressions[0], storage);
      at_ = statement.at;
      value.is_text() ? print(value.as_text()) : print(text_of(value));
      break;
    }
    case Statement::Kind::kIf: return execute_if(statement);
    case Statement::Kind::kFor: return execute_for(statement);
    case Statement::Kind::kSet: assign(statement.target, evaluate(*statement.expressions[0]), statement.at); break;
    case Statement::Kind::kSetBlock: {
      Value value = Value::text(capture(statement.bodies[0]));
      if (statement.expressions[0]) {
        captured_ = std::move(value);
        value = evaluate(*statement.expressions[0]);
      }
      assign(statement.target, std::move(value), statement.at);
      break;
    }
    case Statement::Kind::kMacro: {
      const Macro& macro = *statement.macro;
      scope_->variables[macro.name] = Value::callable({.name = macro.name, .self = {}, .macro = &macro});
      break;
    }
    case Statement::Kind::kGeneration: execute_generation(statement); break;
    case Statement::Kind::kBreak: return Flow::kBreak;
    case Statement::Kind::kContinue: return Flow::kContinue;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::execute_if(const Statement& statement) {
  for (std::size_t i = 0; i < statement.bodies.size(); ++i) {
    const bool is_else = i == statement.expressions.size();
    if (is_else || evaluate_condition(*statement.expressions[i])) return execute(statement.bodies[i]);
  }
  return Flow::kNext;
}

// Returns the items that pass the loop's condition.
std::vector<Value> Interpreter::loop_items(const Statement& statement) {
  Value storage;
  const Value& iterated = evaluate_into(*statement.expressions[0], storage);
  at_ = statement.at;
  std::vector<Value> all = items(iterated);
  if (!statement.expressions[1]) return all;
  std::vector<Value> kept;
  ScopeGuard scope(*this, scope_);
  for (Value& item : all) {
    assign(statement.target, item, statement.at);
    if (evaluate_condition(*statement.expressions[1])) kept.push_back(std::move(item));
  }
  return kept;
}

Interpreter::Flow Interpreter::execute_for(const Statement& statement) {
  const Value list = Value::list(loop_items(statement));
  if (list.as_list().items.empty()) {
    if (statement.bodies.size() == 1) return Flow::kNext;
    ScopeGuard scope(*this, scope_);
    return execute(statement.bodies[1]);
  }
  ScopeGuard scope(*this, scope_);
  for (std::size_t i = 0; i < list.as_list().items.size(); ++i) {
    charge(64);
    scope.clear();
    scope_->variables["loop"] = Value::of(std::make_shared<const Loop>(Loop{.items = list, .index = i}));
    assign(statement.target, list.as_list().items[i], statement.at);
    if (execute(statement.bodies[0]) == Flow::kBreak) break;
  }
  return Flow::kNext;
}

void Interpreter::execute_generation(const Statement& statement) {
  if (captures_ > 0 || is_generating_) {
    throw Problem(captures_ > 0 ? "{% generation %} inside a macro or a set block" : "{% generation %} inside another",
                  "mark the text where it is printed");
  }
  const std::size_t begin = output_.size();
  is_generating_ = true;
  {
    ScopeGuard scope(*this, scope_);
    execute(statement.bodies[0]);
  }
  is_generating_ = false;
  generated_.push_back({.begin = begin, .end = output_.size()});
}

// Returns the text that a body prints; variables that it sets are lost.
std::string Interpreter::capture(const Body& body) {
  std::string outside = std::exchange(output_, {});
  ++captures_;
  {
    ScopeGuard scope(*this, scope_);
    execute(body);
  }
  --captures_;
  return std::exchange(output_, std::move(outside));
}

void Interpreter::assign(const Target& target, Value value, std::size_t at) {
  at_ = at;
  if (!target.attribute.empty()) {
    const Value space = look_up(target.names[0]);
    if (!space.is(Value::Kind::kNamespace)) {
      throw Problem(fmt::format("an attribute of {}, which is no namespace", target.names[0]),
                    "make it with namespace()");
    }
    space.as_namespace().attributes.set(target.attribute, std::move(value));
    return;
  }
  if (!target.is_tuple) {
    scope_->variables[target.names[0]] = std::move(value);
    return;
  }
  const std::vector<Value> parts = items(value);
  if (parts.size() != target.names.size()) {
    throw Problem(fmt::format("{} values for {} variables", parts.size(), target.names.size()));
  }
  for (std::size_t i = 0; i < parts.size(); ++i) scope_->variables[target.names[i]] = parts[i];
}

Template::Template(std::string name, std::string_view text)
    : tree_(std::make_shared<const Tree>(parse_template(std::move(name), text))) {}

const std::string& Template::name() const { return tree_->source.name; }
const std::string& Template::text() const { return tree_->source.text; }
bool Template::has_generation() const { return tree_->has_generation; }

Rendered Template::render(const Dict& variables, const Date& date, const Limits& limits) const {
  Interpreter interpreter(*tree_, date, limits);
  return interpreter.run(variables);
}

}  // namespace megalith::jinja
