#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>

#include "core/ops/attention/attention_graph_cuda.cuh"

namespace megalith {

DnnDescriptor::DnnDescriptor(cudnnBackendDescriptorType_t type) {
  cudnnBackendDescriptor_t made = nullptr;
  MEGALITH_CUDNN_CHECK(cudnnBackendCreateDescriptor(type, &made));
  owned_ = Handle<cudnnBackendDescriptor_t, &destroy>(made);
}

DnnDescriptor& DnnDescriptor::finalize() {
  MEGALITH_CUDNN_CHECK(cudnnBackendFinalize(get()));
  return *this;
}

std::int64_t DnnDescriptor::get_int64(cudnnBackendAttributeName_t name) const {
  std::int64_t value = 0;
  std::int64_t count = 0;
  MEGALITH_CUDNN_CHECK(cudnnBackendGetAttribute(get(), name, CUDNN_TYPE_INT64, 1, &count, &value));
  return value;
}

std::vector<DnnDescriptor> DnnDescriptor::get_list(cudnnBackendAttributeName_t name, cudnnBackendDescriptorType_t type,
                                                   std::int64_t most) const {
  std::vector<DnnDescriptor> list;
  std::vector<cudnnBackendDescriptor_t> raw;
  for (std::int64_t i = 0; i < most; ++i) raw.push_back(list.emplace_back(type).get());
  std::int64_t count = 0;
  MEGALITH_CUDNN_CHECK(cudnnBackendGetAttribute(get(), name, CUDNN_TYPE_BACKEND_DESCRIPTOR, most, &count, raw.data()));
  list.erase(list.begin() + std::min(count, most), list.end());
  return list;
}

std::string to_string(const AttentionProblem& p) {
  static constexpr std::array kPasses = {"forward", "backward", "deterministic backward"};
  std::string keys = p.causal ? std::string() : fmt::format(" of all {} keys", p.keys);
  if (p.window > 0) keys += fmt::format(" window {}", p.window);
  if (p.is_packed()) keys += fmt::format(" packed in {} rows and {} keys", p.rows, p.key_rows);
  return fmt::format("attention {} B{} S{}{} N{} K{} D{}", kPasses[static_cast<std::size_t>(p.pass)], p.samples,
                     p.tokens, keys, p.heads, p.kv_heads, p.dim);
}

namespace {

using Value = cudnnBackendDescriptor_t;  // a tensor of the graph
using Dims = std::array<std::int64_t, 4>;

// dims are [B, heads, rows, columns]. Without a uid the tensor is virtual: it never leaves the kernel.
struct TensorSpec {
  Dims dims;
  Dims strides;
  cudnnDataType_t dtype;
  std::optional<AttentionUid> uid = std::nullopt;
  std::optional<AttentionUid> offsets = std::nullopt;  // of a ragged tensor

  TensorSpec with(cudnnDataType_t other) const { return {dims, strides, other, uid, offsets}; }
  TensorSpec with(AttentionUid other) const { return {dims, strides, dtype, other, offsets}; }
  TensorSpec transposed() const {
    TensorSpec result = *this;
    std::swap(result.dims[2], result.dims[3]);
    std::swap(result.strides[2], result.strides[3]);
    return result;
  }
};

TensorSpec packed(const Dims& dims, cudnnDataType_t dtype) {
  return {dims, {dims[1] * dims[2] * dims[3], dims[2] * dims[3], dims[3], 1}, dtype};
}

}  // namespace

// Adds operations; each returns its result tensor.
class AttentionGraphBuilder {
 public:
  AttentionGraphBuilder(const AttentionProblem& problem, AttentionGraph& graph)
      : problem_(problem),
        graph_(graph),
        score_(packed({problem.samples, problem.heads, problem.tokens, problem.keys}, CUDNN_DATA_FLOAT)),
        row_(packed({problem.samples, problem.heads, problem.tokens, 1}, CUDNN_DATA_FLOAT)),
        full_heads_(packed({problem.samples, problem.heads, problem.tokens, problem.dim}, CUDNN_DATA_FLOAT)),
        full_keys_(packed({problem.samples, problem.heads, problem.keys, problem.dim}, CUDNN_DATA_BFLOAT16)) {
    if (!problem.is_packed()) return;
    query_lengths_ = table(AttentionUid::kQueryLengths, problem.samples, CUDNN_DATA_INT32);
    key_lengths_ = table(AttentionUid::kKeyLengths, problem.samples, CUDNN_DATA_INT32);
  }

