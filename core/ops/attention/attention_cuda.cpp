// bf16 attention on cuDNN's fused engines. Compute-bound: no S x S matrix leaves the multiprocessors, except dS in the
// deterministic backward. Out, lse, dk and dv repeat bit for bit in both forms, dq only in the deterministic one. For
// packed documents cuDNN's dS would be of S x S for each entry; a kernel of this project then computes dq instead.
#include "core/ops/attention/attention_cuda.h"

#include <fmt/format.h>

#include <array>
#include <initializer_list>
#include <limits>
#include <map>

#include "core/base/error.h"
#include "core/device/cuda/check.h"
#include "core/device/cuda_stream_state.h"
#include "core/ops/attention/attention_graph_cuda.cuh"
#include "core/ops/attention/attention_packed_cuda.h"
#include "core/ops/elementwise/elementwise.h"

namespace megalith {

struct AttentionPlans {
  // An engine chosen for one problem; valid for any addresses and on any handle of its device.
  struct Plan {
    AttentionGraph graph;  // kept: cuDNN does not document that a plan outlives its graph
    std::vector<DnnDescriptor> engines;
    DnnDescriptor descriptor;
    std::int64_t workspace_bytes;
  };
  std::map<AttentionProblem, Plan> of;
};

namespace {

constexpr std::int64_t kAlignment = 16;   // bytes; every address and stride is a multiple
constexpr std::int64_t kDimMultiple = 8;  // the same in bf16 elements
constexpr float kLowest = -std::numeric_limits<float>::infinity();
constexpr float kOne = 1;
static_assert(kOffsetTables == PackedTables::kTensors);

using Plan = AttentionPlans::Plan;

// Builds the plan of the heuristics' first engine that can be finalized. May compile kernels for half a second.
Plan make_plan(const AttentionProblem& problem, const DnnDescriptor& device_properties) {
  AttentionGraph graph(problem);
  std::vector<DnnDescriptor> engines = engine_configs(graph, device_properties);
  for (const DnnDescriptor& engine : engines) {
    DnnDescriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, engine.get())
        .set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, device_properties.get());
    const cudnnStatus_t status = cudnnBackendFinalize(plan.get());
    if (status == CUDNN_STATUS_SUCCESS) {
      const std::int64_t bytes = plan.get_int64(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
      return {std::move(graph), std::move(engines), std::move(plan), bytes};
    }
    // The heuristics also list engines that do not support a shape.
    constexpr int kFamily = 1000;
    if (status / kFamily != CUDNN_STATUS_NOT_SUPPORTED / kFamily) MEGALITH_CUDNN_CHECK(status);
  }
  fail({.subject = to_string(problem),
        .expected = "an engine of cuDNN",
        .got = fmt::format("{} engines, none of which supports it", engines.size()),
        .remedy = fmt::format("cuDNN is {}; try a newer one, or a head dim of 64 or 128", cudnnGetVersion())});
}

std::map<AttentionProblem, Plan>& plans_of(CudaStream& stream) {
  std::shared_ptr<AttentionPlans>& plans = stream.state().attention_plans;
  if (plans == nullptr) plans = std::make_shared<AttentionPlans>();
  return plans->of;
}

// Returns the problem's plan, built at the first call. Fails if that is under capture: a build loads kernels.
const Plan& plan_for(CudaStream& stream, const AttentionProblem& problem) {
  std::map<AttentionProblem, Plan>& plans = plans_of(stream);
  if (const auto it = plans.find(problem); it != plans.end()) return it->second;
  check_attention_library();
  if (is_capturing(stream.handle())) {
    fail({.subject = to_string(problem),
          .expected = "a plan built before the capture",
          .got = "none",
          .remedy = "run the step once before capturing it"});
  }
  DnnDescriptor properties(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  cudnnHandle_t handle = stream.dnn();
  properties.set(CUDNN_ATTR_DEVICEPROP_HANDLE, CUDNN_TYPE_HANDLE, handle).finalize();
  return plans.emplace(problem, make_plan(problem, properties)).first->second;
}

void check_dim(const Tensor& q, bool is_packed) {
  // cuDNN's backward of ragged tensors has a known error with other multiples of 8 (cudnn-frontend 1.23).
  const std::int64_t multiple = is_packed ? 2 * kDimMultiple : kDimMultiple;
  if (q.size(3) % multiple == 0) return;
  fail({.code = ExitCode::kUsage,
        .subject = fmt::format("op.q: head dim of bf16 attention{} on CUDA", is_packed ? " of packed documents" : ""),
        .expected = fmt::format("a multiple of {} up to {}", multiple, kMaxHeadDim),
        .got = fmt::format("{}", q.size(3)),
        .remedy = "change --kv-channels, or --hidden-size and --num-attention-heads"});
}

// Returns strides. A dim of size 1 gets the stride of a packed tensor, so that equal problems compare equal.
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

// A problem and its addresses.
struct Call {
  AttentionProblem problem;
  float window;
  std::array<const void*, static_cast<std::size_t>(AttentionUid::kCount)> pointers{};  // by AttentionUid

  template <class Op>
  Call(const Op& op, AttentionPass pass)
      : problem{.pass = pass,
                .samples = op.q.size(0),
                .tokens = op.q.size(1),
                .keys = op.k.size(1),
                .heads = op.q.size(2),
                .kv_heads = op.k.size(2),
                .dim = op.q.size(3),
                .causal = op.causal,
                .window = op.window},
        window(static_cast<float>(op.window)) {
    if (op.query_documents) pack(op);
    bind(AttentionUid::kQ, &AttentionProblem::q, op.q, "op.q");
    bind(AttentionUid::kK, &AttentionProblem::k, op.k, "op.k");
    bind(AttentionUid::kV, &AttentionProblem::v, op.v, "op.v");
    bind(AttentionUid::kOut, &AttentionProblem::out, op.out, "op.out");
    at(AttentionUid::kLse) = op.lse.data;
    at(AttentionUid::kScale) = &op.scale;
    at(AttentionUid::kLowest) = &kLowest;
    at(AttentionUid::kWindow) = &window;
    at(AttentionUid::kOne) = &kOne;
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  const void*& at(AttentionUid uid) { return pointers[static_cast<std::size_t>(uid)]; }
  void bind(AttentionUid uid, HeadStrides AttentionProblem::*strides, const Tensor& x, const char* name) {
    problem.*strides = strides_of(x, name);
    at(uid) = x.data;
  }

  // The samples are documents; the op's workspace begins with their tables.
  template <class Op>
  void pack(const Op& op) {
    problem.rows = op.q.size(1), problem.key_rows = op.k.size(1);
    problem.samples = op.query_documents.begin.numel();
    problem.tokens = problem.keys = op.max_length;
    const PackedTables tables = PackedTables::of(op.query_documents);
    auto* const begin = op.workspace.template as<std::byte>();
    at(AttentionUid::kQueryLengths) = begin + tables.query_lengths;
    at(AttentionUid::kKeyLengths) = begin + tables.key_lengths;
    for (int i = 0; i < kOffsetTables; ++i)
      at(offsets_of(static_cast<AttentionUid>(i))) =
          begin + tables.first_elements + i * tables.entries * static_cast<std::int64_t>(sizeof(std::int64_t));
  }
  // By AttentionUid: those of tensors with tables.
  TokenStrides token_strides() const {
    const AttentionProblem& p = problem;
    constexpr std::int64_t kOfStatistics = 1;
    return {p.q.token,     p.k.token,  p.v.token,  p.out.token, kOfStatistics,
            p.d_out.token, p.dq.token, p.dk.token, p.dv.token};
  }

  bool needs_no_run(CudaStream& stream) const { return stream.only_sets_up() && plans_of(stream).contains(problem); }
  // Enqueues; neither allocates device memory nor waits, so that it is legal under capture.
  void run(CudaStream& stream, void* workspace, std::size_t bytes) const {
    const Plan& plan = plan_for(stream, problem);
    if (plan.workspace_bytes > static_cast<std::int64_t>(bytes)) {
      // workspace_bytes() laid out the arena and must predict cuDNN's workspace.
      fail({.subject = to_string(problem),
            .expected = fmt::format("cuDNN to need at most {} bytes of workspace", bytes),
            .got = fmt::format("{}", plan.workspace_bytes),
            .remedy = fmt::format("cuDNN is {}; use a version this program was tested with", cudnnGetVersion())});
    }
    std::vector<const void*> bound;
    for (const std::int64_t uid : plan.graph.uids) bound.push_back(pointers[static_cast<std::size_t>(uid)]);
    DnnDescriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, std::span<const std::int64_t>(plan.graph.uids))
        .set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, std::span<const void* const>(bound))
        .set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, workspace)
        .finalize();
    MEGALITH_CUDNN_CHECK(cudnnBackendExecute(stream.dnn(), plan.descriptor.get(), pack.get()));
  }
};

