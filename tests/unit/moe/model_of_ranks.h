// A model whose experts are sharded over the ranks of a group.
#pragma once

#include "core/model/config.h"
#include "parallel/comm/communicator.h"
#include "tests/unit/model/model_run.h"

namespace megalith::test {

// Three layers, the first dense. GPU sizes are those that the fast kernels support.
ModelConfig moe_model_config(DType dtype, DeviceType device);

// Captures a graph of each microbatch on other tokens, and expects its replay to equal the eager run bitwise.
ModelResult expect_replays_with_other_tokens(ModelCase c, const ModelResult& eager);

// The same on the ranks of a group with separate tokens, and expects all replays to use dispatcher `way`. GPUs that
// read each other's memory share it again for each run.
void expect_ranks_replay_with_other_tokens(Communicator& group, DeviceType device, MoeTokenDispatcher way);

}  // namespace megalith::test
