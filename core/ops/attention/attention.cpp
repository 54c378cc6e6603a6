#include "core/ops/attention/attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>

#include "core/ops/attention/packed_workspace.h"
#include "core/ops/attention/rope.h"
#include "core/ops/dispatch.h"
#include "core/ops/fields.h"
#include "core/ops/loops.h"

namespace megalith {

namespace {

// Declares the queries and their keys; returns the shape of keys and values: [B, rows, K, D].
Shape query_and_keys(const Tensor& q, const Tensor& k, std::string_view k_name, std::int64_t rows, Fields& f) {
  f.in(q, "op.q").floating().rank(4).strided_rows();
  f.range(static_cast<double>(q.size(3)), 1, static_cast<double>(kMaxHeadDim), "op.q: head dim");
  const Shape keys{q.size(0), rows, k.size(2), q.size(3)};
  f.in(k, k_name).dtype(q.dtype).shape(keys).strided_rows();
  f.expect(keys[2] >= 1 && q.size(2) % keys[2] == 0, k_name,
           "a number of heads (dim 2) that divides the number of query heads", k.shape);
  return keys;
}

void statistic(Field& field, const Tensor& q) { field.dtype(DType::kFp32).shape({q.size(0), q.size(2), q.size(1)}); }

void start_and_rows(const std::int32_t* const& start, std::int64_t rows, std::int64_t cache_rows, Fields& f) {
  f.in(start, "op.start");
  if (rows <= cache_rows && cache_rows <= std::numeric_limits<std::int32_t>::max()) return;
  f.close();
  fail({.subject = "op.k_cache",
        .expected = fmt::format("at least {} rows (dim 1) and fewer than 2^31", rows),
        .got = fmt::format("{}", cache_rows)});
}

// Declares the window of an op with a cache; returns the op's FLOPs.
template <class Op>
double cached_flops(const Op& op, Fields& f) {
  f.expect(op.window >= 0, "op.window", "at least 0", op.window);
  const std::int64_t rows = op.k_cache.size(1), seen = op.window > 0 ? std::min(op.window, rows) : rows;
  return 4.0 * static_cast<double>(op.q.numel()) * static_cast<double>(seen);
}

// Most bytes of dS in the deterministic backward on CUDA, unless one sample has more.
constexpr std::int64_t kDirectScoresBytes = std::int64_t{2} << 30;
constexpr std::int64_t kScoreTile = 128;                               // cuDNN pads keys to this, queries to half of it
constexpr std::int64_t kPlanSlackBytes = std::int64_t{64} << 10;       // cuDNN adds 256 bytes to the tensors
constexpr std::size_t kForwardWorkspaceBytes = std::size_t{32} << 20;  // more than any plan of cuDNN has required

// Returns the bytes of bf16 dS of one sample.
std::int64_t direct_scores_bytes(const Tensor& q, const Tensor& k) {
  const auto padded = [](std::int64_t rows) { return (rows + kScoreTile - 1) / kScoreTile * kScoreTile; };
  return q.size(2) * padded(q.size(1)) * padded(k.size(1)) * static_cast<std::int64_t>(size_of(DType::kBf16));
}

// Returns the FLOPs of one product, over the pairs of query and key that the masks leave.
template <class Op>
double pair_flops(const Op& op) {
  const auto rows = static_cast<double>(op.q.size(0) * op.q.size(1)), keys = static_cast<double>(op.k.size(1));
  double pairs = (op.pairs > 0 ? op.pairs : rows * keys) * (op.causal ? 0.5 : 1);
  if (op.window > 0) pairs = std::min(pairs, rows * static_cast<double>(op.window));
  return 2 * pairs * static_cast<double>(op.q.size(2) * op.q.size(3));
}

// Declares the inputs of forward and backward.
template <class Op>
void inputs(const Op& op, Fields& f) {
  const bool is_packed = op.query_documents || op.key_documents;
  query_and_keys(op.q, op.k, "op.k", (op.causal ? op.q : op.k).size(1), f);
  f.expect(op.k.size(1) >= 1 || op.q.size(1) == 0, "op.k", "at least 1 row (dim 1) for queries that see all",
           op.k.shape);
  f.in(op.v, "op.v").like(op.k).strided_rows();
  f.expect(op.window >= 0 && (op.window == 0 || op.causal), "op.window", "0, or a number of keys with a causal mask",
           op.window);
  const auto table = [&](const Tensor& x, std::string_view name) -> Field& {
    return f.in(x, name).needed_if(is_packed).dtype(DType::kInt32);
  };
  table(op.query_documents.begin, "op.query_documents.begin").rank(1);
  const Shape& capacity = op.query_documents.begin.shape;
  table(op.query_documents.length, "op.query_documents.length").shape(capacity);
  table(op.key_documents.begin, "op.key_documents.begin").shape(capacity);
  table(op.key_documents.length, "op.key_documents.length").shape(capacity);
  if (!is_packed) return;
  f.expect(op.q.size(0) == 1, "op.q", "1 sample (dim 0) of packed documents", op.q.shape);
  f.expect(capacity[0] >= 1, "op.query_documents.begin", "at least 1 entry", capacity);
  f.expect(op.max_length >= 1, "op.max_length", "at least 1", op.max_length);
}

// Returns the op on the rows of one document.
template <class Op>
Op of_document(Op op, const DocumentSpan& d, std::initializer_list<Tensor Op::*> queries,
               std::initializer_list<Tensor Op::*> keys, std::initializer_list<Tensor Op::*> statistics) {
  for (Tensor Op::*x : queries) op.*x = (op.*x).slice(1, d.first_query, d.queries);
  for (Tensor Op::*x : keys) op.*x = (op.*x).slice(1, d.first_key, d.keys);
  for (Tensor Op::*x : statistics) op.*x = (op.*x).slice(2, d.first_query, d.queries);
  return op;
}

}  // namespace

void fields(const AttentionForward& op, Fields& f) {
  inputs(op, f);
  f.out(op.out, "op.out").like(op.q).strided_rows();
  statistic(f.out(op.lse, "op.lse"), op.q);
  f.workspace(op.workspace);
  f.cost({.work = Work::kAttentionForward, .flops = 2 * pair_flops(op)});
}

std::size_t workspace_bytes(const AttentionForward& op, DeviceType device) {
  if (device != DeviceType::kCuda || op.q.dtype != DType::kBf16 || op.q.numel() == 0) return 0;
  const std::int64_t tables = op.query_documents ? PackedTables::of(op.query_documents).bytes : 0;
  return kForwardWorkspaceBytes + static_cast<std::size_t>(tables);
}

void fields(const AttentionBackward& op, Fields& f) {
  inputs(op, f);
  f.in(op.out, "op.out").like(op.q).strided_rows();
  f.in(op.d_out, "op.d_out").like(op.q).strided_rows();
  statistic(f.in(op.lse, "op.lse"), op.q);
  statistic(f.out(op.delta, "op.delta"), op.q);
  f.out(op.dq, "op.dq").like(op.q).strided_rows();
  f.out(op.dk, "op.dk").like(op.k).strided_rows().may_interleave(op.dq);
  f.out(op.dv, "op.dv").like(op.k).strided_rows().may_interleave(op.dq).may_interleave(op.dk);
  f.workspace(op.workspace);
  f.cost({.work = Work::kAttentionBackward, .flops = 5 * pair_flops(op)});
}

std::int64_t samples_at_a_time(const AttentionBackward& op) {
  const std::int64_t samples = op.q.size(0);
  const std::int64_t of_one = std::max<std::int64_t>(direct_scores_bytes(op.q, op.k), 1);
  std::int64_t count = std::clamp<std::int64_t>(kDirectScoresBytes / of_one, 1, std::max<std::int64_t>(samples, 1));
  while (samples % count != 0) --count;
  return count;
}

std::size_t workspace_bytes(const AttentionBackward& op, DeviceType device) {
  if (device != DeviceType::kCuda) {
    const std::int64_t padded = (op.q.size(3) + 15) / 16 * 16;
    const std::int64_t longest = op.query_documents ? op.max_length : std::max(op.q.size(1), op.k.size(1));
    const std::int64_t rows = std::min(op.q.size(1), longest), keys = std::min(op.k.size(1), longest);
    return static_cast<std::size_t>((3 * rows + 2 * keys) * padded) * sizeof(float);
  }
  if (op.q.dtype == DType::kFp32 || op.q.numel() == 0) return 0;
  if (op.query_documents) return static_cast<std::size_t>(PackedBackwardWorkspace(op).bytes);
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

AttentionForward of_document(const AttentionForward& op, const DocumentSpan& document) {
  using Op = AttentionForward;
  return of_document(op, document, {&Op::q, &Op::out}, {&Op::k, &Op::v}, {&Op::lse});
}

AttentionBackward of_document(const AttentionBackward& op, const DocumentSpan& document) {
  using Op = AttentionBackward;
  return of_document(op, document, {&Op::q, &Op::out, &Op::d_out, &Op::dq}, {&Op::k, &Op::v, &Op::dk, &Op::dv},
                     {&Op::lse, &Op::delta});
}

void refuse_document(std::int64_t document, std::int64_t begin, std::int64_t length, std::int64_t rows) {
  fail({.subject = fmt::format("op.query_documents, op.key_documents: document {}", document),
        .expected = fmt::format("at most op.max_length rows, inside the {} of its tensor, and equally many queries and "
                                "keys if causal",
                                rows),
        .got = fmt::format("{} rows from row {}", length, begin)});
}

void refuse_start(std::int64_t start, std::int64_t rows, std::int64_t cache_rows) {
  fail({.subject = "op.start",
        .expected = fmt::format("a position of 0 to {}, so that {} rows fit the cache", cache_rows - rows, rows),
        .got = fmt::format("{}", start)});
}

void fields(const CachedAttention& op, Fields& f) {
  query_and_keys(op.q, op.k_cache, "op.k_cache", op.k_cache.size(1), f);
  f.in(op.v_cache, "op.v_cache").like(op.k_cache).strided_rows();
  f.out(op.out, "op.out").like(op.q).strided_rows();
  start_and_rows(op.start, op.q.size(1), op.k_cache.size(1), f);
  f.cost({.flops = cached_flops(op, f)});
}

void fields(const DecodeAttention& op, Fields& f) {
  query_and_keys(op.q, op.k, "op.k", 1, f);
  f.expect(op.q.size(1) == 1, "op.q", "1 row (dim 1)", op.q.shape);
  f.in(op.v, "op.v").like(op.k).strided_rows();
  const Shape cache{op.k.size(0), op.k_cache.size(1), op.k.size(2), op.k.size(3)};
  f.inout(op.k_cache, "op.k_cache").dtype(op.k.dtype).shape(cache).strided_rows();
  f.inout(op.v_cache, "op.v_cache").dtype(op.k.dtype).shape(cache).strided_rows();
  f.out(op.out, "op.out").like(op.q).strided_rows();
  start_and_rows(op.start, 1, op.k_cache.size(1), f);
  f.workspace(op.workspace);
  if (op.rotary_dim != 0) check_rotation(op.rotary_dim, op.theta, op.scaling, op.q.size(3), f);
  f.cost({.flops = cached_flops(op, f)});
}

std::size_t workspace_bytes(const DecodeAttention& op, DeviceType device) {
  return device == DeviceType::kCuda || op.rotary_dim == 0 ? 0 : op.q.bytes();
}

void fields(const KvCacheAppend& op, Fields& f) {
  f.in(op.k, "op.k").floating().rank(4).strided_rows();
  f.in(op.v, "op.v").like(op.k).strided_rows();
  const Shape cache{op.k.size(0), op.k_cache.size(1), op.k.size(2), op.k.size(3)};
  f.out(op.k_cache, "op.k_cache").dtype(op.k.dtype).shape(cache).strided_rows();
  f.out(op.v_cache, "op.v_cache").dtype(op.k.dtype).shape(cache).strided_rows();
  start_and_rows(op.start, op.k.size(1), op.k_cache.size(1), f);
}

void fields(const AttentionMerge& op, Fields& f) {
  f.inout(op.out, "op.out").dtype(DType::kFp32).rank(4).strided_rows();
  const Shape statistics{op.out.size(0), op.out.size(2), op.out.size(1)};
  f.inout(op.lse, "op.lse").dtype(DType::kFp32).shape(statistics).strided_rows();
  f.in(op.part, "op.part").floating().shape(op.out.shape).strided_rows();
  f.in(op.part_lse, "op.part_lse").dtype(DType::kFp32).shape(statistics).strided_rows();
}

void compute(const AttentionMerge& op) {
  const Rows<float> outs(op.out);
  visit_float(op.part.dtype, [&]<class T>(T) {
    const Rows<const T> parts(op.part);
    for_each_row(op.out, [&](std::int64_t, const RowIndex& at) {
      const auto statistic = [b = at[0], s = at[1], n = at[2]](const Tensor& x) -> float& {
        return x.as<float>()[b * x.stride(0) + n * x.stride(1) + s * x.stride(2)];
      };
      float& lse = statistic(op.lse);
      const float part_lse = statistic(op.part_lse), largest = std::max(lse, part_lse);
      const float weight = std::exp(lse - largest), part_weight = std::exp(part_lse - largest);
      const float total = weight + part_weight, kept = weight / total, added = part_weight / total;
      lse = largest + std::log(total);
      for_each_element(op.out.size(3), [=, out = outs[at], part = parts[at]](auto d) {
        out.set(d, fma(part[d], added, out[d] * kept));
      });
    });
  });
}

}  // namespace megalith
