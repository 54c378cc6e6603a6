#include <algorithm>
#include <cmath>

#include "core/ops/attention_merge.h"
#include "core/ops/dispatch.h"
#include "core/ops/simd_math.h"

namespace megalith {

namespace {

template <class T>
void merge(const AttentionMerge& op) {
  const std::int64_t samples = op.out.size(0), rows = op.out.size(1), heads = op.out.size(2), dim = op.out.size(3);
  const auto row_of = [](const Tensor& x, std::int64_t b, std::int64_t s, std::int64_t n) {
    return b * x.stride(0) + s * x.stride(1) + n * x.stride(2);
  };
  for (std::int64_t b = 0; b < samples; ++b) {
    for (std::int64_t s = 0; s < rows; ++s) {
      for (std::int64_t n = 0; n < heads; ++n) {
        float& lse = op.lse.as<float>()[row_of(op.lse, b, n, s)];
        const float part_lse = op.part_lse.as<const float>()[row_of(op.part_lse, b, n, s)];
        const float largest = std::max(lse, part_lse);
        const float weight = std::exp(lse - largest), part_weight = std::exp(part_lse - largest);
        const float total = weight + part_weight;
        lse = largest + std::log(total);
        const simd::F32x8 kept = simd::set1(weight / total), added = simd::set1(part_weight / total);
        float* out = op.out.as<float>() + row_of(op.out, b, s, n);
        const T* part = op.part.as<const T>() + row_of(op.part, b, s, n);
        simd::for_each_vector(dim, [=](std::int64_t d, auto load, auto store) {
          store(out + d, _mm256_fmadd_ps(load(part + d), added, _mm256_mul_ps(load(out + d), kept)));
        });
      }
    }
  }
}

}  // namespace

void run(CpuStream& stream, const AttentionMerge& op) {
  stream.enqueue([op] { visit_float(op.part.dtype, [&op](auto type) { merge<decltype(type)>(op); }); });
}

}  // namespace megalith
