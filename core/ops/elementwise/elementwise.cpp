#include "core/ops/elementwise/elementwise.h"

#include <algorithm>
#include <cstring>

#include "core/ops/dispatch.h"
#include "core/ops/fields.h"
#include "core/ops/loops.h"

namespace megalith {

void fields(const Add& op, Fields& f) {
  f.in(op.a, "op.a").floating().any_shape();
  f.in(op.b, "op.b").like(op.a);
  f.out(op.y, "op.y").like(op.a).may_be(op.a).may_be(op.b);
}

void fields(const SumParts& op, Fields& f) {
  f.in(op.parts, "op.parts").floating().rank(1, kMaxDims);
  Shape part;
  for (int d = 1; d < op.parts.rank(); ++d) part.push_back(op.parts.size(d));
  f.out(op.y, "op.y").shape(part).dtype(op.parts.dtype);
  f.expect(op.parts.size(0) > 0, "op.parts", "at least one part", op.parts.shape);
}

void fields(const CastRows& op, Fields& f) {
  f.in(op.x, "op.x").floating().rank(1, 4).strided_rows();
  f.out(op.y, "op.y").floating().shape(op.x.shape).strided_rows().read_if(op.accumulate);
}

void fields(const Copy& op, Fields& f) {
  f.in(op.src, "op.src").any_dtype().any_shape().any_strides();
  f.out(op.dst, "op.dst").like(op.src).any_strides();
  f.copies();
}

void fields(const Fill& op, Fields& f) { f.out(op.x, "op.x").any_dtype().any_shape().any_strides(); }

namespace {

// Returns the first dim from which on both tensors, of one shape, are contiguous.
int first_dense_dim(const Tensor& a, const Tensor& b) {
  int d = a.rank();
  for (std::int64_t run = 1; d > 0; run *= a.size(--d)) {
    if (a.size(d - 1) != 1 && (a.stride(d - 1) != run || b.stride(d - 1) != run)) break;
  }
  return d;
}

// Calls visit(offset in a, offset in b) for each run of elements of the dims from `dense` on.
template <class Visit>
void for_each_run(const Tensor& a, const Tensor& b, int dense, const Visit& visit, int d = 0, std::int64_t at_a = 0,
                  std::int64_t at_b = 0) {
  if (d == dense) return visit(at_a, at_b);
  for (std::int64_t i = 0; i < a.size(d); ++i, at_a += a.stride(d), at_b += b.stride(d)) {
    for_each_run(a, b, dense, visit, d + 1, at_a, at_b);
  }
}

std::int64_t run_length(const Tensor& x, int dense) {
  std::int64_t length = 1;
  for (int d = dense; d < x.rank(); ++d) length *= x.size(d);
  return length;
}

template <class T>
void fill(const Tensor& x, T value) {
  const int dense = first_dense_dim(x, x);
  for_each_run(x, x, dense, [=, first = x.as<T>(), length = run_length(x, dense)](std::int64_t at, std::int64_t) {
    std::fill_n(first + at, length, T(value));  // a copy that the loop may not change
  });
}

}  // namespace

void compute(const Add& op) {
  visit_float(op.a.dtype, [&]<class T>(T) {
    const Row a = op.a.as<const T>(), b = op.b.as<const T>();
    const Row y = op.y.as<T>();
    for_each_element(op.a.numel(), [=](auto i) { y.set(i, a[i] + b[i]); });
  });
}

void compute(const SumParts& op) {
  const std::int64_t parts = op.parts.size(0), size = op.y.numel();
  visit_float(op.parts.dtype, [&]<class T>(T) {
    const Row first = op.parts.as<const T>();
    const Row y = op.y.as<T>();
    for_each_element(size, [=](auto i) {
      F32x8 sum = first[i];
      for (std::int64_t p = 1; p < parts; ++p) sum += (first + p * size)[i];
      y.set(i, sum);
    });
  });
}

void compute(const CastRows& op) {
  visit_float(op.x.dtype, op.y.dtype, [&]<class From, class To>(From, To) {
    const Rows<const From> xs(op.x);
    const Rows<To> ys(op.y);
    for_each_row(op.x, [&](std::int64_t, const RowIndex& at) {
      for_each_element(op.x.size(-1),
                       [x = xs[at], y = ys[at], add = op.accumulate](auto i) { y.set(i, add ? y[i] + x[i] : x[i]); });
    });
  });
}

void compute(const Copy& op) {
  const auto size = static_cast<std::int64_t>(size_of(op.src.dtype));
  const int dense = first_dense_dim(op.src, op.dst);
  const auto bytes = static_cast<std::size_t>(run_length(op.src, dense) * size);
  if (bytes == 0) return;  // memcpy does not accept null
  for_each_run(op.src, op.dst, dense, [&](std::int64_t from, std::int64_t to) {
    std::memcpy(op.dst.as<std::byte>() + to * size, op.src.as<const std::byte>() + from * size, bytes);
  });
}

void compute(const Fill& op) {
  switch (op.x.dtype) {
    case DType::kFp32: return fill(op.x, static_cast<float>(op.value));
    case DType::kBf16: return fill(op.x, to_bf16(static_cast<float>(op.value)));
    case DType::kFp64: return fill(op.x, op.value);
    case DType::kInt32: return fill(op.x, static_cast<std::int32_t>(op.value));
    case DType::kInt64: return fill(op.x, static_cast<std::int64_t>(op.value));
    case DType::kUint8: return fill(op.x, static_cast<std::uint8_t>(op.value));
  }
}

}  // namespace megalith
