#include <algorithm>

#include "core/ops/data_faults.h"
#include "core/ops/dispatch.h"
#include "core/ops/softmax_cpu.h"
#include "core/ops/vocab_cross_entropy.h"

namespace megalith {

namespace {

// Columns of the tensor that count.
std::int64_t live_columns(const Tensor& logits, const VocabColumns& columns) {
  return std::clamp<std::int64_t>(columns.vocab_size - columns.first_column, 0, logits.size(1));
}

float shift_of(float max) { return max == kLowest ? 0 : max; }  // all -inf: -inf - -inf would be NaN

template <class T>
T* row_of(const Tensor& logits, std::int64_t row) {
  return logits.as<T>() + row * logits.stride(0);
}

template <class T>
void maxima(const VocabMax& op) {
  const std::int64_t columns = live_columns(op.logits, op.columns);
  const auto* labels = op.labels.as<const std::int32_t>();
  for (std::int64_t row = 0; row < op.labels.numel(); ++row) {
    if (labels[row] < op.columns.vocab_size) continue;
    const std::int64_t values[] = {row, labels[row], op.columns.vocab_size};
    raise_bad_label(values);
  }
  for (std::int64_t row = 0; row < op.labels.numel(); ++row)
    op.max.as<float>()[row] = labels[row] < 0 ? 0 : block_max(row_of<const T>(op.logits, row), columns);
}

template <class T>
void sums(const VocabSums& op) {
  const std::int64_t columns = live_columns(op.logits, op.columns), rows = op.labels.numel();
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t label = op.labels.as<const std::int32_t>()[row];
    const std::int64_t local = label - op.columns.first_column;
    const T* x = row_of<const T>(op.logits, row);
    const float max = op.max.as<const float>()[row];
    float sum = 0;
    for (std::int64_t i = 0; i < columns && label >= 0; i += kBlock)
      sum += block_sum(x + i, std::min(kBlock, columns - i), shift_of(max));
    op.sums.as<float>()[row] = sum;
    op.sums.as<float>()[rows + row] = label >= 0 && local >= 0 && local < columns ? to_float(x[local]) - max : 0;
  }
}

template <class T>
void losses(const VocabLoss& op) {
  const std::int64_t columns = live_columns(op.logits, op.columns), rows = op.labels.numel();
  const float scale = op.write_gradient ? op.parameters->loss_scale : 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t label = op.labels.as<const std::int32_t>()[row];
    T* x = row_of<T>(op.logits, row);
    const float sum = op.sums.as<const float>()[row], label_logit = op.sums.as<const float>()[rows + row];
    op.loss.as<float>()[row] = label < 0 ? 0 : simd::log(sum) - label_logit;
    if (!op.write_gradient) continue;
    if (label < 0) {
      std::fill_n(x, op.logits.size(1), from_float<T>(0));
      continue;
    }
    write_softmax_gradient(x, columns, {.max = op.max.as<const float>()[row], .sum = sum}, scale);
    const std::int64_t local = label - op.columns.first_column;
    // The subtraction belongs before the rounding to T.
    if (local >= 0 && local < columns) x[local] = from_float<T>((scalar_exp(label_logit) / sum - 1.0f) * scale);
    std::fill_n(x + columns, op.logits.size(1) - columns, from_float<T>(0));
  }
}

}  // namespace

void run(CpuStream& stream, const VocabMax& op) {
  stream.enqueue([op] { visit_float(op.logits.dtype, [&op](auto type) { maxima<decltype(type)>(op); }); });
}

void run(CpuStream& stream, const VocabSums& op) {
  stream.enqueue([op] { visit_float(op.logits.dtype, [&op](auto type) { sums<decltype(type)>(op); }); });
}

void run(CpuStream& stream, const VocabLoss& op) {
  stream.enqueue([op] { visit_float(op.logits.dtype, [&op](auto type) { losses<decltype(type)>(op); }); });
}

}  // namespace megalith
