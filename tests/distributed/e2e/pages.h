// Commands and expected outputs of a Markdown page, and the comparison of an output with what the page shows.
#pragma once

#include <string>
#include <vector>

#include "tests/support/words.h"

namespace megalith::test {

// A block marked `<!-- run -->`, with the lines of the block marked `<!-- output -->` after it; none without one.
struct PageCommand {
  int line = 0;  // of the mark
  std::string script;
  Words expected;
};

// Reads the marked blocks of a page. Throws std::runtime_error with the line of a mark that no block follows, of an
// output without a command, and of a block without an end.
std::vector<PageCommand> commands_of_page(const std::string& markdown);

// Tells whether `line` has the form of `pattern`, in which `...` matches any text.
bool matches_line(const std::string& pattern, const std::string& line);

// Returns the first expected line that `output` lacks behind the lines of the earlier ones; empty if all are there.
// Lines that the page leaves out may stand between any two; a line `...` shows the reader where.
std::string missing_line(const Words& expected, const std::string& output);

}  // namespace megalith::test
