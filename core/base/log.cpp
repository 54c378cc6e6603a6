#include "core/base/log.h"

#include <array>
#include <cstdio>
#include <span>
#include <string>

#include "core/base/text/text.h"

namespace megalith {

namespace {

// Writes each line with one call, so that lines of several ranks and threads do not mix.
void write_line(std::string_view prefix, std::string_view text) {
  constexpr std::size_t kMost = 16'384;
  std::string line(prefix);
  line += in_one_line(text.substr(0, kMost));
  if (text.size() > kMost) line += "... and " + std::to_string(text.size() - kMost) + " bytes more";
  line += '\n';
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace

void log_info(std::string_view text) { write_line("[megalith] ", text); }
void log_warning(std::string_view text) { write_line("[megalith] warning: ", text); }

void log_last_words(std::string_view text) {
  std::array<char, 8192> line;
  const std::size_t size = put_in_one_line(text, std::span(line).first(line.size() - 1));
  line[size] = '\n';
  std::fwrite(line.data(), 1, size + 1, stderr);
}

}  // namespace megalith