  void forward();
  void backward();
  void finish() {
    add(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)
        .set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, std::span<const Value>(operations_))
        .finalize();
  }

 private:
  struct Input {
    cudnnBackendAttributeName_t name;
    Value value;
  };

  // Returns a reference that is valid until the next call.
  DnnDescriptor& add(cudnnBackendDescriptorType_t type) { return graph_.descriptors.emplace_back(type); }
  Value operation(cudnnBackendDescriptorType_t type, std::span<const Input> inputs, cudnnBackendAttributeName_t output,
                  const TensorSpec& result);

  TensorSpec like(std::int64_t heads, std::int64_t tokens, const HeadStrides& s, AttentionUid uid) const {
    TensorSpec spec{
        {problem_.samples, heads, tokens, problem_.dim}, {s.sample, s.head, s.token, 1}, CUDNN_DATA_BFLOAT16, uid};
    if (problem_.is_packed()) {
      spec.strides[0] = tokens * s.token;
      spec.offsets = offsets_of(uid);
    }
    return spec;
  }
  TensorSpec query_like(const HeadStrides& s, AttentionUid uid) const {
    return like(problem_.heads, problem_.tokens, s, uid);
  }
  TensorSpec key_like(const HeadStrides& s, AttentionUid uid) const {
    return like(problem_.kv_heads, problem_.keys, s, uid);
  }
  TensorSpec statistic(AttentionUid uid) const {
    TensorSpec spec = row_.with(uid);
    if (problem_.is_packed()) {
      spec.strides = {problem_.tokens, problem_.rows, 1, 1};
      spec.offsets = offsets_of(uid);
    }
    return spec;
  }
  struct Extents {  // a product's used rows, columns and depth of each sample; null: all
    Value rows = nullptr, columns = nullptr, depth = nullptr;
  };
  Extents of_scores() const { return {.rows = query_lengths_, .columns = key_lengths_}; }
  Extents of_queries() const { return {.rows = query_lengths_, .depth = key_lengths_}; }
  Extents of_keys() const { return {.rows = key_lengths_, .depth = query_lengths_}; }

  Value tensor(const TensorSpec& spec);
  Value table(AttentionUid uid, std::int64_t entries, cudnnDataType_t dtype) {
    Value& made = tables_[uid];
    if (made == nullptr) made = tensor({{entries, 1, 1, 1}, {1, 1, 1, 1}, dtype, uid});
    return made;
  }
  Value number(AttentionUid uid) { return tensor({{1, 1, 1, 1}, {1, 1, 1, 1}, CUDNN_DATA_FLOAT, uid}); }
  Value matmul(Value a, Value b, const TensorSpec& result, const Extents& extents);
  Value matmul_over_group(Value a, Value b, const TensorSpec& result, AttentionUid of_heads);
  Value pointwise(cudnnPointwiseMode_t mode, std::initializer_list<Value> inputs, const TensorSpec& result,
                  cudnnDataType_t precision = CUDNN_DATA_FLOAT, int index_dim = -1);
  Value reduce(cudnnReduceTensorOp_t operation, Value x, const TensorSpec& result);
  Value transpose(Value x, const TensorSpec& result);
  Value selected(Value scores, Value visible);
  Value padded(Value scores);
  Value masked(Value scores);

  const AttentionProblem& problem_;
  AttentionGraph& graph_;
  TensorSpec score_, row_, full_heads_, full_keys_;
  std::map<AttentionUid, Value> tables_;
  Value query_lengths_ = nullptr, key_lengths_ = nullptr;  // null unless packed
  std::vector<Value> operations_;
  std::int64_t next_virtual_uid_ = static_cast<std::int64_t>(AttentionUid::kCount);
};

