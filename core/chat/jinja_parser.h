// Recursive descent parser of expressions, with Jinja's precedence; jinja_statements.cpp parses blocks with it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/chat/jinja_nodes.h"

namespace megalith::jinja {

class Parser {
 public:
  explicit Parser(const Source& source) : source_(source), tokens_(lex(source)) {}

  // Parses a list of statements up to the end of the template or a block with one of the words `ends`, whose name is
  // then next.
  Body parse_body(const std::vector<std::string_view>& ends, std::size_t begin);
  bool has_generation() const { return has_generation_; }

 private:
  class Nesting {
   public:
    explicit Nesting(Parser& parser);
    ~Nesting() { --parser_.nesting_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    Parser& parser_;
  };

  // Tokens.
  const Token& next() const { return tokens_[at_]; }
  const Token& take() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool is_operator(std::string_view text) const { return is(TokenKind::kOperator, text); }
  bool is_word(std::string_view text) const { return is(TokenKind::kName, text); }
  bool is(TokenKind kind, std::string_view text) const { return next().kind == kind && next().text == text; }
  bool skip_operator(std::string_view text);
  bool skip_word(std::string_view text);
  void expect_operator(std::string_view text);
  void expect(TokenKind kind, std::string_view what);
  std::string expect_name(std::string_view what);
  [[noreturn]] void refuse(const std::string& expected) const;
  [[noreturn]] void refuse_feature(std::size_t at, const std::string& feature) const;

  // Expressions.
  ExpressionPointer node(Expression::Kind kind, std::size_t at, std::vector<ExpressionPointer> parts = {}) const;
  ExpressionPointer parse_expression();
  ExpressionPointer parse_tuple(bool with_conditional);
  ExpressionPointer parse_conditional();
  ExpressionPointer parse_or();
  ExpressionPointer parse_and();
  ExpressionPointer parse_not();
  ExpressionPointer parse_compare();
  ExpressionPointer parse_sum();
  ExpressionPointer parse_concatenation();
  ExpressionPointer parse_product();
  ExpressionPointer parse_power();
  ExpressionPointer parse_unary(bool with_filters);
  ExpressionPointer parse_primary();
  ExpressionPointer parse_name_or_constant();
  ExpressionPointer parse_number();
  ExpressionPointer parse_bracketed();
  ExpressionPointer parse_dict();
  ExpressionPointer parse_postfix(ExpressionPointer value);
  ExpressionPointer parse_attribute(ExpressionPointer value);
  ExpressionPointer parse_subscript(ExpressionPointer value);
  ExpressionPointer parse_filters(ExpressionPointer value);
  ExpressionPointer parse_filter(ExpressionPointer value);
  ExpressionPointer parse_test(ExpressionPointer value);
  bool may_begin_argument() const;
  void parse_arguments(Expression& call);
  void add_part(Expression& parent, ExpressionPointer part) const;

  // Statements.
  Statement parse_block(std::size_t at);
  Statement parse_if(std::size_t at);
  Statement parse_for(std::size_t at);
  Statement parse_set(std::size_t at);
  Statement parse_macro(std::size_t at);
  Statement parse_generation(std::size_t at);
  Statement parse_jump(std::size_t at, Statement::Kind kind);
  Body parse_scope(std::string_view end, std::size_t begin);  // of which a loop outside is not a part
  Target parse_target(bool with_attribute);
  std::string parse_target_name();
  void end_block();

  const Source& source_;
  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int nesting_ = 0;
  int loops_ = 0;   // open in the scope
  int scopes_ = 0;  // open blocks with separate variables
  bool has_generation_ = false;
};

}  // namespace megalith::jinja
