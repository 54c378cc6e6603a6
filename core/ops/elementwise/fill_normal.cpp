#include "core/ops/elementwise/fill_normal.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "core/ops/dispatch.h"
#include "core/ops/fields.h"

namespace megalith {

void fields(const FillNormal& op, Fields& f) {
  f.out(op.x, "op.x").floating().rank(2);
  if (op.pitch >= op.x.size(1)) return;
  fail({.subject = "op.pitch",
        .expected = fmt::format("at least {}, the columns of op.x", op.x.size(1)),
        .got = fmt::format("{}", op.pitch)});
}

namespace {

void fill(float* out, std::int64_t count, const NormalNumbers& numbers) {
  fill_normal(std::span(out, static_cast<std::size_t>(count)), numbers);
}

void fill(bf16* out, std::int64_t count, NormalNumbers numbers) {
  constexpr std::int64_t kChunk = 1024;
  float chunk[kChunk];
  for (std::int64_t i = 0; i < count; i += kChunk, numbers.offset += kChunk) {
    const std::int64_t some = std::min(kChunk, count - i);
    fill(chunk, some, numbers);
    std::transform(chunk, chunk + some, out + i, [](float x) { return to_bf16(x); });
  }
}

}  // namespace

void compute(const FillNormal& op) {
  visit_float(op.x.dtype, [&]<class T>(T) {
    NormalNumbers numbers = op.numbers;
    for (std::int64_t row = 0; row < op.x.size(0); ++row, numbers.offset += op.pitch) {
      fill(op.x.as<T>() + row * op.x.size(1), op.x.size(1), numbers);
    }
  });
}

}  // namespace megalith
