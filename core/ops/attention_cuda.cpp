// bf16 attention on cuDNN's fused engines. Compute-bound: no S x S matrix leaves the multiprocessors, except dS in the
// deterministic backward. Out, lse, dk and dv repeat bit for bit in both forms, dq only in the deterministic one.
#include "core/ops/attention_cuda.h"

#include <fmt/format.h>

#include <limits>

#include "core/base/error.h"
#include "core/ops/attention_plan_cuda.cuh"
#include "core/ops/attention_rows_cuda.h"

namespace megalith {

namespace {

constexpr std::int64_t kAlignment = 16;   // bytes, of every address and stride
constexpr std::int64_t kDimMultiple = 8;  // bf16 elements in that
constexpr float kLowest = -std::numeric_limits<float>::infinity();
constexpr float kOne = 1;

void check_dim(const Tensor& q) {
  if (q.size(3) % kDimMultiple == 0) return;
  fail({.code = ExitCode::kUsage,
        .subject = "op.q: head dim of bf16 attention on CUDA",
        .expected = fmt::format("a multiple of {} up to {}", kDimMultiple, kMaxHeadDim),
        .got = fmt::format("{}", q.size(3)),
        .remedy = "change --kv-channels, or --hidden-size and --num-attention-heads"});
}

// A dim of size 1 is never stepped over: it gets the stride a packed tensor has, so that equal problems compare equal.
HeadStrides strides_of(const Tensor& x, const char* name) {
  bool aligned = reinterpret_cast<std::uintptr_t>(x.data) % kAlignment == 0;
  for (int d = 0; d < 3; ++d) aligned = aligned && (x.size(d) == 1 || x.stride(d) % kDimMultiple == 0);
  if (!aligned) {
    fail({.subject = name,
          .expected = fmt::format("an address and strides that are multiples of {} bytes", kAlignment),
          .got = fmt::format("address {}, strides of {}, {} and {} elements", x.data, x.stride(0), x.stride(1),
                             x.stride(2))});
  }
  const std::int64_t head = x.size(2) == 1 ? x.size(3) : x.stride(2);
  const std::int64_t token = x.size(1) == 1 ? x.size(2) * head : x.stride(1);
  const std::int64_t sample = x.size(0) == 1 ? x.size(1) * token : x.stride(0);
  return {.sample = sample, .head = head, .token = token};
}

const void*& at(AttentionPointers& pointers, AttentionUid uid) { return pointers[static_cast<std::size_t>(uid)]; }

AttentionPointers pointers_with(const float& scale) {
  AttentionPointers pointers{};
  at(pointers, AttentionUid::kScale) = &scale;
  at(pointers, AttentionUid::kLowest) = &kLowest;
  at(pointers, AttentionUid::kOne) = &kOne;
  return pointers;
}

template <class Op>
AttentionProblem problem_of(const Op& op, AttentionPass pass) {
  const Tensor &q = op.q, &k = op.k;
  return {.pass = pass,
          .samples = q.size(0),
          .tokens = q.size(1),
          .keys = k.size(1),
          .heads = q.size(2),
          .kv_heads = k.size(2),
          .dim = q.size(3),
          .q = strides_of(q, "op.q"),
          .k = strides_of(k, "op.k"),
          .causal = op.causal};
}

// The arena was laid out with workspace_bytes(), which has to know what cuDNN wants without asking it.
void check_plan_workspace(const AttentionProblem& problem, const AttentionPlan& plan, std::size_t available) {
  if (plan.workspace_bytes() <= static_cast<std::int64_t>(available)) return;
  fail({.subject = to_string(problem),
        .expected = fmt::format("cuDNN to need at most {} bytes of workspace", available),
        .got = fmt::format("{}", plan.workspace_bytes()),
        .remedy = fmt::format("cuDNN is {}; use a version this program was tested with", cudnnGetVersion())});
}

struct Scratch {
  void* dq_sum = nullptr;
  void* workspace = nullptr;
  std::size_t bytes = 0;
};

void run_samples(CudaStream& stream, const AttentionBackward& op, AttentionPass pass, const Scratch& scratch) {
  AttentionProblem problem = problem_of(op, pass);
  problem.v = strides_of(op.v, "op.v");
  problem.out = strides_of(op.out, "op.out");
  problem.d_out = strides_of(op.d_out, "op.d_out");
  problem.dq = strides_of(op.dq, "op.dq");
  problem.dk = strides_of(op.dk, "op.dk");
  problem.dv = strides_of(op.dv, "op.dv");
  const AttentionPlan& plan = stream.keep<AttentionPlans>().get(stream, problem);
  check_plan_workspace(problem, plan, scratch.bytes);
  AttentionPointers pointers = pointers_with(op.scale);
  at(pointers, AttentionUid::kQ) = op.q.data;
  at(pointers, AttentionUid::kK) = op.k.data;
  at(pointers, AttentionUid::kV) = op.v.data;
  at(pointers, AttentionUid::kOut) = op.out.data;
  at(pointers, AttentionUid::kLse) = op.lse.data;
  at(pointers, AttentionUid::kDOut) = op.d_out.data;
  at(pointers, AttentionUid::kDq) = op.dq.data;
  at(pointers, AttentionUid::kDk) = op.dk.data;
  at(pointers, AttentionUid::kDv) = op.dv.data;
  at(pointers, AttentionUid::kDelta) = op.delta.data;
  at(pointers, AttentionUid::kDqSum) = scratch.dq_sum;
  plan.run(stream.dnn(), pointers, scratch.workspace);
}

}  // namespace

void check_attention_library(std::size_t version) {
  constexpr std::size_t kMajor = 10000;
  if (version >= kOldestCudnn && version / kMajor == kOldestCudnn / kMajor) return;
  refuse_usage(
      "--device cuda: cuDNN",
      {.expected = "version 9.15.1 or newer of cuDNN 9 (attention's backward of older ones may read out of bounds)",
       .got = fmt::format("{}.{}.{}", version / kMajor, version % kMajor / 100, version % 100),
       .remedy = "install a newer cuDNN 9"});
}

void check_attention_library() { check_attention_library(cudnnGetVersion()); }

void run(CudaStream& stream, const AttentionForward& op) {
  if (op.q.numel() == 0) return;
  if (op.q.dtype == DType::kFp32) return run_fp32(stream, op);
  check_dim(op.q);
  AttentionProblem problem = problem_of(op, AttentionPass::kForward);
  problem.v = strides_of(op.v, "op.v");
  problem.out = strides_of(op.out, "op.out");
  const AttentionPlan& plan = stream.keep<AttentionPlans>().get(stream, problem);
  check_plan_workspace(problem, plan, op.workspace.bytes());
  AttentionPointers pointers = pointers_with(op.scale);
  at(pointers, AttentionUid::kQ) = op.q.data;
  at(pointers, AttentionUid::kK) = op.k.data;
  at(pointers, AttentionUid::kV) = op.v.data;
  at(pointers, AttentionUid::kOut) = op.out.data;
  at(pointers, AttentionUid::kLse) = op.lse.data;
  plan.run(stream.dnn(), pointers, plan.workspace_bytes() > 0 ? op.workspace.data : nullptr);
}

void run(CudaStream& stream, const AttentionBackward& op) {
  if (op.q.numel() == 0) return;
  if (op.q.dtype == DType::kFp32) return run_fp32(stream, op);
  check_dim(op.q);
  auto* workspace = op.workspace.as<std::byte>();
  const std::size_t bytes = op.workspace.bytes();
  if (!op.deterministic) {
    const auto sum_bytes = static_cast<std::size_t>(dq_sum_bytes(op));
    return run_samples(stream, op, AttentionPass::kBackwardAccumulating,
                       {.dq_sum = workspace, .workspace = workspace + sum_bytes, .bytes = bytes - sum_bytes});
  }
  const std::int64_t count = samples_at_a_time(op);
  for (std::int64_t first = 0; first < op.q.size(0); first += count) {
    AttentionBackward part = op;
    for (Tensor* x :
         {&part.q, &part.k, &part.v, &part.out, &part.d_out, &part.lse, &part.delta, &part.dq, &part.dk, &part.dv}) {
      *x = x->slice(0, first, count);
    }
    run_samples(stream, part, AttentionPass::kBackwardDirect, {.workspace = workspace, .bytes = bytes});
  }
}

}  // namespace megalith