Value AttentionGraphBuilder::tensor(const TensorSpec& spec) {
  const std::int64_t uid = spec.uid ? static_cast<std::int64_t>(*spec.uid) : next_virtual_uid_++;
  std::vector<std::int64_t>& uids = graph_.uids;
  if (spec.uid && std::find(uids.begin(), uids.end(), uid) == uids.end()) uids.push_back(uid);
  const Value offsets = spec.offsets ? table(*spec.offsets, problem_.samples + 1, CUDNN_DATA_INT64) : nullptr;
  DnnDescriptor& made = add(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  if (offsets != nullptr) made.set(CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC, offsets);
  return made.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, uid)
      .set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, spec.dtype)
      .set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, std::int64_t{16})
      .set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, std::span<const std::int64_t>(spec.dims))
      .set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, std::span<const std::int64_t>(spec.strides))
      .set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, !spec.uid.has_value())
      .set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, spec.uid && *spec.uid >= AttentionUid::kScale)
      .finalize()
      .get();
}

// Adds an operation and its result tensor.
Value AttentionGraphBuilder::operation(cudnnBackendDescriptorType_t type, std::span<const Input> inputs,
                                       cudnnBackendAttributeName_t output, const TensorSpec& result) {
  const Value y = tensor(result);
  DnnDescriptor& operation = add(type).set(output, y);
  for (const Input& input : inputs) operation.set(input.name, input.value);
  operations_.push_back(operation.finalize().get());
  return y;
}

Value AttentionGraphBuilder::matmul(Value a, Value b, const TensorSpec& result, const Extents& extents) {
  const Value math = add(CUDNN_BACKEND_MATMUL_DESCRIPTOR)
                         .set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT)
                         .finalize()
                         .get();
  std::vector<Input> inputs = {{CUDNN_ATTR_OPERATION_MATMUL_DESC, math},
                               {CUDNN_ATTR_OPERATION_MATMUL_ADESC, a},
                               {CUDNN_ATTR_OPERATION_MATMUL_BDESC, b},
                               {CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, extents.rows},
                               {CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, extents.columns},
                               {CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, extents.depth}};
  std::erase_if(inputs, [](const Input& input) { return input.value == nullptr; });
  return operation(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, inputs, CUDNN_ATTR_OPERATION_MATMUL_CDESC, result);
}

// Computes dk or dv: with fewer key heads than query heads, the products of a group's query heads are summed.
Value AttentionGraphBuilder::matmul_over_group(Value a, Value b, const TensorSpec& result, AttentionUid of_heads) {
  const std::int64_t group = problem_.heads / problem_.kv_heads;
  if (group == 1) return matmul(a, b, result, of_keys());
  TensorSpec heads = full_keys_;
  if (problem_.is_packed()) {
    heads.strides = {group * result.strides[0], result.strides[1], group * result.strides[2], 1};
    heads.uid = of_heads;
    heads.offsets = result.offsets;
  }
  return reduce(CUDNN_REDUCE_TENSOR_ADD, matmul(a, b, heads, of_keys()), result);
}

Value AttentionGraphBuilder::pointwise(cudnnPointwiseMode_t mode, std::initializer_list<Value> inputs,
                                       const TensorSpec& result, cudnnDataType_t precision, int index_dim) {
  static constexpr std::array kInputs = {CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
                                         CUDNN_ATTR_OPERATION_POINTWISE_TDESC};
  DnnDescriptor& description = add(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  description.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, mode)
      .set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, precision);
  if (index_dim >= 0) description.set(CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, std::int64_t{index_dim});
  const Value math = description.finalize().get();
  std::vector<Input> operands = {{CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, math}};
  for (const Value input : inputs) operands.push_back({kInputs[operands.size() - 1], input});
  return operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, operands, CUDNN_ATTR_OPERATION_POINTWISE_YDESC,
                   result);
}

// Reduces over the dims that are shorter in the result.
Value AttentionGraphBuilder::reduce(cudnnReduceTensorOp_t kind, Value x, const TensorSpec& result) {
  const Value math = add(CUDNN_BACKEND_REDUCTION_DESCRIPTOR)
                         .set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, kind)
                         .set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT)
                         .finalize()
                         .get();
  return operation(
      CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR,
      std::array{Input{CUDNN_ATTR_OPERATION_REDUCTION_DESC, math}, Input{CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x}},
      CUDNN_ATTR_OPERATION_REDUCTION_YDESC, result);
}

