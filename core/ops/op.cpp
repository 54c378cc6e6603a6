#include "core/ops/op.h"

#include <fmt/format.h>

namespace megalith {

void check_workspace(const Tensor& workspace, std::size_t needed, DeviceType device) {
  const std::size_t bytes = workspace.present() ? workspace.bytes() : 0;
  if (bytes >= needed) return;
  fail({.subject = "op.workspace",
        .expected = fmt::format("at least {} bytes on {}", needed, name_of(device)),
        .got = fmt::format("{}", bytes)});
}

}  // namespace megalith
