#include "core/ops/attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "core/tensor/check.h"

namespace megalith {

namespace {

struct Named {
  const Tensor& tensor;
  const char* name;
};

// [B, S, heads, D], stride 1 in D.
void check_heads(const Named& x, const Shape& expected, DType dtype) {
  check_shape(x.tensor, expected, x.name);
  check_dtype(x.tensor, {dtype}, x.name);
  check_rows(x.tensor, x.name);
}

// q [B, S, N, D] against k [B, rows, K, D]: dtype, head dim and grouping.
void check_query(const Tensor& q, const Named& k) {
  check_rank(q, 4, "op.q");
  check_dtype(q, {DType::kFp32, DType::kBf16}, "op.q");
  check_rows(q, "op.q");
  if (q.size(3) < 1 || q.size(3) > kMaxHeadDim) {
    fail({.subject = "op.q", .expected = fmt::format("a head dim of 1 to {}", kMaxHeadDim), .got = to_string(q.shape)});
  }
  check_rank(k.tensor, 4, k.name);
  const std::int64_t kv_heads = k.tensor.size(2);
  if (kv_heads < 1 || q.size(2) % kv_heads != 0) {
    fail({.subject = k.name,
          .expected = fmt::format("a number of heads (dim 2) that divides the {} query heads", q.size(2)),
          .got = to_string(k.tensor.shape)});
  }
}

void check_statistics(const Named& x, const Tensor& q) {
  check_shape(x.tensor, {q.size(0), q.size(2), q.size(1)}, x.name);
  check_dtype(x.tensor, {DType::kFp32}, x.name);
  check_contiguous(x.tensor, x.name);
}

void check_outputs_apart(std::initializer_list<Named> outputs, std::initializer_list<Named> inputs) {
  for (const Named& out : outputs) {
    for (const Named& in : inputs) check_no_overlap(out.tensor, out.name, in.tensor, in.name);
  }
}

void check_start(const std::int32_t* start, std::int64_t rows, std::int64_t cache_rows) {
  if (start == nullptr) fail({.subject = "op.start", .expected = "the device address of a position", .got = "none"});
  if (rows > cache_rows || cache_rows > std::numeric_limits<std::int32_t>::max()) {
    fail({.subject = "op.k_cache",
          .expected = fmt::format("at least {} rows (dim 1) and fewer than 2^31", rows),
          .got = fmt::format("{}", cache_rows)});
  }
}

// What the deterministic backward on CUDA may hold of dS, unless one sample alone has more.
constexpr std::int64_t kDirectScoresBytes = std::int64_t{2} << 30;
constexpr std::int64_t kScoreTile = 128;                          // cuDNN pads keys to it, queries to half of it
constexpr std::int64_t kPlanSlackBytes = std::int64_t{64} << 10;  // cuDNN asks for 256 bytes beside the tensors

// bf16 dS of one sample.
std::int64_t direct_scores_bytes(const Tensor& q, const Tensor& k) {
  const auto padded = [](std::int64_t rows) { return (rows + kScoreTile - 1) / kScoreTile * kScoreTile; };
  return q.size(2) * padded(q.size(1)) * padded(k.size(1)) * static_cast<std::int64_t>(size_of(DType::kBf16));
}

double pair_flops(const Tensor& q, const Tensor& k, bool causal) {  // of one product, over the lower triangle or all
  return static_cast<double>(q.numel()) * static_cast<double>(k.size(1)) * (causal ? 1 : 2);
}

// [B, U, K, D]
Shape key_shape(const Tensor& q, const Tensor& k, bool causal) {
  if (!causal && k.size(1) < 1 && q.size(1) > 0)
    fail({.subject = "op.k", .expected = "at least 1 row (dim 1) for queries that see all", .got = to_string(k.shape)});
  return {q.size(0), causal ? q.size(1) : k.size(1), k.size(2), q.size(3)};
}

}  // namespace

void check(const AttentionForward& op) {
  check_query(op.q, {op.k, "op.k"});
  const Shape kv = key_shape(op.q, op.k, op.causal);
  check_heads({op.k, "op.k"}, kv, op.q.dtype);
  check_heads({op.v, "op.v"}, kv, op.q.dtype);
  check_heads({op.out, "op.out"}, op.q.shape, op.q.dtype);
  check_statistics({op.lse, "op.lse"}, op.q);
  check_outputs_apart({{op.out, "op.out"}, {op.lse, "op.lse"}}, {{op.q, "op.q"}, {op.k, "op.k"}, {op.v, "op.v"}});
  check_no_overlap(op.out, "op.out", op.lse, "op.lse");
}

void access(const AttentionForward& op, Access& a) {
  a.reads(op.q);
  a.reads(op.k);
  a.reads(op.v);
  a.writes(op.out);
  a.writes(op.lse);
  a.add_flops(2 * pair_flops(op.q, op.k, op.causal));
}

void check(const AttentionBackward& op) {
  check_query(op.q, {op.k, "op.k"});
  const Shape kv = key_shape(op.q, op.k, op.causal);
  check_heads({op.k, "op.k"}, kv, op.q.dtype);
  check_heads({op.v, "op.v"}, kv, op.q.dtype);
  check_heads({op.out, "op.out"}, op.q.shape, op.q.dtype);
  check_heads({op.d_out, "op.d_out"}, op.q.shape, op.q.dtype);
  check_heads({op.dq, "op.dq"}, op.q.shape, op.q.dtype);
  check_heads({op.dk, "op.dk"}, kv, op.q.dtype);
  check_heads({op.dv, "op.dv"}, kv, op.q.dtype);
  check_statistics({op.lse, "op.lse"}, op.q);
  check_statistics({op.delta, "op.delta"}, op.q);
  check_rank(op.workspace, 1, "op.workspace");
  check_dtype(op.workspace, {DType::kUint8}, "op.workspace");
  check_contiguous(op.workspace, "op.workspace");
  // dq, dk and dv may interleave in one fused buffer, so they are not compared with each other.
  check_outputs_apart(
      {{op.dq, "op.dq"}, {op.dk, "op.dk"}, {op.dv, "op.dv"}, {op.delta, "op.delta"}, {op.workspace, "op.workspace"}},
      {{op.q, "op.q"}, {op.k, "op.k"}, {op.v, "op.v"}, {op.out, "op.out"}, {op.d_out, "op.d_out"}, {op.lse, "op.lse"}});
  check_outputs_apart({{op.delta, "op.delta"}, {op.workspace, "op.workspace"}},
                      {{op.dq, "op.dq"}, {op.dk, "op.dk"}, {op.dv, "op.dv"}});
}

void access(const AttentionBackward& op, Access& a) {
  for (const Tensor* input : {&op.q, &op.k, &op.v, &op.out, &op.d_out, &op.lse}) a.reads(*input);
  for (const Tensor* output : {&op.delta, &op.dq, &op.dk, &op.dv, &op.workspace}) a.writes(*output);
  a.add_flops(5 * pair_flops(op.q, op.k, op.causal));
}

std::size_t workspace_bytes(const AttentionBackward& op) {
  const std::int64_t padded = (op.q.size(3) + 15) / 16 * 16;
  return static_cast<std::size_t>((3 * op.q.size(1) + 2 * op.k.size(1)) * padded) * sizeof(float);
}

std::int64_t samples_at_a_time(const AttentionBackward& op) {
  const std::int64_t samples = op.q.size(0);
  const std::int64_t of_one = std::max<std::int64_t>(direct_scores_bytes(op.q, op.k), 1);
  std::int64_t count = std::clamp<std::int64_t>(kDirectScoresBytes / of_one, 1, std::max<std::int64_t>(samples, 1));
  while (samples % count != 0) --count;
  return count;
}

std::size_t workspace_bytes(const AttentionBackward& op, DeviceType device) {
  if (device != DeviceType::kCuda) return workspace_bytes(op);
  if (op.q.dtype == DType::kFp32 || op.q.numel() == 0) return 0;
  const std::int64_t samples = op.deterministic ? samples_at_a_time(op) : op.q.size(0);
  const std::int64_t elements = samples * op.k.size(1) * op.q.size(2) * op.q.size(3);
  std::int64_t bytes = kPlanSlackBytes;
  bytes += op.deterministic ? samples * direct_scores_bytes(op.q, op.k) : dq_sum_bytes(op);
  if (op.k.size(2) != op.q.size(2)) bytes += 2 * elements * static_cast<std::int64_t>(size_of(DType::kBf16));
  return static_cast<std::size_t>(bytes);
}

std::int64_t dq_sum_bytes(const AttentionBackward& op) {
  constexpr std::int64_t kAlignment = 256;
  const std::int64_t bytes = op.q.numel() * static_cast<std::int64_t>(sizeof(float));
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

void check_workspace(const AttentionBackward& op, DeviceType device) {
  const auto needed = static_cast<std::int64_t>(workspace_bytes(op, device));
  if (op.workspace.size(0) >= needed) return;
  fail({.subject = "op.workspace",
        .expected = fmt::format("at least {} bytes on {}", needed, name_of(device)),
        .got = fmt::format("{}", op.workspace.size(0))});
}

void refuse_start(std::int64_t start, std::int64_t rows, std::int64_t cache_rows) {
  fail({.subject = "op.start",
        .expected = fmt::format("a position of 0 to {}, so that {} rows fit the cache", cache_rows - rows, rows),
        .got = fmt::format("{}", start)});
}

void check(const CachedAttention& op) {
  check_query(op.q, {op.k_cache, "op.k_cache"});
  const Shape kv{op.q.size(0), op.k_cache.size(1), op.k_cache.size(2), op.q.size(3)};
  check_heads({op.k_cache, "op.k_cache"}, kv, op.q.dtype);
  check_heads({op.v_cache, "op.v_cache"}, kv, op.q.dtype);
  check_heads({op.out, "op.out"}, op.q.shape, op.q.dtype);
  check_start(op.start, op.q.size(1), op.k_cache.size(1));
  check_outputs_apart({{op.out, "op.out"}}, {{op.q, "op.q"}, {op.k_cache, "op.k_cache"}, {op.v_cache, "op.v_cache"}});
}

void access(const CachedAttention& op, Access& a) {
  a.reads(op.q);
  a.reads(op.k_cache);
  a.reads(op.v_cache);
  a.add(op.start, sizeof(std::int32_t), false);
  a.writes(op.out);
  a.add_flops(4.0 * static_cast<double>(op.q.numel()) * static_cast<double>(op.k_cache.size(1)));
}

void check(const KvCacheAppend& op) {
  check_rank(op.k, 4, "op.k");
  check_dtype(op.k, {DType::kFp32, DType::kBf16}, "op.k");
  check_rows(op.k, "op.k");
  check_heads({op.v, "op.v"}, op.k.shape, op.k.dtype);
  check_rank(op.k_cache, 4, "op.k_cache");
  const Shape cache{op.k.size(0), op.k_cache.size(1), op.k.size(2), op.k.size(3)};
  check_heads({op.k_cache, "op.k_cache"}, cache, op.k.dtype);
  check_heads({op.v_cache, "op.v_cache"}, cache, op.k.dtype);
  check_start(op.start, op.k.size(1), op.k_cache.size(1));
  check_outputs_apart({{op.k_cache, "op.k_cache"}, {op.v_cache, "op.v_cache"}}, {{op.k, "op.k"}, {op.v, "op.v"}});
}

void access(const KvCacheAppend& op, Access& a) {
  a.reads(op.k);
  a.reads(op.v);
  a.add(op.start, sizeof(std::int32_t), false);
  a.writes(op.k_cache);
  a.writes(op.v_cache);
}

}  // namespace megalith
