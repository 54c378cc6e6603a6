// Syntax tree of a template.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "core/chat/jinja_lexer.h"
#include "core/chat/jinja_value.h"

namespace megalith::jinja {

// Limits of nesting, so that no stack overflows.
inline constexpr int kMaxNesting = 100;          // of brackets, unary operators and blocks
inline constexpr int kMaxExpressionDepth = 400;  // of the tree: a + b + c has depth 3

struct Expression;
using ExpressionPointer = std::unique_ptr<Expression>;

enum class Operator {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower,
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn
};

struct Expression {
  enum class Kind {
    kConstant,   // constant
    kName,       // name
    kCaptured,   // the text of a set block
    kAttribute,  // parts[0].name
    kItem,       // parts[0][parts[1]]
    kSlice,      // parts[0][parts[1]:parts[2]:parts[3]]; null parts are absent
    kCall,       // parts[0](parts[1], ...); keywords[i] of parts[i + 1], empty: by position
    kFilter,     // parts[0] | name(parts[1], ...)
    kTest,       // parts[0] is name(parts[1], ...)
    kNot,
    kNegative,
    kPositive,
    kBinary,   // parts[0] operators[0] parts[1]
    kCompare,  // parts[0] operators[0] parts[1] operators[1] parts[2] ...
    kAnd,
    kOr,
    kConcatenate,  // parts[0] ~ parts[1] ~ ...
    kConditional,  // parts[0] if parts[1] else parts[2]; parts[2] may be absent
    kList,
    kTuple,
    kDict,  // parts: keys and values in turns
  };
  Kind kind = Kind::kConstant;
  std::size_t at = 0;
  int depth = 1;
  Value constant = {};
  std::string name = {};
  std::vector<ExpressionPointer> parts = {};
  std::vector<std::string> keywords = {};
  std::vector<Operator> operators = {};
};

struct Statement;
using Body = std::vector<Statement>;

// Variables that a statement assigns: one, several, or an attribute of a namespace.
struct Target {
  std::vector<std::string> names;
  bool is_tuple = false;
  std::string attribute;  // of the namespace names[0]; empty: the variable
};

struct Statement {
  enum class Kind {
    kText,
    kOutput,      // expressions[0]
    kIf,          // bodies[i] if expressions[i]; one more body: else
    kFor,         // target in expressions[0], if expressions[1]; bodies[0], and bodies[1] if there were no items
    kSet,         // target = expressions[0]
    kSetBlock,    // target = text of bodies[0], through expressions[0] if not null
    kMacro,       // macro
    kGeneration,  // bodies[0]
    kBreak,
    kContinue,
  };
  Kind kind = Kind::kText;
  std::size_t at = 0;
  std::string text = {};
  Target target = {};
  std::vector<ExpressionPointer> expressions = {};
  std::vector<Body> bodies = {};
  std::unique_ptr<Macro> macro = {};
};

struct Macro {
  std::string name;
  std::vector<std::string> parameters;
  std::vector<ExpressionPointer> defaults;  // per parameter; null: undefined
  Body body;
};

struct Tree {
  Source source;
  Body body;
  bool has_generation = false;  // any {% generation %}
};

// Parses a template. Syntax that is not supported is an Error kFormat with line and column.
Tree parse_template(std::string name, std::string_view text);

}  // namespace megalith::jinja
