#include "core/ops/fill_normal.h"

#include <algorithm>
#include <span>

#include "core/ops/dispatch.h"

namespace megalith {

namespace {

void fill(const FillNormal& op, float) {
  fill_normal(std::span(op.x.as<float>(), static_cast<std::size_t>(op.x.numel())), op.numbers);
}

void fill(const FillNormal& op, bf16) {
  constexpr std::int64_t kChunk = 1024;
  float chunk[kChunk];
  NormalNumbers numbers = op.numbers;
  for (std::int64_t i = 0; i < op.x.numel(); i += kChunk, numbers.offset += kChunk) {
    const std::int64_t count = std::min(kChunk, op.x.numel() - i);
    fill_normal(std::span(chunk, static_cast<std::size_t>(count)), numbers);
    std::transform(chunk, chunk + count, op.x.as<bf16>() + i, to_bf16);
  }
}

}  // namespace

void run(CpuStream& stream, const FillNormal& op) {
  stream.enqueue([op] { visit_float(op.x.dtype, [&op](auto type) { fill(op, type); }); });
}

}  // namespace megalith