void clear(CudaStream& stream, std::initializer_list<Tensor> outputs) {
  for (const Tensor& x : outputs) run(stream, Fill{.x = x, .value = 0});
}

void run_packed(CudaStream& stream, const AttentionForward& op) {
  const Call call(op, AttentionPass::kForward);
  if (call.needs_no_run(stream)) return clear(stream, {op.out, op.lse});
  write_tables(stream, op, call.token_strides());
  const std::int64_t tables = PackedTables::of(op.query_documents).bytes;
  call.run(stream, op.workspace.as<std::byte>() + tables, op.workspace.bytes() - static_cast<std::size_t>(tables));
  if (!op.causal) write_rows_without_partner(stream, op);
}

// q and all gradients of cuDNN are dense: its scratch has their strides, and it writes dq with the offsets of q.
void run_packed(CudaStream& stream, const AttentionBackward& op) {
  const PackedBackwardWorkspace layout(op);
  auto* const workspace = op.workspace.as<std::byte>();
  const auto dense = [workspace](std::int64_t at, const Tensor& like) {
    return Tensor(workspace + at, like.dtype, like.shape);
  };
  const Tensor q = op.q.is_contiguous() ? op.q : dense(layout.q, op.q), dq = dense(layout.dq, op.q);
  const Tensor dk = dense(layout.dk, op.k), dv = dense(layout.dv, op.k);
  for (const auto& [x, name] : {std::pair{&op.q, "op.q"}, {&op.dq, "op.dq"}, {&op.dk, "op.dk"}, {&op.dv, "op.dv"}})
    strides_of(*x, name);
  Call call(op, AttentionPass::kBackwardAccumulating);
  call.bind(AttentionUid::kDOut, &AttentionProblem::d_out, op.d_out, "op.d_out");
  call.bind(AttentionUid::kQ, &AttentionProblem::q, q, "op.q");
  call.bind(AttentionUid::kDq, &AttentionProblem::dq, dq, "op.dq");
  call.bind(AttentionUid::kDk, &AttentionProblem::dk, dk, "op.dk");
  call.bind(AttentionUid::kDv, &AttentionProblem::dv, dv, "op.dv");
  if (call.needs_no_run(stream)) return clear(stream, {op.dq, op.dk, op.dv});
  call.at(AttentionUid::kDelta) = op.delta.data;
  call.at(AttentionUid::kDqSum) = workspace + layout.dq_sum;
  call.at(AttentionUid::kDkHeads) = workspace + layout.dk_heads;
  call.at(AttentionUid::kDvHeads) = workspace + layout.dv_heads;
  write_tables(stream, op, call.token_strides());
  if (q.data != op.q.data) run(stream, Copy{.src = op.q, .dst = q});
  if (!op.causal) clear(stream, {layout.gradients(workspace)});  // cuDNN skips rows outside of all documents
  call.run(stream, workspace + layout.plan, static_cast<std::size_t>(layout.bytes - layout.plan));
  run(stream, Copy{.src = dk, .dst = op.dk});
  run(stream, Copy{.src = dv, .dst = op.dv});
  if (op.deterministic) {
    run_repeatable_dq(stream, op);
  } else {
    run(stream, Copy{.src = dq, .dst = op.dq});
  }
  if (!op.causal) write_rows_without_partner(stream, op);
}

