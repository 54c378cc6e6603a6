#include "core/ops/cast_rows.h"
#include "core/ops/dispatch.h"
#include "core/ops/row_index.h"
#include "core/ops/simd_math.h"

namespace megalith {

namespace {

template <class From, class To>
void cast_rows(const CastRows& op) {
  if (op.x.numel() == 0) return;
  const std::int64_t columns = op.x.size(-1), rows = op.x.numel() / columns;
  const Rows<const From> xs(op.x);
  const Rows<To> ys(op.y);
  RowIndex at(op.x, 0);
  for (std::int64_t row = 0; row < rows; ++row, at.advance()) {
    const From* x = xs.at(at);
    To* y = ys.at(at);
    simd::for_each_vector(columns, [x, y, add = op.accumulate](std::int64_t i, auto load, auto store) {
      store(y + i, add ? _mm256_add_ps(load(y + i), load(x + i)) : load(x + i));
    });
  }
}

}  // namespace

void run(CpuStream& stream, const CastRows& op) {
  stream.enqueue([op] {
    visit_float(op.x.dtype, [&op](auto from) {
      visit_float(op.y.dtype, [&op](auto to) { cast_rows<decltype(from), decltype(to)>(op); });
    });
  });
}

}  // namespace megalith
