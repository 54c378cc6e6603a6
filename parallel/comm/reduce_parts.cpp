#include "parallel/comm/reduce_parts.h"

#include <algorithm>
#include <array>

#include "core/base/error.h"
#include "core/tensor/bf16.h"

namespace megalith {

namespace {

constexpr std::int64_t kBlock = 2048;  // accumulators fit into the L1 cache

// Elements are stored as T and accumulated as A by `combine(accumulator, next)`.
template <class T, class A, class Load, class Combine, class Store>
void reduce_blocks(std::span<const void* const> parts, void* out, std::int64_t n, Load load, Combine combine,
                   Store store) {
  alignas(64) std::array<A, kBlock> block;
  A* const acc = block.data();
  for (std::int64_t begin = 0; begin < n; begin += kBlock) {
    const std::int64_t count = std::min(kBlock, n - begin);
    const T* first = static_cast<const T*>(parts[0]) + begin;
    for (std::int64_t i = 0; i < count; ++i) acc[i] = load(first[i]);
    for (const void* part : parts.subspan(1)) {
      const T* next = static_cast<const T*>(part) + begin;
      for (std::int64_t i = 0; i < count; ++i) acc[i] = combine(acc[i], load(next[i]));
    }
    T* result = static_cast<T*>(out) + begin;
    for (std::int64_t i = 0; i < count; ++i) result[i] = store(acc[i]);
  }
}

// A: type of sums; M: type of comparisons for maxima.
template <class T, class A, class M, class Load, class Store>
void reduce(ReduceOp op, std::span<const void* const> parts, void* out, std::int64_t n, Load load, Store store) {
  if (op == ReduceOp::kSum) {
    reduce_blocks<T, A>(
        parts, out, n, [&](T x) { return static_cast<A>(load(x)); }, [](A a, A b) { return static_cast<A>(a + b); },
        [&](A a) { return store(static_cast<M>(a)); });
  } else {
    reduce_blocks<T, M>(
        parts, out, n, load, [](M a, M b) { return std::max(a, b); }, store);
  }
}

}  // namespace

void reduce_parts(ReduceOp op, DType dtype, std::span<const void* const> parts, void* out, std::int64_t n) {
  const auto same = [](auto x) { return x; };
  switch (dtype) {
    case DType::kFp32: reduce<float, float, float>(op, parts, out, n, same, same); return;
    case DType::kFp64: reduce<double, double, double>(op, parts, out, n, same, same); return;
    case DType::kBf16:
      reduce<bf16, float, float>(
          op, parts, out, n, [](bf16 x) { return to_float(x); }, [](float x) { return to_bf16(x); });
      return;
    // Unsigned sums wrap around; signed overflow would be undefined.
    case DType::kInt32: reduce<std::int32_t, std::uint32_t, std::int32_t>(op, parts, out, n, same, same); return;
    case DType::kInt64: reduce<std::int64_t, std::uint64_t, std::int64_t>(op, parts, out, n, same, same); return;
    case DType::kUint8: break;
  }
  fail({.subject = "reduction", .expected = "a dtype that can be reduced", .got = std::string(name_of(dtype))});
}

}  // namespace megalith
