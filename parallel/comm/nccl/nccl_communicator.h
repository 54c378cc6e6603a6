// Ranks as processes with one GPU each. MPI carries the unique ids and all host calls, NCCL the streams' traffic; every
// group has an NCCL communicator of its own, and another one for calls in graphs where these were rehearsed. Calls
// enqueue on the given CUDA stream and return; they are legal under capture. What differs from the other communicators:
// - Sums are taken in NCCL's order, which depends on the number of ranks and the size but not on the run: all ranks get
//   the same bits, run after run. bf16 sums are rounded after each addition.
// - The first call of each kind connects the ranks, so the host may wait for its peers in it: ranks that use several
//   groups make those first calls in the same order.
// - Graphs that captured a group's calls are destroyed before the group: NCCL waits for them.
// - A failing peer is noticed by a thread (nccl_watcher.h), which ends what the streams wait for; the host's next wait,
//   or the next call of a group, then throws.
// NCCL's own settings, NCCL_NVLS_ENABLE and the like, are left to the environment, but for what --deterministic-mode
// and graphs need (mpi_runtime.h).
#pragma once

#include <memory>
#include <span>
#include <string>

#include "parallel/comm/communicator.h"

namespace megalith {

class MpiRuntime;

// A new group of all ranks, whose streams are on GPUs; collective, after each rank called
// select_cuda_device(mpi.gpu()). Exit code 2 if this build lacks CUDA, if more ranks chose one GPU than may share it,
// or if NCCL is too old.
std::unique_ptr<Communicator> gpu_world(const MpiRuntime& mpi);

// Whether the GPUs of this rank of `host` and of `ranks`, this one among them, can map each other's memory, as
// MemorySharing needs it. Collective over `host`, of which only the host's calls are used; the GPU is selected.
bool can_share_memory(Communicator& host, std::span<const int> ranks);

// Why a library of this version cannot serve a program built for the other one (versions as ncclGetVersion says them:
// 22809 is 2.28.9); empty if it can: the same major version, and not an older minor one.
std::string nccl_version_fault(int library, int built_for);

// Why this rank of `world` cannot have its GPU, if too many earlier ones have it; else empty. Collective.
std::string gpu_fault(Communicator& world, int ranks_per_gpu);

// NCCL_GRAPH_MIXING_SUPPORT=0 says so, to NCCL too: the user or set_graphs_environment().
bool nccl_mixing_is_off();
// Empty where all ranks say the same.
std::string nccl_mixing_fault(Communicator& world);

}  // namespace megalith
