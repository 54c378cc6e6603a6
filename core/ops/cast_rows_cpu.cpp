#include "core/ops/cast_rows.h"
#include "core/ops/dispatch.h"
#include "core/ops/row_index.h"

namespace megalith {

namespace {

template <class From, class To>
void cast_rows(const CastRows& op) {
  if (op.x.numel() == 0) return;
  const std::int64_t columns = op.x.size(-1), rows = op.x.numel() / columns;
  const Rows<const From> xs(op.x);
  const Rows<To> ys(op.y);
  for_each_row(op.x, 0, rows, [&](std::int64_t, const RowIndex& at) {
    const Row x = xs[at];
    const Row y = ys[at];
    for_each_element(columns, [=, add = op.accumulate](auto i) { y.set(i, add ? y[i] + x[i] : x[i]); });
  });
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
