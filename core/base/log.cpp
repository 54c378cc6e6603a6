#include "core/base/log.h"

#include <cstdio>
#include <string>

namespace megalith {

namespace {

// One write per line, so that lines of several ranks and threads do not mix.
void write_line(std::string_view prefix, std::string_view text) {
  std::string line(prefix);
  line += text;
  line += '\n';
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace

void log_info(std::string_view text) { write_line("[megalith] ", text); }
void log_warning(std::string_view text) { write_line("[megalith] warning: ", text); }

}  // namespace megalith
