// Gradients of what several tensor-parallel ranks hold in copies while each sees a part of the rows or heads: norms
// with sequence parallelism, norms of q and k, keys and values of fewer heads than ranks. They are summed once a step,
// after the data-parallel sum, so that the copies stay equal bit for bit.
#pragma once

#include <memory>
#include <vector>

#include "core/layers/parameter.h"
#include "core/memory/memory_pool.h"
#include "parallel/tensor_parallel/tensor_group.h"

namespace megalith {

class SharedGradients {
 public:
  // Collective over the group. `store` is allocated; it and `group` outlive this object. Small gradients go through one
  // buffer from `pool`, so that there is one call for them. Of each unit the gradients of its shard are summed, the
  // same on all ranks of the group.
  SharedGradients(TensorGroup& group, const ParameterStore& store, MemoryPool& pool);

  void sum(Stream& compute);

 private:
  struct Set {  // of equal holders
    Communicator* group = nullptr;
    std::unique_ptr<Communicator> own;  // where the holders are not the whole group
    std::vector<Tensor> small, large;   // one dim
    Tensor packed;                      // of the small ones
  };

  TensorGroup& group_;
  std::vector<Set> sets_;
};

}  // namespace megalith
