#include <fmt/format.h>

#include "parallel/comm/nccl_communicator.h"

namespace megalith {

namespace {

std::string version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace

std::string nccl_version_fault(int library, int built_for) {
  if (library / 10000 == built_for / 10000 && library / 100 >= built_for / 100) return "";
  return fmt::format(
      "NCCL: expected version {}.{} or a newer {}.x, for which this program was built, got the library of version {}; "
      "put the right libnccl.so.2 first on LD_LIBRARY_PATH",
      built_for / 10000, built_for / 100 % 100, built_for / 10000, version_text(library));
}

}  // namespace megalith
