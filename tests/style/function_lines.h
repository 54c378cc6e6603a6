// Lengths of the functions of a source file.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace megalith::style {

struct Function {
  std::string name;  // of a test "TEST", "TEST_F", ...
  int line = 0;      // that opens the body
  int lines = 0;     // from that line to the one with the closing brace
};

// Functions with a body, in the order of the text. A lambda or a class in a function belongs to that function; a lambda
// that initialises a variable of a namespace is no function. Empty where braces do not balance, as when two branches of
// #if open the same body.
std::optional<std::vector<Function>> functions_of(const std::string& text);

}  // namespace megalith::style
