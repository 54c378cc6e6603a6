#include "core/ops/rope.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/ops/op_checks.h"

namespace megalith {

void check(const Rope& op) {
  check_rank(op.x, 4, "op.x");
  check_dtype(op.x, {DType::kFp32, DType::kBf16}, "op.x");
  check_rows(op.x, "op.x");
  check_shape(op.y, op.x.shape, "op.y");
  check_dtype(op.y, {op.x.dtype}, "op.y");
  check_rows(op.y, "op.y");
  const std::int64_t limit = std::min(op.x.size(3), kMaxRotaryDim);
  if (op.rotary_dim < 2 || op.rotary_dim > limit || op.rotary_dim % 2 != 0) {
    fail({.subject = "op.rotary_dim",
          .expected = fmt::format("an even number of 2 to {}", limit),
          .got = fmt::format("{}", op.rotary_dim)});
  }
  if (!(op.theta > 0)) fail({.subject = "op.theta", .expected = "more than 0", .got = fmt::format("{}", op.theta)});
  const RopeScaling& s = op.scaling;
  if (!(s.factor >= 1) || !(s.low_freq_factor > 0) || !(s.high_freq_factor > s.low_freq_factor) ||
      s.original_max_position_embeddings < 1) {
    fail({.subject = "op.scaling",
          .expected = "a factor of at least 1, frequency factors that rise from above 0, and original positions",
          .got = fmt::format("{}, {} to {}, {}", s.factor, s.low_freq_factor, s.high_freq_factor,
                             s.original_max_position_embeddings)});
  }
  check_part(op.part, op.x.size(1), "op.part");
  check_same_or_apart(op.y, "op.y", op.x, "op.x");
}

void access(const Rope& op, Access& a) {
  a.reads(op.x);
  a.add(op.start, op.start == nullptr ? 0 : sizeof(std::int32_t), false);
  a.writes(op.y);
}

}  // namespace megalith
