// Ranks as processes: on the CPU by MPI alone, on GPUs by NCCL (nccl_communicator.h). MPI-3.1 with MPI_THREAD_MULTIPLE;
// each group has one duplicated MPI communicator for the streams' workers and one for the host, so that their messages
// never mix. Ranks share cores with compute threads, so calls are polled, giving the core away in between, instead of
// spinning inside MPI.
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
struct MpiProcess;

struct MpiOptions {
  // A call that waits longer for its peers throws Error with exit code 7.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  // Longer messages are sent in pieces: a count of MPI-3.1 is an int. At most 2^31 - 1.
  std::size_t max_message_bytes = std::size_t{1} << 30;
  // A reduction is taken in chunks of this size; a group that reduces has one staging buffer of it.
  std::size_t chunk_bytes = std::size_t{4} << 20;
};

struct WatchOptions {
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  std::string dump_folder;  // made when it is needed; empty: no dumps
  // What is said of a rank beside its number, "dp 0 pp 1 tp 0 ep 1"; empty: nothing.
  std::function<std::string(int)> place_of = {};
};

// Tells MPI, PMIx and CUDA, by the environment, what suits this program; what the user has set stays. Before anything
// starts one of them; MpiRuntime does it too.
void set_mpi_environment();
// Tells NCCL, whatever the user has set, to take the same way in a captured graph as outside: where it registers a
// graph's buffers it may choose another algorithm, which adds in another order. Before MpiRuntime starts threads.
void set_deterministic_environment();
// Tells NCCL, unless the user has set it, that no communicator has calls in graphs and others: graphs have
// communicators of their own (nccl_communicator.cpp). Before MpiRuntime starts threads.
void set_graphs_environment();

// The first object in `main`; also works for a program that was started without mpirun, as a world of one rank.
//   MpiRuntime mpi(argc, argv);
//   try { train(mpi) } catch (const Error& e) { print it; mpi.abort(e.code()); }
// Communicators must be destroyed before it.
class MpiRuntime {
 public:
  MpiRuntime(int& argc, char**& argv, const MpiOptions& options = {});
  // Waits for all ranks; after an abort of a group, or while an exception passes, ends all ranks instead.
  ~MpiRuntime();
  MpiRuntime(const MpiRuntime&) = delete;
  MpiRuntime& operator=(const MpiRuntime&) = delete;

  int rank() const;
  int size() const;
  int local_rank() const;  // among the ranks of this machine
  // The index of this rank's GPU. MEGALITH_RANKS_PER_GPU=N (1 when unset) has N ranks of a machine share one, to try
  // layouts of many ranks where there are few GPUs: NCCL then sends over sockets, so speeds say nothing.
  int gpu() const;
  int gpus_needed() const;  // by the ranks of this machine
  int most_on_gpu() const;  // of these ranks
  int local_size() const;

  // Instead of MpiOptions::timeout; while no other thread communicates.
  void set_timeout(std::chrono::milliseconds timeout);

  // From here on a thread of each rank watches for calls, of streams and of the host, that wait longer than the timeout
  // for their peers. It asks all ranks where they are, says within a second who waits in what and who did not come, has
  // each rank write its last calls to FOLDER/comm_rank_0000.json, and ends all ranks with exit code 7. After any other
  // failure of communication abort() has the calls written too. Collective, once. Sets the timeout as set_timeout()
  // does. Time for which all ranks are suspended does not count.
  void watch(const WatchOptions& options);

  // A new group of all ranks, on the CPU; collective. Of GPUs: gpu_world() of parallel/comm/nccl/nccl_communicator.h.
  std::unique_ptr<Communicator> world();

  // Ends all ranks; mpirun exits with `code` (Open MPI).
  [[noreturn]] void abort(ExitCode code);
  // The same where all ranks call it: rank 0 ends them, so that what it printed before is not lost.
  [[noreturn]] void abort_together(ExitCode code);
  // A group of this process was: it can only end by one of these two.
  bool aborted() const;

 private:
  friend std::unique_ptr<Communicator> gpu_world(const MpiRuntime& mpi);
  void wait_for_all();

  std::shared_ptr<MpiProcess> process_;
  std::unique_ptr<MpiWatcher> watcher_;
  std::unique_ptr<Communicator> ends_;  // beside the watcher: where the ranks meet before it ends
};

}  // namespace megalith
