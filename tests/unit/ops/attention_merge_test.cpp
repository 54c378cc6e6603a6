// Attention of all keys, its parts merged, and rows cast and added.

#include <cmath>

#include "core/ops/attention/attention.h"
#include "core/ops/elementwise/elementwise.h"
#include "tests/reference/attention.h"
#include "tests/support/op_test.h"
#include "tests/unit/ops/magnitude.h"

namespace megalith::test {
namespace {

struct MergeSizes {
  std::int64_t samples, queries, keys, heads, kv_heads, dim;
};
// Around the tiles of 6 rows, 64 keys and 128 queries, with more keys than queries and fewer.
const MergeSizes kMergeSizes[] = {{1, 1, 1, 1, 1, 8},    {2, 7, 3, 2, 1, 8},     {1, 1, 130, 2, 2, 16},
                                  {2, 65, 64, 4, 2, 24}, {1, 130, 200, 2, 1, 8}, {1, 200, 63, 1, 1, 64}};

class WholeAttentionTest : public OpTest {
 protected:
  static reference::AttentionSizes reference_sizes(const MergeSizes& z, bool causal = false) {
    return {.samples = static_cast<std::size_t>(z.samples),
            .queries = static_cast<std::size_t>(z.queries),
            .keys = static_cast<std::size_t>(z.keys),
            .heads = static_cast<std::size_t>(z.heads),
            .kv_heads = static_cast<std::size_t>(z.kv_heads),
            .dim = static_cast<std::size_t>(z.dim),
            .scale = static_cast<double>(scale_of(z)),
            .causal = causal};
  }
  static float scale_of(const MergeSizes& z) { return 1 / std::sqrt(static_cast<float>(z.dim)); }
  Shape query_shape(const MergeSizes& z) { return {z.samples, z.queries, z.heads, z.dim}; }
  Shape key_shape(const MergeSizes& z) { return {z.samples, z.keys, z.kv_heads, z.dim}; }
  Shape lse_shape(const MergeSizes& z) { return {z.samples, z.heads, z.queries}; }
  // Same check as in attention_test.cpp.
  void expect_sum(const Tensor& got, const Values& want, const Values& magnitude, std::int64_t length,
                  std::string_view what) {
    const bool rounds_terms = device() == DeviceType::kCuda && got.dtype == DType::kBf16;
    expect_close(got, want,
                 {.length = length,
                  .magnitude = rounds_terms ? magnitude : sum_magnitude(want, magnitude, got.dtype, length),
                  .what = what});
  }
};
MEGALITH_OP_TESTS(WholeAttentionTest);

TEST_P(WholeAttentionTest, Forward) {
  for (const MergeSizes& z : kMergeSizes) {
    SCOPED_TRACE(z.queries);
    const Tensor q = input(query_shape(z)), k = input(key_shape(z)), v = input(key_shape(z));
    const Tensor out = output(query_shape(z)), lse = output(lse_shape(z), DType::kFp32);
    run(AttentionForward{.q = q, .k = k, .v = v, .out = out, .lse = lse, .scale = scale_of(z), .causal = false});
    const auto want = reference::attention(values(q), values(k), values(v), reference_sizes(z));
    expect_sum(out, want.out, want.out_magnitude, z.keys + z.dim, "out");
    expect_sum(lse, want.lse, want.lse_magnitude, z.keys + z.dim, "lse");
  }
}

TEST_P(WholeAttentionTest, Backward) {
  for (const MergeSizes& z : kMergeSizes) {
    SCOPED_TRACE(z.queries);
    const Tensor q = input(query_shape(z)), k = input(key_shape(z)), v = input(key_shape(z));
    const auto exact = reference::attention(values(q), values(k), values(v), reference_sizes(z));
    const Tensor out = input(query_shape(z), dtype(), exact.out), d_out = input(query_shape(z));
    AttentionBackward op{.q = q,
                         .k = k,
                         .v = v,
                         .out = out,
                         .d_out = d_out,
                         .lse = input(lse_shape(z), DType::kFp32, exact.lse),
                         .delta = output(lse_shape(z), DType::kFp32),
                         .dq = output(query_shape(z)),
                         .dk = output(key_shape(z)),
                         .dv = output(key_shape(z)),
                         .scale = scale_of(z),
                         .causal = false};
    run(op);
    const Values stored_out = values(out), stored_lse = values(op.lse);
    const auto want = reference::attention_gradient(values(q), values(k), values(v), values(d_out),
                                                    {.out = stored_out, .lse = stored_lse}, reference_sizes(z));
    const std::int64_t length = std::max(z.queries * (z.heads / z.kv_heads), z.keys) + z.dim;
    expect_sum(op.dq, want.dq, want.dq_magnitude, length, "dq");
    expect_sum(op.dk, want.dk, want.dk_magnitude, length, "dk");
    expect_sum(op.dv, want.dv, want.dv_magnitude, length, "dv");
  }
}

// Keys in two parts, merged, equal the keys in one; then only the second half of the rows, in a buffer of all rows.
TEST_P(WholeAttentionTest, MergedPartsAreTheWhole) {
  const MergeSizes z{.samples = 2, .queries = 9, .keys = 70, .heads = 4, .kv_heads = 2, .dim = 8};
  const Tensor q = input(query_shape(z)), k = input(key_shape(z)), v = input(key_shape(z));
  const auto want = reference::attention(values(q), values(k), values(v), reference_sizes(z));
  const auto part_of = [&](std::int64_t first, std::int64_t count) {
    MergeSizes part = z;
    part.keys = count;
    const Tensor k_part = input(key_shape(part), dtype(), values(k.slice(1, first, count)));
    const Tensor v_part = input(key_shape(part), dtype(), values(v.slice(1, first, count)));
    return reference::attention(values(q), values(k_part), values(v_part), reference_sizes(part));
  };
  const auto a = part_of(0, 65), b = part_of(65, 5);
  const std::int64_t before = 3;                                          // rows that are not merged
  const auto after = [&](const Values& x, const Shape& shape, int dim) {  // NaN, `before` rows of it, then x's
    Shape longer = shape;
    longer[dim] += before;
    const Tensor whole = inout(longer, DType::kFp32, Values(static_cast<std::size_t>(longer.numel()), std::nan("")));
    Values filled = values(whole);
    const auto inner = static_cast<std::size_t>(dim == 1 ? z.heads * z.dim : 1);
    const auto rows = static_cast<std::size_t>(z.queries), skip = static_cast<std::size_t>(before);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const std::size_t row = i / inner % rows, outer = i / inner / rows;
      filled[(outer * (rows + skip) + skip + row) * inner + i % inner] = x[i];
    }
    return inout(longer, DType::kFp32, filled).slice(dim, before, z.queries);
  };
  const AttentionMerge op{.out = after(a.out, query_shape(z), 1),
                          .lse = after(a.lse, lse_shape(z), 2),
                          .part = input(query_shape(z), dtype(), b.out),
                          .part_lse = input(lse_shape(z), DType::kFp32, b.lse)};
  run(op);
  expect_sum(op.lse, want.lse, want.lse_magnitude, z.keys + z.dim, "lse");
  Values magnitude;
  for (const double x : want.out_magnitude) magnitude.push_back(x * (dtype() == DType::kFp32 ? 1.0 : 65536.0));
  expect_close(op.out, want.out,
               {.length = z.keys, .magnitude = magnitude, .what = "out"});  // bf16: the part's rounding
}

TEST_P(WholeAttentionTest, RefusesWhatDoesNotFit) {
  const Tensor q = input({1, 4, 2, 8}), none = input({1, 0, 2, 8});
  const Tensor out = output({1, 4, 2, 8}), lse = output({1, 2, 4}, DType::kFp32);
  expect_refused(AttentionForward{.q = q, .k = none, .v = none, .out = out, .lse = lse, .causal = false},
                 "op.k: expected at least 1 row");
}

class CastRowsTest : public OpTest {};
MEGALITH_OP_TESTS(CastRowsTest);

TEST_P(CastRowsTest, CopiesAndAdds) {
  for (const DType to : {DType::kFp32, DType::kBf16}) {
    for (const Shape& shape : {Shape{1, 1, 1, 1}, Shape{2, 5, 3, 17}, Shape{0, 5, 3, 8}}) {
      Shape wider = shape;
      wider[2] += 2;
      const Tensor x = input(wider).slice(2, 1, shape[2]);
      const Tensor y = output(wider, to).slice(2, 2, shape[2]);
      run(CastRows{.x = x, .y = y});
      expect_close(y, values(x));
      const Tensor sum = inout(wider, to, normal(wider.numel())).slice(2, 0, shape[2]);
      Values want = values(sum);
      const Values added = values(x);
      Values magnitude;
      for (std::size_t i = 0; i < want.size(); ++i) {
        magnitude.push_back(std::abs(want[i]) + std::abs(added[i]));
        want[i] += added[i];
      }
      run(CastRows{.x = x, .y = sum, .accumulate = true});
      expect_close(sum, want, {.length = 2, .magnitude = magnitude});
    }
  }
}

}  // namespace
}  // namespace megalith::test
