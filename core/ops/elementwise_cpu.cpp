#include <algorithm>
#include <cstring>

#include "core/ops/dispatch.h"
#include "core/ops/elementwise.h"
#include "core/ops/row_index.h"

namespace megalith {

namespace {

template <class T>
void add(const Add& op) {
  const Row a = op.a.as<const T>(), b = op.b.as<const T>();
  const Row y = op.y.as<T>();
  for_each_element(op.a.numel(), [=](auto i) { y.set(i, a[i] + b[i]); });
}

template <class T>
void sum_parts(const SumParts& op) {
  const std::int64_t parts = op.parts.size(0), size = op.y.numel();
  const T* first = op.parts.as<const T>();
  const Row y = op.y.as<T>();
  for_each_element(size, [=](auto i) {
    F32x8 sum = Row(first)[i];
    for (std::int64_t p = 1; p < parts; ++p) sum += Row(first + p * size)[i];
    y.set(i, sum);
  });
}

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

// Two tensors of one shape seen as `outer` runs of `inner` elements, each run with one stride in either tensor; dims
// that are contiguous in both are merged into the run.
struct Runs {
  Shape outer;
  std::int64_t inner = 1;
  bool contiguous = true;  // within a run, in both
};

Runs runs_of(const Tensor& a, const Tensor& b) {
  Runs runs;
  int d = a.rank() - 1;
  for (; d >= 0; --d) {
    const bool continues = (a.stride(d) == runs.inner && b.stride(d) == runs.inner) || a.size(d) == 1;
    if (!continues) break;
    runs.inner *= a.size(d);
  }
  if (d == a.rank() - 1 && d >= 0) {  // not even the last dim is contiguous
    runs.contiguous = false;
    runs.inner = a.size(d--);
  }
  for (int i = 0; i <= d; ++i) runs.outer.push_back(a.size(i));
  return runs;
}

std::int64_t offset_of(std::int64_t run, const Shape& outer, const Tensor& tensor) {
  std::int64_t offset = 0;
  for (int d = outer.rank() - 1; d >= 0; --d) {
    offset += run % outer[d] * tensor.stride(d);
    run /= outer[d];
  }
  return offset;
}

void copy(const Copy& op) {
  if (op.src.numel() == 0) return;
  const Runs runs = runs_of(op.src, op.dst);
  const auto size = static_cast<std::int64_t>(size_of(op.src.dtype));
  const std::int64_t count = runs.outer.numel();
  for (std::int64_t run = 0; run < count; ++run) {
    const auto* src = op.src.as<const std::byte>() + offset_of(run, runs.outer, op.src) * size;
    auto* dst = op.dst.as<std::byte>() + offset_of(run, runs.outer, op.dst) * size;
    if (runs.contiguous) {
      std::memcpy(dst, src, static_cast<std::size_t>(runs.inner * size));
      continue;
    }
    for (std::int64_t i = 0; i < runs.inner; ++i) {
      std::memcpy(dst + i * op.dst.stride(-1) * size, src + i * op.src.stride(-1) * size,
                  static_cast<std::size_t>(size));
    }
  }
}

template <class T>
void fill(const Fill& op, T value) {
  if (op.x.numel() == 0) return;
  const Runs runs = runs_of(op.x, op.x);
  const std::int64_t count = runs.outer.numel();
  for (std::int64_t run = 0; run < count; ++run) {
    T* x = op.x.as<T>() + offset_of(run, runs.outer, op.x);
    if (runs.contiguous) {
      std::fill_n(x, runs.inner, value);
    } else {
      for (std::int64_t i = 0; i < runs.inner; ++i) x[i * op.x.stride(-1)] = value;
    }
  }
}

}  // namespace

void run(CpuStream& stream, const Add& op) {
  stream.enqueue([op] { visit_float(op.a.dtype, [&op](auto type) { add<decltype(type)>(op); }); });
}

void run(CpuStream& stream, const SumParts& op) {
  stream.enqueue([op] { visit_float(op.parts.dtype, [&op](auto type) { sum_parts<decltype(type)>(op); }); });
}

void run(CpuStream& stream, const CastRows& op) {
  stream.enqueue([op] {
    visit_float(op.x.dtype, [&op](auto from) {
      visit_float(op.y.dtype, [&op](auto to) { cast_rows<decltype(from), decltype(to)>(op); });
    });
  });
}

void run(CpuStream& stream, const Copy& op) {
  stream.enqueue([op] { copy(op); });
}

void run(CpuStream& stream, const Fill& op) {
  stream.enqueue([op] {
    switch (op.x.dtype) {
      case DType::kFp32: return fill(op, static_cast<float>(op.value));
      case DType::kBf16: return fill(op, to_bf16(static_cast<float>(op.value)));
      case DType::kFp64: return fill(op, op.value);
      case DType::kInt32: return fill(op, static_cast<std::int32_t>(op.value));
      case DType::kInt64: return fill(op, static_cast<std::int64_t>(op.value));
      case DType::kUint8: return fill(op, static_cast<std::uint8_t>(op.value));
    }
  });
}

}  // namespace megalith
