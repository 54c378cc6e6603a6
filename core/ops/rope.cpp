#include "core/ops/rope.h"

#include <fmt/format.h>

#include "core/tensor/check.h"

namespace megalith {

void check(const Rope& op) {
  check_rank(op.x, 4, "op.x");
  check_dtype(op.x, {DType::kFp32, DType::kBf16}, "op.x");
  check_rows(op.x, "op.x");
  check_shape(op.y, op.x.shape, "op.y");
  check_dtype(op.y, {op.x.dtype}, "op.y");
  check_rows(op.y, "op.y");
  if (op.rotary_dim < 2 || op.rotary_dim > op.x.size(3) || op.rotary_dim % 2 != 0) {
    fail({.subject = "op.rotary_dim",
          .expected = fmt::format("an even number of 2 to {}", op.x.size(3)),
          .got = fmt::format("{}", op.rotary_dim)});
  }
  if (!(op.theta > 0)) fail({.subject = "op.theta", .expected = "more than 0", .got = fmt::format("{}", op.theta)});
  const bool in_place = op.x.data == op.y.data && op.x.strides == op.y.strides;
  if (!in_place) check_no_overlap(op.y, "op.y", op.x, "op.x");
}

void access(const Rope& op, Access& a) {
  a.reads(op.x);
  a.add(op.start, op.start == nullptr ? 0 : sizeof(std::int32_t), false);
  a.writes(op.y);
}

}  // namespace megalith