Value AttentionGraphBuilder::transpose(Value x, const TensorSpec& result) {
  return operation(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, std::array{Input{CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x}},
                   CUDNN_ATTR_OPERATION_RESHAPE_YDESC, result);
}

// visible ? scores : -inf
Value AttentionGraphBuilder::selected(Value scores, Value visible) {
  return pointwise(CUDNN_POINTWISE_BINARY_SELECT, {scores, number(AttentionUid::kLowest), visible}, score_);
}

// row < the document's queries and column < its keys ? scores : -inf, if packed
Value AttentionGraphBuilder::padded(Value scores) {
  if (!problem_.is_packed()) return scores;
  const TensorSpec index = score_.with(CUDNN_DATA_INT32), mask = score_.with(CUDNN_DATA_BOOLEAN);
  const Value row = pointwise(CUDNN_POINTWISE_GEN_INDEX, {scores}, index, CUDNN_DATA_INT32, 2);
  const Value column = pointwise(CUDNN_POINTWISE_GEN_INDEX, {scores}, index, CUDNN_DATA_INT32, 3);
  const Value is_query = pointwise(CUDNN_POINTWISE_CMP_LT, {row, query_lengths_}, mask, CUDNN_DATA_BOOLEAN);
  const Value is_key = pointwise(CUDNN_POINTWISE_CMP_LT, {column, key_lengths_}, mask, CUDNN_DATA_BOOLEAN);
  return selected(scores, pointwise(CUDNN_POINTWISE_LOGICAL_AND, {is_query, is_key}, mask, CUDNN_DATA_BOOLEAN));
}

// row >= column, and column + window > row if there is a window ? scores : -inf, if causal
Value AttentionGraphBuilder::masked(Value scores) {
  if (!problem_.causal) return scores;
  const TensorSpec index = score_.with(CUDNN_DATA_INT32), mask = score_.with(CUDNN_DATA_BOOLEAN);
  const auto generated = [&](int dim) {
    return pointwise(CUDNN_POINTWISE_GEN_INDEX, {scores}, index, CUDNN_DATA_FLOAT, dim);
  };
  Value row = generated(2), column = generated(3);
  scores = selected(scores, pointwise(CUDNN_POINTWISE_CMP_GE, {row, column}, mask, CUDNN_DATA_BOOLEAN));
  if (problem_.window == 0) return scores;
  row = generated(2), column = generated(3);
  const Value reach = pointwise(CUDNN_POINTWISE_ADD, {column, number(AttentionUid::kWindow)}, score_);
  return selected(scores, pointwise(CUDNN_POINTWISE_CMP_GT, {reach, row}, mask, CUDNN_DATA_BOOLEAN));
}

// out = softmax(scale q k^T, masked) v;  lse = max + log(sum(exp(scores - max)))
void AttentionGraphBuilder::forward() {
  const Value q = tensor(query_like(problem_.q, AttentionUid::kQ));
  const Value k_transposed = tensor(key_like(problem_.k, AttentionUid::kK).transposed());
  const Value v = tensor(key_like(problem_.v, AttentionUid::kV));

  const Value products = matmul(q, k_transposed, score_, of_scores());
  const Value scores = masked(padded(pointwise(CUDNN_POINTWISE_MUL, {products, number(AttentionUid::kScale)}, score_)));

  const Value largest = reduce(CUDNN_REDUCE_TENSOR_MAX, scores, row_);
  const Value shifted = pointwise(CUDNN_POINTWISE_SUB, {scores, largest}, score_);
  const Value exponentials = pointwise(CUDNN_POINTWISE_EXP, {shifted}, score_);
  const Value total = reduce(CUDNN_REDUCE_TENSOR_ADD, exponentials, row_);
  const Value log_total = pointwise(CUDNN_POINTWISE_LOG, {total}, row_);
  pointwise(CUDNN_POINTWISE_ADD, {largest, log_total}, statistic(AttentionUid::kLse));

  const Value p = pointwise(CUDNN_POINTWISE_DIV, {exponentials, total}, score_.with(CUDNN_DATA_BFLOAT16));
  matmul(p, v, query_like(problem_.out, AttentionUid::kOut), of_queries());
}

