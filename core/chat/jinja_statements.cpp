// Blocks of a template.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/chat/jinja_parser.h"
#include "core/checkpoint/printable.h"

namespace megalith::jinja {

using StatementKind = Statement::Kind;

Body Parser::parse_body(const std::vector<std::string_view>& ends, std::size_t begin) {
  const Nesting nesting(*this);
  Body body;
  while (next().kind != TokenKind::kEnd) {
    const Token& token = take();
    if (token.kind == TokenKind::kText) {
      body.push_back({.kind = StatementKind::kText, .at = token.at, .text = token.text});
    } else if (token.kind == TokenKind::kOutputBegin) {
      Statement output{.kind = StatementKind::kOutput, .at = token.at};
      output.expressions.push_back(parse_tuple(true));
      expect(TokenKind::kOutputEnd, "'}}'");
      body.push_back(std::move(output));
    } else {
      const bool is_end = std::ranges::any_of(ends, [&](std::string_view end) { return is_word(end); });
      if (is_end) return body;
      body.push_back(parse_block(token.at));
    }
  }
  if (!ends.empty()) {
    refuse_at(source_, begin, fmt::format("an {} of the block", ends.back()), "the end of the template",
              "correct the template");
  }
  return body;
}

void Parser::end_block() { expect(TokenKind::kBlockEnd, "'%}'"); }

Statement Parser::parse_block(std::size_t at) {
  const Token word = next();
  expect_name("the name of a block");
  if (word.text == "if") return parse_if(at);
  if (word.text == "for") return parse_for(at);
  if (word.text == "set") return parse_set(at);
  if (word.text == "macro") return parse_macro(at);
  if (word.text == "generation") return parse_generation(at);
  if (word.text == "break") return parse_jump(at, StatementKind::kBreak);
  if (word.text == "continue") return parse_jump(at, StatementKind::kContinue);
  if (word.text.starts_with("e") && (word.text.starts_with("end") || word.text.starts_with("el"))) {
    refuse_at(source_, at, "a block that it ends", "{% " + word.text + " %} alone", "correct the template");
  }
  refuse_feature(at, "the block " + printable(word.text));
}

Statement Parser::parse_if(std::size_t at) {
  Statement made{.kind = StatementKind::kIf, .at = at};
  do {
    made.expressions.push_back(parse_tuple(false));
    end_block();
    made.bodies.push_back(parse_body({"elif", "else", "endif"}, at));
  } while (skip_word("elif"));
  if (skip_word("else")) {
    end_block();
    made.bodies.push_back(parse_body({"endif"}, at));
  }
  take();
  end_block();
  return made;
}

Statement Parser::parse_for(std::size_t at) {
  Statement made{.kind = StatementKind::kFor, .at = at};
  made.target = parse_target(false);
  if (!skip_word("in")) refuse("'in'");
  made.expressions.push_back(parse_tuple(false));
  made.expressions.push_back(skip_word("if") ? parse_expression() : nullptr);
  if (is_word("recursive")) refuse_feature(next().at, "a recursive loop");
  end_block();
  ++loops_;
  ++scopes_;
  made.bodies.push_back(parse_body({"else", "endfor"}, at));
  --loops_;
  if (skip_word("else")) {
    end_block();
    made.bodies.push_back(parse_body({"endfor"}, at));
  }
  --scopes_;
  take();
  end_block();
  return made;
}

std::string Parser::parse_target_name() {
  static constexpr std::string_view kConstants[] = {"true", "false", "none", "True", "False", "None"};
  if (std::ranges::find(kConstants, next().text) != std::end(kConstants)) refuse("the name of a variable");
  return expect_name("the name of a variable");
}

Target Parser::parse_target(bool with_attribute) {
  Target target;
  const bool has_bracket = skip_operator("(");
  target.names.push_back(parse_target_name());
  if (with_attribute && !has_bracket && skip_operator(".")) {
    target.attribute = expect_name("the name of an attribute");
    return target;
  }
  while (skip_operator(",")) {
    target.is_tuple = true;
    if (is_word("in") || is_operator("=") || is_operator(")")) break;
    if (is_operator("(")) refuse_feature(next().at, "nested variables to assign");
    target.names.push_back(parse_target_name());
  }
  if (has_bracket) expect_operator(")");
  return target;
}

Statement Parser::parse_set(std::size_t at) {
  Statement made{.kind = StatementKind::kSet, .at = at};
  made.target = parse_target(true);
  if (skip_operator("=")) {
    made.expressions.push_back(parse_tuple(true));
    end_block();
    return made;
  }
  made.kind = StatementKind::kSetBlock;
  ExpressionPointer value;
  if (is_operator("|")) {
    value = parse_filters(node(Expression::Kind::kCaptured, at));
  }
  made.expressions.push_back(std::move(value));
  end_block();
  made.bodies.push_back(parse_scope("endset", at));
  return made;
}

Body Parser::parse_scope(std::string_view end, std::size_t begin) {
  const int loops = std::exchange(loops_, 0);
  ++scopes_;
  Body body = parse_body({end}, begin);
  --scopes_;
  loops_ = loops;
  take();
  end_block();
  return body;
}

Statement Parser::parse_macro(std::size_t at) {
  if (scopes_ > 0) refuse_feature(at, "a macro inside another block than if");
  Statement made{.kind = StatementKind::kMacro, .at = at};
  made.macro = std::make_unique<Macro>();
  Macro& macro = *made.macro;
  macro.name = expect_name("the name of a macro");
  expect_operator("(");
  while (!skip_operator(")")) {
    if (!macro.parameters.empty()) expect_operator(",");
    if (skip_operator(")")) break;
    macro.parameters.push_back(expect_name("the name of a parameter"));
    const bool has_default = skip_operator("=");
    if (!has_default && !macro.defaults.empty() && macro.defaults.back()) refuse("'='");
    macro.defaults.push_back(has_default ? parse_expression() : nullptr);
  }
  end_block();
  macro.body = parse_scope("endmacro", at);
  return made;
}

Statement Parser::parse_generation(std::size_t at) {
  has_generation_ = true;
  Statement made{.kind = StatementKind::kGeneration, .at = at};
  end_block();
  made.bodies.push_back(parse_scope("endgeneration", at));
  return made;
}

Statement Parser::parse_jump(std::size_t at, StatementKind kind) {
  if (loops_ == 0) {
    refuse_at(source_, at, "a loop around it", "none in the same scope", "correct the template");
  }
  end_block();
  return {.kind = kind, .at = at};
}

Tree parse_template(std::string name, std::string_view text) {
  Tree tree{.source = normalized_source(std::move(name), text), .body = {}};
  Parser parser(tree.source);
  tree.body = parser.parse_body({}, 0);
  tree.has_generation = parser.has_generation();
  return tree;
}

}  // namespace megalith::jinja
