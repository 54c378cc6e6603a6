#include "core/ops/optim/grad_norm.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/ops/dispatch.h"
#include "core/ops/fields.h"

namespace megalith {

void fields(const SumOfSquares& op, Fields& f) {
  for (const SquaredTensor& tensor : op.tensors) {
    const SquaredTensor& first = op.tensors.front();
    f.next_element();
    f.in(tensor.x, "tensor.x").dtype(&tensor == &first ? kFloatTypes : DTypeSet{first.x.dtype}).any_shape();
    f.range(static_cast<double>(tensor.block), 1, kSquareBlock, "tensor.block");
    f.range(static_cast<double>(tensor.begin), 0, static_cast<double>(tensor.block - 1), "tensor.begin");
    f.out(tensor.pieces, "tensor.pieces").dtype(DType::kFp64).shape({tensor.num_pieces()});
  }
}

void fields(const AddPieces& op, Fields& f) {
  f.in(op.pieces, "op.pieces").dtype(DType::kFp64).shape({op.ends.empty() ? 0 : op.ends.back()});
  std::int64_t begin = 0;
  for (const std::int64_t end : op.ends) {
    f.expect(end >= begin, "op.ends", "a piece that is not before the one ahead of it", end);
    begin = end;
  }
  f.out(op.out, "op.out").dtype(DType::kFp64).shape({static_cast<std::int64_t>(op.ends.size())});
}

void fields(const GradNormFinalize& op, Fields& f) {
  f.in(op.sums, "op.sums").dtype(DType::kFp64).rank(1);
  f.in(op.loss, "op.loss").dtype(DType::kFp32).shape({1});
  f.in(op.room.needed, "op.room.needed").dtype(DType::kInt32).shape({2}).optional();
  f.inout(op.parameters, "op.parameters");
  f.range(op.clip_grad, 0, std::numeric_limits<double>::max(), "op.clip_grad");
}

void fields(const StoreTotal& op, Fields& f) {
  f.in(op.sums, "op.sums").dtype(DType::kFp64).rank(1);
  f.out(op.total, "op.total");
}

void fields(const WriteStepParameters& op, Fields& f) { f.out(op.parameters, "op.parameters"); }

void fields(const WriteMicrobatchParameters& op, Fields& f) { f.out(op.out, "op.out"); }

namespace {

// Sums in fp64, so that fp32 gradients cannot overflow. Element i goes to sum i % 32; the 32 are added by halves.
template <class T>
double sum_of_squares(const T* x, std::int64_t count) {
  constexpr std::int64_t kSums = 32;
  double sums[kSums] = {};
  const auto add = [&](std::int64_t k, T value) { sums[k] += double{to_float(value)} * double{to_float(value)}; };
  std::int64_t i = 0;
  for (; i + kSums <= count; i += kSums) {
    for (std::int64_t k = 0; k < kSums; ++k) add(k, x[i + k]);
  }
  for (std::int64_t k = 0; i + k < count; ++k) add(k, x[i + k]);
  for (std::int64_t half = kSums / 2; half > 0; half /= 2) {
    for (std::int64_t k = 0; k < half; ++k) sums[k] += sums[k + half];
  }
  return sums[0];
}

template <class T>
double count_zeros(const T* x, std::int64_t count) {
  return static_cast<double>(std::count_if(x, x + count, [](T value) { return to_float(value) == 0; }));
}

double sum_in_order(const Tensor& sums) {
  double sum = 0;
  for (std::int64_t i = 0; i < sums.numel(); ++i) sum += sums.as<const double>()[i];
  return sum;
}

}  // namespace

void compute(const SumOfSquares& op) {
  for (const SquaredTensor& tensor : op.tensors) {
    double* out = tensor.pieces.as<double>();
    visit_float(tensor.x.dtype, [&]<class T>(T) {
      const T* const x = tensor.x.as<const T>();
      std::int64_t begin = 0, end = tensor.block - tensor.begin;
      for (; begin < tensor.x.numel(); begin = end, end += tensor.block) {
        const std::int64_t count = std::min(end, tensor.x.numel()) - begin;
        *out++ = op.zeros ? count_zeros(x + begin, count) : sum_of_squares(x + begin, count);
      }
    });
  }
}

void compute(const AddPieces& op) {
  const double* piece = op.pieces.as<const double>();
  for (std::size_t i = 0; i < op.ends.size(); ++i) {
    const double* const end = op.pieces.as<const double>() + op.ends[i];
    double sum = 0;
    for (; piece < end; ++piece) sum += *piece;
    op.out.as<double>()[i] = sum;
  }
}

void compute(const GradNormFinalize& op) {
  StepParameters& step = *op.parameters;
  const double norm = std::sqrt(sum_in_order(op.sums));
  step.loss = *op.loss.as<const float>();
  step.grad_norm = static_cast<float>(norm);
  const auto* const needed = op.room.needed.as<const std::int32_t>();
  const bool has_room = needed == nullptr || (needed[0] <= op.room.arrived && needed[1] <= op.room.rows);
  const bool finite = std::isfinite(step.loss) && std::isfinite(step.grad_norm);
  step.skip = !has_room ? kSkipNoRoom : finite ? 0 : kSkipNotFinite;
  step.clip_factor = op.clip_grad > 0 ? static_cast<float>(std::min(1.0, op.clip_grad / (norm + 1e-6))) : 1.0f;
  if (step.skip != 0) {
    step.clip_factor = 1;  // unused; NaN would mislead readers
  } else {
    ++step.adam_count;
  }
}

void compute(const StoreTotal& op) {
  const double sum = sum_in_order(op.sums);
  *op.total = op.root ? std::sqrt(sum) : sum;
}

void compute(const WriteStepParameters& op) {
  op.parameters->iteration = op.iteration;
  op.parameters->learning_rate = op.learning_rate;
  op.parameters->decoupled_learning_rate = op.decoupled_learning_rate;
  op.parameters->weight_decay_scale = op.weight_decay_scale;
}

void compute(const WriteMicrobatchParameters& op) { *op.out = op.value; }

}  // namespace megalith
