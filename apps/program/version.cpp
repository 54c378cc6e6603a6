#include "apps/program/version.h"

#include <fmt/format.h>

#include "megalith_commit.h"  // from cmake/WriteCommit.cmake at build time

namespace megalith {

std::string_view program_version() { return MEGALITH_VERSION; }
std::string_view program_commit() { return MEGALITH_COMMIT; }

std::string version_line(std::string_view program) {
  return fmt::format("megalith {} {} (commit {})", program, program_version(), program_commit());
}

}  // namespace megalith
