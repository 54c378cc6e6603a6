#include "core/ops/elementwise/fill_normal.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "core/base/normal.h"
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

void fill_uniform(float* out, std::int64_t count, const NormalNumbers& numbers) {
  const PhiloxKey key = numbers.key();
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t element = numbers.offset + i;
    const auto block = static_cast<std::uint64_t>(element / 4);
    const PhiloxCounter words =
        philox4x32_10({static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32), 0, 0}, key);
    const double uniform = uniform_number(words[static_cast<std::size_t>(element % 4)]);
    out[i] = static_cast<float>(std::fma(uniform, double{numbers.std}, double{numbers.mean}));
  }
}

void fill(float* out, std::int64_t count, const NormalNumbers& numbers, bool uniform) {
  if (uniform) return fill_uniform(out, count, numbers);
  fill_normal(std::span(out, static_cast<std::size_t>(count)), numbers);
}

void fill(bf16* out, std::int64_t count, NormalNumbers numbers, bool uniform) {
  constexpr std::int64_t kChunk = 1024;
  float chunk[kChunk];
  for (std::int64_t i = 0; i < count; i += kChunk, numbers.offset += kChunk) {
    const std::int64_t some = std::min(kChunk, count - i);
    fill(chunk, some, numbers, uniform);
    std::transform(chunk, chunk + some, out + i, [](float x) { return to_bf16(x); });
  }
}

}  // namespace

void compute(const FillNormal& op) {
  visit_float(op.x.dtype, [&]<class T>(T) {
    NormalNumbers numbers = op.numbers;
    for (std::int64_t row = 0; row < op.x.size(0); ++row, numbers.offset += op.pitch) {
      fill(op.x.as<T>() + row * op.x.size(1), op.x.size(1), numbers, op.uniform);
    }
  });
}

}  // namespace megalith