// p = exp(scale q k^T - lse), masked;  dv = p^T d_out;  ds = scale p (d_out v^T - delta), delta = rowsum(d_out out);
// dk = ds^T q;  dq = ds k
void AttentionGraphBuilder::backward() {
  const TensorSpec score_transposed = score_.with(CUDNN_DATA_BFLOAT16).transposed();
  const Value q = tensor(query_like(problem_.q, AttentionUid::kQ));
  const Value out = tensor(query_like(problem_.out, AttentionUid::kOut));
  const Value d_out = tensor(query_like(problem_.d_out, AttentionUid::kDOut));
  const Value k_transposed = tensor(key_like(problem_.k, AttentionUid::kK).transposed());
  const Value v_transposed = tensor(key_like(problem_.v, AttentionUid::kV).transposed());
  const Value lse = tensor(statistic(AttentionUid::kLse));
  const Value scale = number(AttentionUid::kScale);

  const Value output_products = pointwise(CUDNN_POINTWISE_MUL, {d_out, out}, full_heads_);
  const Value output_sum = reduce(CUDNN_REDUCE_TENSOR_ADD, output_products, row_);
  const Value delta =
      pointwise(CUDNN_POINTWISE_MUL, {output_sum, number(AttentionUid::kOne)}, statistic(AttentionUid::kDelta));

  const Value products = matmul(q, k_transposed, score_, of_scores());
  const Value scaled = padded(pointwise(CUDNN_POINTWISE_MUL, {products, scale}, score_));
  const Value scores = masked(pointwise(CUDNN_POINTWISE_SUB, {scaled, lse}, score_));
  const Value p = pointwise(CUDNN_POINTWISE_EXP, {scores}, score_);
  matmul_over_group(transpose(p, score_transposed), d_out, key_like(problem_.dv, AttentionUid::kDv),
                    AttentionUid::kDvHeads);

  const Value d_p = matmul(d_out, v_transposed, score_, of_scores());
  const Value centred = pointwise(CUDNN_POINTWISE_SUB, {d_p, delta}, score_);
  const Value unscaled = pointwise(CUDNN_POINTWISE_MUL, {centred, p}, score_);
  const Value ds = pointwise(CUDNN_POINTWISE_MUL, {unscaled, scale}, score_);
  matmul_over_group(transpose(ds, score_transposed), q, key_like(problem_.dk, AttentionUid::kDk),
                    AttentionUid::kDkHeads);

  TensorSpec k_spec = key_like(problem_.k, AttentionUid::kK);
  k_spec.uid.reset();
  const Value k = transpose(k_transposed, k_spec);
  const TensorSpec dq = query_like(problem_.dq, AttentionUid::kDq);
  if (problem_.pass == AttentionPass::kBackwardDirect) {
    matmul(ds, k, dq, of_queries());
  } else {
    const TensorSpec sum = (problem_.is_packed() ? dq.with(CUDNN_DATA_FLOAT) : full_heads_).with(AttentionUid::kDqSum);
    pointwise(CUDNN_POINTWISE_IDENTITY, {matmul(ds, k, sum, of_queries())}, dq);
  }
}

AttentionGraph::AttentionGraph(const AttentionProblem& problem) {
  AttentionGraphBuilder builder(problem, *this);
  problem.pass == AttentionPass::kForward ? builder.forward() : builder.backward();
  builder.finish();
}

std::vector<DnnDescriptor> engine_configs(const AttentionGraph& graph, const DnnDescriptor& device_properties) {
  constexpr std::int64_t kMost = 32;
  DnnDescriptor heuristics(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph.get())
      .set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, CUDNN_HEUR_MODE_A)
      .set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, device_properties.get())
      .finalize();
  return heuristics.get_list(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, kMost);
}

}  // namespace megalith
