#include "core/chat/jinja_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/base/text/parse_number.h"
#include "core/checkpoint/printable.h"

namespace megalith::jinja {

using Kind = Expression::Kind;

Parser::Nesting::Nesting(Parser& parser) : parser_(parser) {
  if (++parser.nesting_ > kMaxNesting) {
    refuse_at(parser.source_, parser.next().at, fmt::format("at most {} levels of nesting", kMaxNesting), "more",
              "nest less");
  }
}

bool Parser::skip_operator(std::string_view text) {
  const bool found = is_operator(text);
  if (found) take();
  return found;
}

bool Parser::skip_word(std::string_view text) {
  const bool found = is_word(text);
  if (found) take();
  return found;
}

void Parser::expect_operator(std::string_view text) {
  if (!skip_operator(text)) refuse(fmt::format("'{}'", text));
}

void Parser::expect(TokenKind kind, std::string_view what) {
  if (next().kind != kind) refuse(std::string(what));
  take();
}

std::string Parser::expect_name(std::string_view what) {
  if (next().kind != TokenKind::kName) refuse(std::string(what));
  return take().text;
}

void Parser::refuse(const std::string& expected) const {
  const Token& token = next();
  std::string got;
  switch (token.kind) {
    case TokenKind::kEnd: got = "the end of the template"; break;
    case TokenKind::kBlockEnd: got = "'%}'"; break;
    case TokenKind::kOutputEnd: got = "'}}'"; break;
    default: got = printable(token.text); break;
  }
  refuse_at(source_, token.at, expected, got, "correct the template");
}

void Parser::refuse_feature(std::size_t at, const std::string& feature) const {
  refuse_at(source_, at, "the part of Jinja that chat templates use", feature, "write the template without it");
}

ExpressionPointer Parser::node(Kind kind, std::size_t at, std::vector<ExpressionPointer> parts) const {
  auto made = std::make_unique<Expression>(Expression{.kind = kind, .at = at});
  for (ExpressionPointer& part : parts) add_part(*made, std::move(part));
  return made;
}

void Parser::add_part(Expression& parent, ExpressionPointer part) const {
  if (part) parent.depth = std::max(parent.depth, part->depth + 1);
  if (parent.depth > kMaxExpressionDepth) {
    refuse_at(source_, parent.at, fmt::format("an expression of at most {} operations", kMaxExpressionDepth), "more",
              "split the expression with {% set %}");
  }
  parent.parts.push_back(std::move(part));
}

template <class... Parts>
static std::vector<ExpressionPointer> parts_of(Parts... parts) {
  std::vector<ExpressionPointer> list;
  (list.push_back(std::move(parts)), ...);
  return list;
}

// Parses a, b, ... as a tuple, and one expression without a comma as itself.
ExpressionPointer Parser::parse_tuple(bool with_conditional) {
  const std::size_t at = next().at;
  const auto parse_item = [&] { return with_conditional ? parse_expression() : parse_or(); };
  ExpressionPointer first = parse_item();
  if (!is_operator(",")) return first;
  ExpressionPointer tuple = node(Kind::kTuple, at, parts_of(std::move(first)));
  while (skip_operator(",")) {
    if (next().kind == TokenKind::kBlockEnd || next().kind == TokenKind::kOutputEnd || is_operator(")")) break;
    add_part(*tuple, parse_item());
  }
  return tuple;
}

ExpressionPointer Parser::parse_expression() {
  const Nesting nesting(*this);
  return parse_conditional();
}

ExpressionPointer Parser::parse_conditional() {
  ExpressionPointer value = parse_or();
  while (is_word("if")) {
    const std::size_t at = take().at;
    ExpressionPointer condition = parse_or();
    ExpressionPointer otherwise = skip_word("else") ? parse_expression() : nullptr;
    value = node(Kind::kConditional, at, parts_of(std::move(value), std::move(condition), std::move(otherwise)));
  }
  return value;
}

ExpressionPointer Parser::parse_or() {
  ExpressionPointer left = parse_and();
  while (is_word("or")) {
    const std::size_t at = take().at;
    left = node(Kind::kOr, at, parts_of(std::move(left), parse_and()));
  }
  return left;
}

ExpressionPointer Parser::parse_and() {
  ExpressionPointer left = parse_not();
  while (is_word("and")) {
    const std::size_t at = take().at;
    left = node(Kind::kAnd, at, parts_of(std::move(left), parse_not()));
  }
  return left;
}

ExpressionPointer Parser::parse_not() {
  if (!is_word("not")) return parse_compare();
  const Nesting nesting(*this);
  const std::size_t at = take().at;
  return node(Kind::kNot, at, parts_of(parse_not()));
}

ExpressionPointer Parser::parse_compare() {
  static constexpr std::pair<std::string_view, Operator> kOperators[] = {
      {"==", Operator::kEqual},     {"!=", Operator::kNotEqual}, {"<", Operator::kLess},
      {"<=", Operator::kLessEqual}, {">", Operator::kGreater},   {">=", Operator::kGreaterEqual}};
  ExpressionPointer compare = node(Kind::kCompare, next().at, parts_of(parse_sum()));
  while (true) {
    const auto known = std::ranges::find_if(kOperators, [&](const auto& o) { return is_operator(o.first); });
    const bool is_not_in = is_word("not") && tokens_[at_ + 1].kind == TokenKind::kName && tokens_[at_ + 1].text == "in";
    if (known != std::end(kOperators)) {
      compare->operators.push_back(known->second);
    } else if (is_word("in") || is_not_in) {
      compare->operators.push_back(is_not_in ? Operator::kNotIn : Operator::kIn);
    } else {
      break;
    }
    compare->at = take().at;
    if (is_not_in) take();
    add_part(*compare, parse_sum());
  }
  return compare->operators.empty() ? std::move(compare->parts[0]) : std::move(compare);
}

ExpressionPointer Parser::parse_sum() {
  ExpressionPointer left = parse_concatenation();
  while (is_operator("+") || is_operator("-")) {
    const Operator operation = is_operator("+") ? Operator::kAdd : Operator::kSubtract;
    const std::size_t at = take().at;
    left = node(Kind::kBinary, at, parts_of(std::move(left), parse_concatenation()));
    left->operators = {operation};
  }
  return left;
}

ExpressionPointer Parser::parse_concatenation() {
  ExpressionPointer first = parse_product();
  if (!is_operator("~")) return first;
  ExpressionPointer all = node(Kind::kConcatenate, next().at, parts_of(std::move(first)));
  while (skip_operator("~")) add_part(*all, parse_product());
  return all;
}

ExpressionPointer Parser::parse_product() {
  static constexpr std::pair<std::string_view, Operator> kOperators[] = {
      {"*", Operator::kMultiply}, {"/", Operator::kDivide}, {"//", Operator::kFloorDivide}, {"%", Operator::kModulo}};
  ExpressionPointer left = parse_power();
  while (true) {
    const auto known = std::ranges::find_if(kOperators, [&](const auto& o) { return is_operator(o.first); });
    if (known == std::end(kOperators)) return left;
    const std::size_t at = take().at;
    left = node(Kind::kBinary, at, parts_of(std::move(left), parse_power()));
    left->operators = {known->second};
  }
}

ExpressionPointer Parser::parse_power() {
  ExpressionPointer left = parse_unary(true);
  while (is_operator("**")) {
    const std::size_t at = take().at;
    left = node(Kind::kBinary, at, parts_of(std::move(left), parse_unary(true)));
    left->operators = {Operator::kPower};
  }
  return left;
}

ExpressionPointer Parser::parse_unary(bool with_filters) {
  const Nesting nesting(*this);
  ExpressionPointer value;
  if (is_operator("-") || is_operator("+")) {
    const Kind kind = is_operator("-") ? Kind::kNegative : Kind::kPositive;
    const std::size_t at = take().at;
    value = node(kind, at, parts_of(parse_unary(false)));
  } else {
    value = parse_primary();
  }
  value = parse_postfix(std::move(value));
  return with_filters ? parse_filters(std::move(value)) : std::move(value);
}

ExpressionPointer Parser::parse_primary() {
  const Token& token = next();
  switch (token.kind) {
    case TokenKind::kName: return parse_name_or_constant();
    case TokenKind::kInteger:
    case TokenKind::kFloat: return parse_number();
    case TokenKind::kString: {
      ExpressionPointer text = node(Kind::kConstant, token.at);
      std::string value;
      while (next().kind == TokenKind::kString) value += take().text;  // neighbors are one
      text->constant = Value::text(std::move(value));
      return text;
    }
    default: return parse_bracketed();
  }
}

ExpressionPointer Parser::parse_name_or_constant() {
  static constexpr std::string_view kReserved[] = {"not", "and", "or", "in", "is", "if", "else"};
  const Token& token = take();
  ExpressionPointer made = node(Kind::kConstant, token.at);
  if (token.text == "true" || token.text == "True") {
    made->constant = Value::boolean(true);
  } else if (token.text == "false" || token.text == "False") {
    made->constant = Value::boolean(false);
  } else if (token.text == "none" || token.text == "None") {
    made->constant = Value::none();
  } else {
    if (std::ranges::find(kReserved, token.text) != std::end(kReserved)) {
      refuse_at(source_, token.at, "an expression", printable(token.text), "correct the template");
    }
    made->kind = Kind::kName;
    made->name = token.text;
  }
  return made;
}

ExpressionPointer Parser::parse_number() {
  const Token& token = take();
  ExpressionPointer made = node(Kind::kConstant, token.at);
  if (token.kind == TokenKind::kInteger) {
    const auto integer = megalith::parse_number<std::int64_t>(token.text);
    if (!integer) refuse_at(source_, token.at, "an integer of 64 bits", token.text, "correct the template");
    made->constant = Value::integer(*integer);
    return made;
  }
  const auto real = megalith::parse_number<double>(token.text);
  if (!real) refuse_at(source_, token.at, "a number of 64 bits", token.text, "correct the template");
  made->constant = Value::real(*real);
  return made;
}

ExpressionPointer Parser::parse_bracketed() {
  const std::size_t at = next().at;
  if (skip_operator("(")) {
    if (skip_operator(")")) return node(Kind::kTuple, at);
    ExpressionPointer inside = parse_tuple(true);
    expect_operator(")");
    return inside;
  }
  if (is_operator("{")) return parse_dict();
  if (!skip_operator("[")) refuse("an expression");
  ExpressionPointer list = node(Kind::kList, at);
  while (!skip_operator("]")) {
    if (!list->parts.empty()) expect_operator(",");
    if (skip_operator("]")) break;
    add_part(*list, parse_expression());
  }
  return list;
}

ExpressionPointer Parser::parse_dict() {
  ExpressionPointer dict = node(Kind::kDict, take().at);
  while (!skip_operator("}")) {
    if (!dict->parts.empty()) expect_operator(",");
    if (skip_operator("}")) break;
    add_part(*dict, parse_expression());
    expect_operator(":");
    add_part(*dict, parse_expression());
  }
  return dict;
}

}  // namespace megalith::jinja
