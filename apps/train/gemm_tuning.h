// Choice of cuBLASLt's algorithms ahead of the first step, equal on all ranks. They come from the checkpoint, else from
// the user's cache file, else from measurements of the first replica of each pipeline stage.
#pragma once

#include "apps/run/step.h"
#include "core/ops/gemm/gemm_cache.h"
#include "parallel/comm/communicator.h"

namespace megalith {

// Chooses the algorithms; no effect on the CPU. Collective. `entries` has the checkpoint's choices and receives all
// choices of the run. `deterministic`: cuBLASLt's first answer for every size; nothing is measured, read or stored.
void choose_gemm_algorithms(Rank& rank, Step& step, Communicator& world, bool deterministic, GemmEntries& entries);

}  // namespace megalith
