// Ranks as processes: by MPI alone on the CPU, by NCCL on GPUs (nccl_communicator.h). MPI-3.1 with MPI_THREAD_MULTIPLE.
// Each group duplicates its MPI communicator, one for the streams' workers and one for the host, so messages never mix.
// Ranks share cores with compute threads. Therefore calls are polled with yields, instead of spinning inside MPI.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "core/base/error.h"
#include "parallel/comm/communicator.h"

namespace megalith {

class MpiWatcher;
class RankLink;
struct MpiProcess;

struct MpiOptions {
  // A call that waits longer for its peers throws Error with exit code 7.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  // Longer messages are sent in pieces, since a count of MPI-3.1 is an int. At most 2^31 - 1.
  std::size_t max_message_bytes = std::size_t{1} << 30;
  // Chunk size of reductions, and size of the staging buffer of a group that reduces.
  std::size_t chunk_bytes = std::size_t{4} << 20;
};

struct WatchOptions {
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  std::string dump_folder;  // created on demand; empty: no dumps
  // Text printed after a rank's number, "dp 0 pp 1 tp 0 ep 1"; empty: nothing.
  std::function<std::string(int)> place_of = {};
};

// Sets environment variables of MPI, PMIx and CUDA that suit this program, unless the user has set them. Called before
// any of these starts; MpiRuntime calls it too.
void set_mpi_environment();
// Makes NCCL use the same path in captured graphs as outside, overriding the user. With registered graph buffers it may
// choose another algorithm with another order of sums. Called before MpiRuntime starts threads.
void set_deterministic_environment();
// Declares to NCCL, unless the user has set it, that no communicator mixes graph calls and eager calls. Graphs have
// separate communicators (nccl_communicator.cpp). Called before MpiRuntime starts threads.
void set_graphs_environment();

// First object in `main`. A program started alone is a world of one rank; rank_link.h has ranks of other launchers.
//   MpiRuntime mpi(argc, argv);
//   try { train(mpi) } catch (const Error& e) { print it; mpi.abort(e.code()); }
// Communicators must be destroyed before it.
class MpiRuntime {
 public:
  MpiRuntime(int& argc, char**& argv, const MpiOptions& options = {});
  // Waits for all ranks. After an abort of a group, or during unwinding, ends all ranks instead.
  ~MpiRuntime();
  MpiRuntime(const MpiRuntime&) = delete;
  MpiRuntime& operator=(const MpiRuntime&) = delete;

  int rank() const;
  int size() const;
  int local_rank() const;  // among the ranks of this host
  // Index of this rank's GPU. MEGALITH_RANKS_PER_GPU=N (default 1) lets N ranks of a host share a GPU, to test layouts
  // of many ranks on few GPUs. NCCL then uses sockets, so speeds are not representative.
  int gpu() const;
  int gpus_needed() const;  // by the ranks of this host
  int max_on_gpu() const;   // maximum number of these ranks per GPU
  int local_size() const;

  // Replaces MpiOptions::timeout; no other thread may communicate meanwhile.
  void set_timeout(std::chrono::milliseconds timeout);

  // Starts a thread on each rank that watches for stream and host calls that exceed the timeout. It asks all ranks for
  // their state, and reports within a second which ranks wait, in what call, and which are missing. Each rank writes
  // its last calls to FOLDER/comm_rank_0000.json, and all ranks end with exit code 7. After other communication
  // failures, abort() also has the calls written. Collective, once. Sets the timeout as set_timeout(). Suspensions of
  // all ranks do not count.
  void watch(const WatchOptions& options);

  // Creates a group of all ranks on the CPU; collective. For GPUs: gpu_world() of
  // parallel/comm/nccl/nccl_communicator.h.
  std::unique_ptr<Communicator> world();

  // Ends all ranks; mpirun exits with `code` (Open MPI).
  [[noreturn]] void abort(ExitCode code);
  // The same, called by all ranks: rank 0 ends them, so that its earlier output is not lost.
  [[noreturn]] void abort_together(ExitCode code);
  // True if a group of this process was aborted: only abort() or abort_together() can end the process.
  bool aborted() const;

 private:
  friend std::unique_ptr<Communicator> gpu_world(const MpiRuntime& mpi);
  void wait_for_all();

  std::unique_ptr<RankLink> link_;  // of a rank that torchrun or srun started without MPI; ends last
  std::shared_ptr<MpiProcess> process_;
  std::unique_ptr<MpiWatcher> watcher_;
  std::unique_ptr<Communicator> ends_;  // all ranks meet here before the watcher ends
};

}  // namespace megalith