void run_samples(CudaStream& stream, const AttentionBackward& op, void* dq_sum, void* workspace, std::size_t bytes) {
  Call call(op, op.deterministic ? AttentionPass::kBackwardDirect : AttentionPass::kBackwardAccumulating);
  call.bind(AttentionUid::kDOut, &AttentionProblem::d_out, op.d_out, "op.d_out");
  call.bind(AttentionUid::kDq, &AttentionProblem::dq, op.dq, "op.dq");
  call.bind(AttentionUid::kDk, &AttentionProblem::dk, op.dk, "op.dk");
  call.bind(AttentionUid::kDv, &AttentionProblem::dv, op.dv, "op.dv");
  if (call.needs_no_run(stream)) return clear(stream, {op.dq, op.dk, op.dv});
  call.at(AttentionUid::kDelta) = op.delta.data;
  call.at(AttentionUid::kDqSum) = dq_sum;
  call.run(stream, workspace, bytes);
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
  check_dim(op.q, op.query_documents.present());
  if (op.query_documents) return run_packed(stream, op);
  const Call call(op, AttentionPass::kForward);
  if (call.needs_no_run(stream)) return clear(stream, {op.out, op.lse});
  call.run(stream, op.workspace.data, op.workspace.bytes());
}

void run(CudaStream& stream, const AttentionBackward& op) {
  if (op.q.numel() == 0) return;
  if (op.q.dtype == DType::kFp32) return run_fp32(stream, op);
  check_dim(op.q, op.query_documents.present());
  if (op.query_documents) return run_packed(stream, op);
  auto* workspace = op.workspace.as<std::byte>();
  const std::size_t bytes = op.workspace.bytes();
  if (!op.deterministic) {
    const auto sum_bytes = static_cast<std::size_t>(dq_sum_bytes(op));
    return run_samples(stream, op, workspace, workspace + sum_bytes, bytes - sum_bytes);
  }
  const std::int64_t count = samples_at_a_time(op);
  for (std::int64_t first = 0; first < op.q.size(0); first += count) {
    AttentionBackward part = op;
    for (Tensor* x :
         {&part.q, &part.k, &part.v, &part.out, &part.d_out, &part.lse, &part.delta, &part.dq, &part.dk, &part.dv}) {
      *x = x->slice(0, first, count);
    }
    run_samples(stream, part, nullptr, workspace, bytes);
  }
}

}  // namespace megalith
