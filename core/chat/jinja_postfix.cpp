// Attributes, items, calls, filters and tests after a value.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/base/text/parse_number.h"
#include "core/chat/jinja_parser.h"

namespace megalith::jinja {

ExpressionPointer Parser::parse_postfix(ExpressionPointer value) {
  while (true) {
    if (is_operator(".")) {
      value = parse_attribute(std::move(value));
    } else if (is_operator("[")) {
      value = parse_subscript(std::move(value));
    } else if (is_operator("(")) {
      ExpressionPointer call = node(Expression::Kind::kCall, next().at);
      add_part(*call, std::move(value));
      parse_arguments(*call);
      value = std::move(call);
    } else {
      return value;
    }
  }
}

ExpressionPointer Parser::parse_attribute(ExpressionPointer value) {
  const std::size_t at = take().at;
  if (next().kind == TokenKind::kInteger) {  // a.0 is a[0]
    ExpressionPointer item = node(Expression::Kind::kItem, at);
    add_part(*item, std::move(value));
    add_part(*item, parse_number());
    return item;
  }
  ExpressionPointer attribute = node(Expression::Kind::kAttribute, at);
  add_part(*attribute, std::move(value));
  attribute->name = expect_name("the name of an attribute");
  return attribute;
}

ExpressionPointer Parser::parse_subscript(ExpressionPointer value) {
  ExpressionPointer item = node(Expression::Kind::kItem, take().at);
  add_part(*item, std::move(value));
  const auto at_border = [&] { return is_operator(":") || is_operator("]"); };
  add_part(*item, at_border() ? nullptr : parse_expression());
  if (is_operator(":")) item->kind = Expression::Kind::kSlice;
  while (item->parts.size() < 4 && skip_operator(":")) add_part(*item, at_border() ? nullptr : parse_expression());
  if (item->kind == Expression::Kind::kItem && !item->parts[1]) refuse("an index");
  if (is_operator(",")) refuse_feature(next().at, "a subscript with several indices");
  expect_operator("]");
  if (item->kind == Expression::Kind::kSlice) item->parts.resize(4);
  return item;
}

ExpressionPointer Parser::parse_filters(ExpressionPointer value) {
  while (true) {
    if (is_operator("|")) {
      value = parse_filter(std::move(value));
    } else if (is_word("is")) {
      value = parse_test(std::move(value));
    } else if (is_operator("(")) {
      value = parse_postfix(std::move(value));
    } else {
      return value;
    }
  }
}

ExpressionPointer Parser::parse_filter(ExpressionPointer value) {
  take();
  ExpressionPointer filter = node(Expression::Kind::kFilter, next().at);
  add_part(*filter, std::move(value));
  filter->name = expect_name("the name of a filter");
  if (is_operator("(")) parse_arguments(*filter);
  return filter;
}

// Whether a test's argument follows without brackets, as in `x is divisibleby 3`.
bool Parser::may_begin_argument() const {
  switch (next().kind) {
    case TokenKind::kName: return !is_word("else") && !is_word("or") && !is_word("and");
    case TokenKind::kString:
    case TokenKind::kInteger:
    case TokenKind::kFloat: return true;
    default: return is_operator("[") || is_operator("{");
  }
}

ExpressionPointer Parser::parse_test(ExpressionPointer value) {
  const std::size_t begin = take().at;
  const bool is_negated = skip_word("not");
  ExpressionPointer test = node(Expression::Kind::kTest, next().at);
  add_part(*test, std::move(value));
  test->name = expect_name("the name of a test");
  if (is_operator("(")) {
    parse_arguments(*test);
  } else if (may_begin_argument()) {
    if (is_word("is")) refuse("no second test");
    test->keywords.emplace_back();
    add_part(*test, parse_postfix(parse_primary()));
  }
  if (!is_negated) return test;
  ExpressionPointer negated = node(Expression::Kind::kNot, begin);
  add_part(*negated, std::move(test));
  return negated;
}

void Parser::parse_arguments(Expression& call) {
  const Nesting nesting(*this);
  expect_operator("(");
  for (bool is_first = true; !skip_operator(")"); is_first = false) {
    if (!is_first) expect_operator(",");
    if (skip_operator(")")) break;
    if (is_operator("*") || is_operator("**")) refuse_feature(next().at, "unpacked arguments");
    std::string keyword;
    const bool has_keyword = next().kind == TokenKind::kName && tokens_[at_ + 1].kind == TokenKind::kOperator &&
                             tokens_[at_ + 1].text == "=";
    if (has_keyword) {
      keyword = take().text;
      take();
      if (std::ranges::find(call.keywords, keyword) != call.keywords.end()) refuse(keyword + " once");
    } else if (!call.keywords.empty() && !call.keywords.back().empty()) {
      refuse("a named argument, since one precedes it");
    }
    call.keywords.push_back(std::move(keyword));
    add_part(call, parse_expression());
  }
}

}  // namespace megalith::jinja
