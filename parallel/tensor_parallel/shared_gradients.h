// Sums of gradients of parameters that several tensor-parallel ranks replicate, while each rank sees a part of the rows
// or heads. These are norms under sequence parallelism, q and k norms, and keys and values with fewer heads than ranks.
// They are summed once per step, after the data-parallel sum, so the replicas stay bitwise equal.
#pragma once

#include <memory>
#include <vector>

#include "core/layers/parameter.h"
#include "core/memory/memory_pool.h"
#include "parallel/tensor_parallel/tensor_group.h"

namespace megalith {

class SharedGradients {
 public:
  // Collective over the group. `store` is allocated; it and `group` outlive this object. Small gradients are packed
  // into one buffer from `pool`, for a single call. For each unit, the gradients of its shard are summed, which is the
  // same shard on all ranks of the group.
  SharedGradients(TensorGroup& group, const ParameterStore& store, MemoryPool& pool);

  void sum(Stream& compute);

 private:
  struct Set {  // parameters with the same holders
    Communicator* group = nullptr;
    std::unique_ptr<Communicator> own;  // if the holders are not the complete group
    std::vector<Tensor> small, large;   // one dim
    Tensor packed;                      // buffer of the small ones
  };

  TensorGroup& group_;
  std::vector<Set> sets_;
};

}  // namespace megalith
