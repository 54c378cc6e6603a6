#include <fmt/format.h>

#include "core/base/error.h"
#include "core/device/cuda/check.h"
#include "core/ops/attention_cuda.h"
#include "core/ops/attention_plan_cuda.cuh"

namespace megalith {

AttentionPlan::AttentionPlan(const AttentionProblem& problem, const DnnDescriptor& device_properties)
    : graph_(problem), engines_(engine_configs(graph_, device_properties)) {
  for (const DnnDescriptor& engine : engines_) {
    DnnDescriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, engine.get())
        .set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, device_properties.get());
    const cudnnStatus_t status = cudnnBackendFinalize(plan.get());
    if (status == CUDNN_STATUS_SUCCESS) {
      workspace_bytes_ = plan.get_int64(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
      plan_.push_back(std::move(plan));
      return;
    }
    // The heuristics also name engines that a shape turns out not to suit.
    constexpr int kFamily = 1000;
    if (status / kFamily != CUDNN_STATUS_NOT_SUPPORTED / kFamily) MEGALITH_CUDNN_CHECK(status);
  }
  fail({.subject = to_string(problem),
        .expected = "an engine of cuDNN",
        .got = fmt::format("{} engines, none of which takes it", engines_.size()),
        .remedy = fmt::format("cuDNN is {}; try a newer one, or a head dim of 64 or 128", cudnnGetVersion())});
}

void AttentionPlan::run(cudnnHandle_t handle, const AttentionPointers& pointers, void* workspace) const {
  std::array<const void*, static_cast<std::size_t>(AttentionUid::kCount)> bound{};
  const std::vector<std::int64_t>& uids = graph_.uids();
  for (std::size_t i = 0; i < uids.size(); ++i) bound[i] = pointers[static_cast<std::size_t>(uids[i])];
  DnnDescriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, std::span<const std::int64_t>(uids))
      .set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR,
           std::span<const void* const>(bound.data(), uids.size()))
      .set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, workspace)
      .finalize();
  MEGALITH_CUDNN_CHECK(cudnnBackendExecute(handle, plan_.front().get(), pack.get()));
}

const AttentionPlan& AttentionPlans::get(CudaStream& stream, const AttentionProblem& problem) {
  const auto it = plans_.find(problem);
  if (it != plans_.end()) return it->second;
  check_attention_library();
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  MEGALITH_CUDA_CHECK(cudaStreamIsCapturing(stream.handle(), &capture));
  if (capture != cudaStreamCaptureStatusNone) {
    fail({.subject = to_string(problem),
          .expected = "a plan built before the capture",
          .got = "none",
          .remedy = "run the step once before capturing it"});
  }
  DnnDescriptor properties(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  cudnnHandle_t handle = stream.dnn();
  properties.set(CUDNN_ATTR_DEVICEPROP_HANDLE, CUDNN_TYPE_HANDLE, handle).finalize();
  return plans_.try_emplace(problem, problem, properties).first->second;
}

}  // namespace megalith
