// Ranks as processes with one GPU each. MPI carries the unique ids and all host calls; NCCL carries the streams'
// traffic. Every group has a dedicated NCCL communicator, and another one for graph calls if these were rehearsed.
// Calls enqueue on the given CUDA stream and return; they are legal under capture. Differences to the other
// communicators:
// - Sums are in NCCL's order, which depends on the number of ranks and the size. All ranks get equal bits in every run.
// bf16 sums are rounded after each addition.
// - The first call of each kind connects the ranks, so the host may wait for peers. Ranks with several groups make the
// first calls in the same order.
// - Graphs that captured a group's calls are destroyed before the group, since NCCL waits for them.
// - A thread (nccl_watcher.h) detects a failing peer and ends the streams' waits. The host's next wait, or a group's
// next call, then throws.
// NCCL's settings, such as NCCL_NVLS_ENABLE, are left to the environment, except those for --deterministic-mode and
// graphs (mpi_runtime.h).
#pragma once

#include <memory>
#include <span>
#include <string>

#include "parallel/comm/communicator.h"

namespace megalith {

class MpiRuntime;

// Creates a group of all ranks, with streams on GPUs. Collective, after each rank called select_cuda_device(mpi.gpu()).
// Exit code 2 if this build lacks CUDA, if too many ranks chose one GPU, or if NCCL is too old.
std::unique_ptr<Communicator> gpu_world(const MpiRuntime& mpi);

// True if the GPUs of this rank and of `ranks`, which include this rank, can map each other's memory, as MemorySharing
// requires. Collective over `host`, of which only host calls are used; the GPU is selected.
bool can_share_memory(Communicator& host, std::span<const int> ranks);

// Reason why the library's version is incompatible with the version that the program was built for (as from
// ncclGetVersion: 22809 is 2.28.9). Empty for the same major version and an equal or newer minor version.
std::string nccl_version_fault(int library, int built_for);

// Reason why this rank of `world` cannot use its GPU, if too many earlier ranks use it; else empty. Collective.
std::string gpu_fault(Communicator& world, int ranks_per_gpu);

// True if NCCL_GRAPH_MIXING_SUPPORT=0, set by the user or by set_graphs_environment().
bool nccl_mixing_is_off();
// Error text; empty if all ranks agree.
std::string nccl_mixing_fault(Communicator& world);

}  // namespace megalith
