// A model whose experts the ranks of a group share out.
#pragma once

#include "core/model/config.h"
#include "parallel/comm/communicator.h"
#include "tests/unit/model/model_run.h"

namespace megalith::test {

// Three layers, the first dense. On the GPU sizes that the fast kernels take.
ModelConfig moe_model_config(DType dtype, DeviceType device);

// A graph of each microbatch, captured on other tokens, has the bits of the eager run.
ModelResult expect_replays_with_other_tokens(ModelCase c, const ModelResult& eager);

// The same on the ranks of a group, each of which has tokens of its own, and the rows of all replays went that way. On
// GPUs that read each other's memory it is shared for each run.
void expect_ranks_replay_with_other_tokens(Communicator& group, DeviceType device, MoeTokenDispatcher way);

}  // namespace megalith::test
