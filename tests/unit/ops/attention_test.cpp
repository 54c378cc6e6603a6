#include "core/ops/attention/attention.h"

#include <cmath>

#include "core/ops/attention/rope.h"
#include "tests/reference/attention.h"
#include "tests/support/op_test.h"
#include "tests/unit/ops/magnitude.h"

namespace megalith::test {
namespace {

struct SelfAttentionSizes {
  std::int64_t samples, tokens, heads, kv_heads, dim;
};

// Tokens just around the tiles of 6 rows, 64 keys and 128 queries; head dims that fill no vector.
const SelfAttentionSizes kAttentionSizes[] = {{1, 1, 1, 1, 1},    {2, 7, 2, 1, 5},   {1, 63, 1, 1, 8},
                                              {1, 64, 2, 2, 16},  {1, 65, 1, 1, 33}, {2, 130, 4, 2, 20},
                                              {1, 200, 1, 1, 64}, {1, 70, 2, 1, 256}};

class AttentionTest : public OpTest {
 protected:
  // Slices of a fused [B, S, (N + 2 K) D], as a layer has them.
  struct Fused {
    Tensor whole, q, k, v;
  };
  Fused split(const Tensor& whole, const SelfAttentionSizes& z) {
    return {whole, whole.slice(2, 0, z.heads), whole.slice(2, z.heads, z.kv_heads),
            whole.slice(2, z.heads + z.kv_heads, z.kv_heads)};
  }
  Fused fused_input(const SelfAttentionSizes& z) {
    return split(input({z.samples, z.tokens, z.heads + 2 * z.kv_heads, z.dim}), z);
  }
  Shape out_shape(const SelfAttentionSizes& z) { return {z.samples, z.tokens, z.heads, z.dim}; }
  Shape lse_shape(const SelfAttentionSizes& z) { return {z.samples, z.heads, z.tokens}; }
  static float scale_of(const SelfAttentionSizes& z) { return 1 / std::sqrt(static_cast<float>(z.dim)); }

