// Chooses cuBLASLt's algorithms before the first step, the same on all ranks: those of the checkpoint, else those in
// the user's cache file, else the fastest that the first replica of each pipeline stage measures.
#pragma once

#include "apps/run/step.h"
#include "core/ops/gemm/gemm_cache.h"
#include "parallel/comm/communicator.h"

namespace megalith {

// Collective; does nothing on the CPU. `entries` holds the checkpoint's choices and receives all that the run uses.
// `deterministic`: cuBLASLt's first answer for every size, nothing is measured, read or kept.
void choose_gemm_algorithms(Rank& rank, Step& step, Communicator& world, bool deterministic, GemmEntries& entries);

}  // namespace megalith
