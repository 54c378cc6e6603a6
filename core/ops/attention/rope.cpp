#include "core/ops/attention/rope.h"

#include <fmt/format.h>
#include <algorithm>

#include "core/ops/fields.h"

namespace megalith {

void check_rotation(std::int64_t rotary_dim, float theta, const RopeScaling& s, std::int64_t head_dim, Fields& f) {
  const std::int64_t limit = std::min(head_dim, kMaxRotaryDim);
  if (rotary_dim < 2 || rotary_dim > limit || rotary_dim % 2 != 0) {
    fail({.subject = "op.rotary_dim",
          .expected = fmt::format("an even number of 2 to {}", limit),
          .got = fmt::format("{}", rotary_dim)});
  }
  f.expect(theta > 0, "op.theta", "more than 0", theta);
  if (!(s.factor >= 1) || !(s.low_freq_factor > 0) || !(s.high_freq_factor > s.low_freq_factor) ||
      s.original_max_position_embeddings < 1) {
    fail({.subject = "op.scaling",
          .expected = "a factor of at least 1, frequency factors that rise from above 0, and original positions",
          .got = fmt::format("{}, {} to {}, {}", s.factor, s.low_freq_factor, s.high_freq_factor,
                             s.original_max_position_embeddings)});
  }
}

void fields(const Rope& op, Fields& f) {
  f.in(op.x, "op.x").floating().rank(4).strided_rows();
  f.in(op.start, "op.start").optional();
  f.out(op.y, "op.y").like(op.x).strided_rows().may_be(op.x);
  check_rotation(op.rotary_dim, op.theta, op.scaling, op.x.size(3), f);
  check_part(op.part, op.x.size(1), "op.part");
}

}  // namespace megalith
