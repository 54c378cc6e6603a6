#include "core/ops/loss/vocab_cross_entropy.h"

#include <algorithm>

#include "core/ops/data_faults.h"
#include "core/ops/dispatch.h"
#include "core/ops/fields.h"
#include "core/ops/softmax_cpu.h"

namespace megalith {

namespace {

Field& logits(const Tensor& x, Fields& f) { return f.in(x, "op.logits").floating().rank(2).strided_rows(); }

template <class Op>
void labels_and_columns(const Op& op, Fields& f) {
  f.in(op.labels, "op.labels").dtype(DType::kInt32).shape({op.logits.size(0)});
  f.range(static_cast<double>(op.columns.vocab_size), 1, 0x1p31, "op.columns.vocab_size");
  f.range(static_cast<double>(op.columns.first_column), 0, 0x1p31, "op.columns.first_column");
}

Field& fp32(Field& field, const Shape& shape) { return field.dtype(DType::kFp32).shape(shape); }

}  // namespace

void fields(const VocabMax& op, Fields& f) {
  logits(op.logits, f);
  labels_and_columns(op, f);
  fp32(f.out(op.max, "op.max"), op.labels.shape);
  f.workspace(op.workspace);
}

std::size_t workspace_bytes(const VocabMax&, DeviceType device) {
  return device == DeviceType::kCuda ? kVerdictBytes : 0;
}

void fields(const VocabSums& op, Fields& f) {
  logits(op.logits, f);
  labels_and_columns(op, f);
  fp32(f.in(op.max, "op.max"), op.labels.shape);
  fp32(f.out(op.sums, "op.sums"), {2, op.labels.size(0)});
}

void fields(const VocabLoss& op, Fields& f) {
  logits(op.logits, f).read_if(op.write_gradient).write_if(op.write_gradient);
  labels_and_columns(op, f);
  fp32(f.in(op.max, "op.max"), op.labels.shape).read_if(op.write_gradient);
  fp32(f.in(op.sums, "op.sums"), {2, op.labels.size(0)});
  fp32(f.out(op.loss, "op.loss"), op.labels.shape);
  if (op.write_gradient) f.in(op.parameters, "op.parameters");
}

namespace {

// Calls visit(row, its logits, number that count, its label's column); in ignored tokens none counts.
template <class T, class Op, class Visit>
void for_each_token(const Op& op, Visit&& visit) {
  const std::int64_t live =
      std::clamp<std::int64_t>(op.columns.vocab_size - op.columns.first_column, 0, op.logits.size(1));
  for (std::int64_t row = 0; row < op.labels.numel(); ++row) {
    const std::int64_t label = op.labels.template as<const std::int32_t>()[row];
    T* x = op.logits.template as<T>() + row * op.logits.stride(0);
    visit(row, x, label < 0 ? 0 : live, label - op.columns.first_column);
  }
}

}  // namespace

void compute(const VocabMax& op) {
  check_labels(op.labels, op.columns.vocab_size);
  visit_float(op.logits.dtype, [&]<class T>(T) {
    for_each_token<const T>(op, [&](std::int64_t row, const T* x, std::int64_t columns, std::int64_t) {
      const bool ignored = op.labels.as<const std::int32_t>()[row] < 0;
      op.max.as<float>()[row] = ignored ? 0 : block_max(x, columns);
    });
  });
}

void compute(const VocabSums& op) {
  const std::int64_t rows = op.labels.numel();
  visit_float(op.logits.dtype, [&]<class T>(T) {
    for_each_token<const T>(op, [&](std::int64_t row, const T* x, std::int64_t columns, std::int64_t label) {
      const float max = op.max.as<const float>()[row];
      const float shift = max == kLowest ? 0 : max;  // all -inf: -inf - -inf would be NaN
      float sum = 0;
      for (std::int64_t i = 0; i < columns; i += kBlock) sum += block_sum(x + i, std::min(kBlock, columns - i), shift);
      op.sums.as<float>()[row] = sum;
      op.sums.as<float>()[rows + row] = label >= 0 && label < columns ? to_float(x[label]) - max : 0;
    });
  });
}

void compute(const VocabLoss& op) {
  const std::int64_t rows = op.labels.numel();
  visit_float(op.logits.dtype, [&]<class T>(T) {
    for_each_token<T>(op, [&](std::int64_t row, T* x, std::int64_t columns, std::int64_t label) {
      const bool ignored = op.labels.as<const std::int32_t>()[row] < 0;
      const auto* sums = op.sums.as<const float>() + row;
      op.loss.as<float>()[row] = ignored ? 0 : simd::log(sums[0]) - sums[rows];
      if (!op.write_gradient) return;
      const SoftmaxSum softmax{.max = op.max.as<const float>()[row], .sum = sums[0], .label_logit = sums[rows]};
      write_gradient(x, op.logits.size(1), columns, label, softmax, op.parameters->loss_scale);
    });
  });
}

}  // namespace megalith
