// Execution plans of the attention graphs and their cache.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>

#include "core/device/cuda_stream.h"
#include "core/ops/attention_graph_cuda.cuh"

namespace megalith {

using AttentionPointers = std::array<const void*, static_cast<std::size_t>(AttentionUid::kCount)>;  // by AttentionUid

// An engine chosen for one problem; works for any addresses and on any handle of its device.
class AttentionPlan {
 public:
  // Takes the heuristics' first engine that can be finalized. May compile kernels for half a second. Fails if there is
  // none.
  AttentionPlan(const AttentionProblem& problem, const DnnDescriptor& device_properties);

  std::int64_t workspace_bytes() const { return workspace_bytes_; }
  // Enqueues on the handle's stream; neither allocates device memory nor waits, so it is legal under capture.
  void run(cudnnHandle_t handle, const AttentionPointers& pointers, void* workspace) const;

 private:
  AttentionGraph graph_;  // nowhere is it said that a plan outlives what it was made from
  std::vector<DnnDescriptor> engines_;
  std::vector<DnnDescriptor> plan_;  // one
  std::int64_t workspace_bytes_ = 0;
};

// A stream's plans.
class AttentionPlans {
 public:
  // Builds it at the first call; fails if that happens under capture, since building takes long and loads kernels.
  const AttentionPlan& get(CudaStream& stream, const AttentionProblem& problem);

 private:
  std::map<AttentionProblem, AttentionPlan> plans_;
};

}  // namespace megalith