  static reference::AttentionSizes reference_sizes(const SelfAttentionSizes& z) {
    return {.samples = static_cast<std::size_t>(z.samples),
            .queries = static_cast<std::size_t>(z.tokens),
            .keys = static_cast<std::size_t>(z.tokens),
            .heads = static_cast<std::size_t>(z.heads),
            .kv_heads = static_cast<std::size_t>(z.kv_heads),
            .dim = static_cast<std::size_t>(z.dim),
            .scale = static_cast<double>(scale_of(z))};
  }
  // bf16 on CUDA is cuDNN's.
  bool is_cudnn() const { return device() == DeviceType::kCuda && dtype() == DType::kBf16; }
  // cuDNN multiplies P and dS as bf16, so that each term of a sum is rounded, not only the sum.
  void expect_sum(const Tensor& got, const Values& want, const Values& magnitude, std::int64_t length,
                  std::string_view what) {
    const bool rounds_terms = is_cudnn() && got.dtype == DType::kBf16;
    const Values allowed = rounds_terms ? magnitude : sum_magnitude(want, magnitude, got.dtype, length);
    expect_close(got, want, {.length = length, .magnitude = allowed, .what = what});
  }
  void expect_cached_equals_whole(std::int64_t window);
  // Runs the op. If cuDNN does not support the head dim, expects an error.
  template <class Op>
  bool runs(const Op& op) {
    if (!is_cudnn() || op.q.size(3) % 8 == 0) {
      run(op);
      return true;
    }
    expect_kernel_error(op, ExitCode::kUsage, "expected a multiple of 8 up to 256");
    return false;
  }
};
MEGALITH_OP_TESTS(AttentionTest);

TEST_P(AttentionTest, Forward) {
  for (const SelfAttentionSizes& z : kAttentionSizes) {
    SCOPED_TRACE(z.tokens);
    const Fused x = fused_input(z);
    const Tensor out = output(out_shape(z)), lse = output(lse_shape(z), DType::kFp32);
    if (!runs(AttentionForward{.q = x.q, .k = x.k, .v = x.v, .out = out, .lse = lse, .scale = scale_of(z)})) continue;
    const auto want = reference::attention(values(x.q), values(x.k), values(x.v), reference_sizes(z));
    expect_sum(out, want.out, want.out_magnitude, z.tokens + z.dim, "out");
    expect_sum(lse, want.lse, want.lse_magnitude, z.tokens + z.dim, "lse");
  }
}

TEST_P(AttentionTest, Backward) {
  for (const SelfAttentionSizes& z : kAttentionSizes) {
    SCOPED_TRACE(z.tokens);
    const Fused x = fused_input(z);
    const auto exact = reference::attention(values(x.q), values(x.k), values(x.v), reference_sizes(z));
    const Tensor out = input(out_shape(z), dtype(), exact.out), d_out = input(out_shape(z));
    const Tensor lse = input(lse_shape(z), DType::kFp32, exact.lse);
    const Fused d = split(output(x.whole.shape), z);
    AttentionBackward op{.q = x.q,
                         .k = x.k,
                         .v = x.v,
                         .out = out,
                         .d_out = d_out,
                         .lse = lse,
                         .delta = output(lse_shape(z), DType::kFp32),
                         .dq = d.q,
                         .dk = d.k,
                         .dv = d.v,
                         .scale = scale_of(z)};
    if (!runs(op)) continue;
    const Values stored_out = values(out), stored_lse = values(lse);
    const auto want = reference::attention_gradient(values(x.q), values(x.k), values(x.v), values(d_out),
                                                    {.out = stored_out, .lse = stored_lse}, reference_sizes(z));
    const std::int64_t length = z.tokens * (z.heads / z.kv_heads) + z.dim;
    expect_sum(op.dq, want.dq, want.dq_magnitude, length, "dq");
    expect_sum(op.dk, want.dk, want.dk_magnitude, length, "dk");
    expect_sum(op.dv, want.dv, want.dv_magnitude, length, "dv");
  }
}

// Scores in the hundreds: the largest is subtracted ahead of exp.
TEST_P(AttentionTest, LargeScoresStayFinite) {
  const SelfAttentionSizes z{.samples = 1, .tokens = 140, .heads = 1, .kv_heads = 1, .dim = 16};
  const Tensor q = input(out_shape(z), 10.0), k = input(out_shape(z), 10.0), v = input(out_shape(z));
  const Tensor out = output(out_shape(z)), lse = output(lse_shape(z), DType::kFp32);
  run(AttentionForward{.q = q, .k = k, .v = v, .out = out, .lse = lse, .scale = 1});
  reference::AttentionSizes sizes = reference_sizes(z);
  sizes.scale = 1;
  const auto want = reference::attention(values(q), values(k), values(v), sizes);
  expect_sum(out, want.out, want.out_magnitude, z.tokens + z.dim, "out");
  expect_sum(lse, want.lse, want.lse_magnitude, z.tokens + z.dim, "lse");
}

TEST_P(AttentionTest, NanIsNotLost) {
  const SelfAttentionSizes z{.samples = 1, .tokens = 80, .heads = 1, .kv_heads = 1, .dim = 8};
  Values given = normal(80 * 8);
  given[70 * 8 + 3] = std::nan("");
  for (const bool in_key : {false, true}) {
    const Tensor good = input(out_shape(z)), bad = input(out_shape(z), dtype(), given);
    const Tensor out = output(out_shape(z)), lse = output(lse_shape(z), DType::kFp32);
    run(AttentionForward{
        .q = in_key ? good : bad, .k = in_key ? bad : good, .v = good, .out = out, .lse = lse, .scale = 0.3f});
    const Values got = values(lse);
    EXPECT_TRUE(std::isnan(got[70]));
    for (std::size_t s = 0; s < 80; ++s) EXPECT_EQ(std::isnan(got[s]), in_key ? s >= 70 : s == 70) << s;
  }
}

TEST_P(AttentionTest, NoSamplesOrTokens) {
  for (const SelfAttentionSizes& z : {SelfAttentionSizes{0, 4, 2, 2, 8}, SelfAttentionSizes{2, 0, 2, 2, 8}}) {
    const Fused x = fused_input(z);
    run(AttentionForward{
        .q = x.q, .k = x.k, .v = x.v, .out = output(out_shape(z)), .lse = output(lse_shape(z), DType::kFp32)});
  }
}

// Prefill, then one token at a time, gives the bits of one pass over the full sequence. cuDNN has another kernel for
// the full sequence, so there only the values are close.
TEST_P(AttentionTest, CachedEqualsTheWholeSequence) {
  for (const std::int64_t window : {0, 2, 40, 90, 149}) expect_cached_equals_whole(window);
}

void AttentionTest::expect_cached_equals_whole(std::int64_t window) {
  SCOPED_TRACE(testing::Message() << "window " << window);
  const SelfAttentionSizes z{.samples = 2, .tokens = 150, .heads = 4, .kv_heads = 2, .dim = 24};
  const Fused x = fused_input(z);
  const Tensor out = output(out_shape(z)), lse = output(lse_shape(z), DType::kFp32);
  run(AttentionForward{.q = x.q, .k = x.k, .v = x.v, .out = out, .lse = lse, .scale = scale_of(z), .window = window});
  const Values whole = values(out);
  reference::AttentionSizes sizes = reference_sizes(z);
  sizes.window = static_cast<std::size_t>(window);
  const auto exact = reference::attention(values(x.q), values(x.k), values(x.v), sizes);

  const std::int64_t capacity = 160;
  const Shape cache_shape{z.samples, capacity, z.kv_heads, z.dim};
  Values k_filled(static_cast<std::size_t>(cache_shape.numel()), std::nan("")), v_filled = k_filled;
  std::int64_t position = 0;
  for (const std::int64_t count : {std::int64_t{130}, std::int64_t{1}, std::int64_t{1}, std::int64_t{9}}) {
    const auto* start = device_struct(static_cast<std::int32_t>(position));
    const Tensor k_cache = inout(cache_shape, dtype(), k_filled), v_cache = inout(cache_shape, dtype(), v_filled);
    run(KvCacheAppend{.k = x.k.slice(1, position, count),
                      .v = x.v.slice(1, position, count),
                      .k_cache = k_cache,
                      .v_cache = v_cache,
                      .start = start});
    k_filled = values(k_cache);
    v_filled = values(v_cache);
    EXPECT_EQ(values(k_cache.slice(1, position, count)), values(x.k.slice(1, position, count)));
    const Tensor full_k = input(cache_shape, dtype(), k_filled), full_v = input(cache_shape, dtype(), v_filled);
    const Tensor part = output({z.samples, count, z.heads, z.dim});
    run(CachedAttention{.q = x.q.slice(1, position, count),
                        .k_cache = full_k,
                        .v_cache = full_v,
                        .out = part,
                        .start = start,
                        .scale = scale_of(z),
                        .window = window});
    const Values got = values(part);
    const std::int64_t row = z.heads * z.dim;
    Values want, magnitude;
    for (std::int64_t b = 0; b < z.samples; ++b) {
      for (std::int64_t i = 0; i < count * row; ++i) {
        const auto at = static_cast<std::size_t>((b * z.tokens + position) * row + i);
        want.push_back(exact.out[at]);
        magnitude.push_back(exact.out_magnitude[at]);
        if (is_cudnn()) continue;
        ASSERT_EQ(got[static_cast<std::size_t>(b * count * row + i)], whole[at]) << "position " << position + i / row;
      }
    }
    const std::int64_t length = z.tokens + z.dim;
    expect_close(part, want,
                 {.length = length, .magnitude = sum_magnitude(want, magnitude, dtype(), length), .what = "out"});
    position += count;
  }
}

TEST_P(AttentionTest, DecodingHasTheBitsOfItsParts) {
  const SelfAttentionSizes z{.samples = 2, .tokens = 1, .heads = 4, .kv_heads = 2, .dim = 24};
  for (const auto& [rotary_dim, window] : {std::pair{0, 0}, {16, 0}, {24, 0}, {16, 2}, {24, 65}}) {
    for (const auto& [position, rows] : {std::pair{0, 1}, {70, 90}}) {
      SCOPED_TRACE(testing::Message() << rotary_dim << " of " << z.dim << " at " << position << " window " << window);
      const Shape cache_shape{z.samples, rows, z.kv_heads, z.dim};
      const Values keys = normal(cache_shape.numel()), some = normal(cache_shape.numel());
      const Fused x = fused_input(z);
      const auto* start = device_struct(std::int32_t{position});
      const RopeScaling scaling =
          rotary_dim == 24 ? RopeScaling{.kind = RopeScalingKind::kYarn, .factor = 4} : RopeScaling{};
      Tensor q = x.q, k = x.k;
      if (rotary_dim > 0) {
        q = output(x.q.shape), k = output(x.k.shape);
        run(Rope{.x = x.q, .y = q, .rotary_dim = rotary_dim, .scaling = scaling, .start = start});
        const Values turned = values(q);
        run(Rope{.x = x.k, .y = k, .rotary_dim = rotary_dim, .scaling = scaling, .start = start});
        k = input(k.shape, dtype(), values(k)), q = input(q.shape, dtype(), turned);
      }
      const Tensor k_cache = inout(cache_shape, dtype(), keys), v_cache = inout(cache_shape, dtype(), some);
      run(KvCacheAppend{.k = k, .v = x.v, .k_cache = k_cache, .v_cache = v_cache, .start = start});
      const Values keys_after = values(k_cache), values_after = values(v_cache);
      const Tensor out = output(out_shape(z));
      run(CachedAttention{.q = q,
                          .k_cache = input(cache_shape, dtype(), keys_after),
                          .v_cache = input(cache_shape, dtype(), values_after),
                          .out = out,
                          .start = start,
                          .scale = scale_of(z),
                          .window = window});
      const Values want = values(out);
      const Tensor k_filled = inout(cache_shape, dtype(), keys), v_filled = inout(cache_shape, dtype(), some);
      const Tensor decoded = output(out_shape(z));
      run(DecodeAttention{.q = x.q,
                          .k = x.k,
                          .v = x.v,
                          .k_cache = k_filled,
                          .v_cache = v_filled,
                          .out = decoded,
                          .start = start,
                          .scale = scale_of(z),
                          .rotary_dim = rotary_dim,
                          .scaling = scaling,
                          .window = window},
          position == 0 ? Idles{{k_filled, "no row is seen"}, {v_filled, "no row is seen"}} : Idles{});
      EXPECT_EQ(values(decoded), want);
      EXPECT_EQ(values(k_filled), keys_after);
      EXPECT_EQ(values(v_filled), values_after);
    }
  }
}

TEST_P(AttentionTest, CacheOverflowIsAnError) {
  const Tensor x = input({1, 3, 1, 8}), cache = inout({1, 4, 1, 8}, dtype(), normal(32));
  const Tensor other = inout({1, 4, 1, 8}, dtype(), normal(32));
  const auto* start = device_struct(std::int32_t{2});
  expect_kernel_error(KvCacheAppend{.k = x, .v = x, .k_cache = cache, .v_cache = other, .start = start},
                      ExitCode::kInternal, "op.start: expected a position of 0 to 1");
  expect_kernel_error(
      CachedAttention{.q = x, .k_cache = cache, .v_cache = other, .out = output({1, 3, 1, 8}), .start = start},
      ExitCode::kInternal, "got 2");
  const Tensor one = input({1, 1, 1, 8});
  expect_kernel_error(DecodeAttention{.q = one,
                                      .k = one,
                                      .v = one,
                                      .k_cache = cache,
                                      .v_cache = other,
                                      .out = output({1, 1, 1, 8}),
                                      .start = device_struct(std::int32_t{4})},
                      ExitCode::kInternal, "op.start: expected a position of 0 to 3");
}

TEST_P(AttentionTest, RefusesWhatDoesNotFit) {
  const Tensor q = input({1, 4, 6, 8}), k = input({1, 4, 3, 8}), v = input({1, 4, 3, 8});
  const Tensor out = output({1, 4, 6, 8}), lse = output({1, 6, 4}, DType::kFp32);
  const Tensor four = input({1, 4, 4, 8});
  expect_refused(AttentionForward{.q = q, .k = four, .v = four, .out = out, .lse = lse},
                 "op.k: expected a number of heads (dim 2) that divides the number of query heads");
  expect_refused(
      CachedAttention{.q = q, .k_cache = k, .v_cache = v, .out = out, .start = device_struct(0), .window = -1},
      "op.window: expected at least 0, got -1");
  const Tensor wide = input({1, 1, 1, 300});
  expect_refused(AttentionForward{.q = wide, .k = wide, .v = wide, .out = wide, .lse = lse},
                 "op.q: head dim: expected 1 to 256, got 300");
  AttentionBackward backward{.q = q,
                             .k = k,
                             .v = v,
                             .out = out,
                             .d_out = out,
                             .lse = lse,
                             .delta = output({1, 6, 4}, DType::kFp32),
                             .dq = output({1, 4, 6, 8}),
                             .dk = output({1, 4, 3, 8}),
                             .dv = output({1, 4, 3, 8})};
  backward.workspace = output({64}, DType::kUint8);
  if (workspace_bytes(backward, device()) > 64) {
    expect_kernel_error(backward, ExitCode::kInternal, "op.workspace: expected at least");
  }
}

}  // namespace
}  // namespace megalith::test
