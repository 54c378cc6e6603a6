#include "parallel/comm/mpi_runtime.h"

#include <fmt/format.h>
#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <exception>

#include "parallel/comm/mpi_process.h"
#include "parallel/comm/mpi_watcher.h"
#include "parallel/comm/nccl_communicator.h"

namespace megalith {

MpiRuntime::MpiRuntime(int& argc, char**& argv, const MpiOptions& options) : process_(std::make_shared<MpiProcess>()) {
  require(options.max_message_bytes > 0 && options.max_message_bytes < (std::size_t{1} << 31),
          "MpiOptions::max_message_bytes");
  process_->options = options;
  // Open MPI asks hwloc for the machine's devices, and hwloc an X server for its screens: where there is no name server
  // each rank waits 5 s for that.
  setenv("HWLOC_COMPONENTS", "-gl", 0);
  // As many queues to a GPU as CUDA has: one that waits for a peer (nccl_peer_memory.h) holds up what shares it.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  int provided = MPI_THREAD_SINGLE;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);  // ends the process if it cannot
  if (provided < MPI_THREAD_MULTIPLE) {
    fail({.code = ExitCode::kCommunication,
          .subject = "MPI",
          .expected = "MPI_THREAD_MULTIPLE",
          .got = fmt::format("thread level {}", provided),
          .remedy = "install an MPI built with thread support, as Debian's Open MPI"});
  }
  MPI_Comm_rank(MPI_COMM_WORLD, &process_->rank);
  MPI_Comm_size(MPI_COMM_WORLD, &process_->size);
  MPI_Comm local = MPI_COMM_NULL;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, process_->rank, MPI_INFO_NULL, &local);
  MPI_Comm_rank(local, &process_->local_rank);
  MPI_Comm_size(local, &process_->local_size);
  MPI_Comm_free(&local);
}

MpiRuntime::~MpiRuntime() {
  if (process_->aborted || std::uncaught_exceptions() > 0) abort(ExitCode::kCommunication);
  watcher_.reset();
  MPI_Finalize();
}

int MpiRuntime::rank() const { return process_->rank; }
int MpiRuntime::size() const { return process_->size; }
int MpiRuntime::local_rank() const { return process_->local_rank; }
int MpiRuntime::local_size() const { return process_->local_size; }

void MpiRuntime::set_timeout(std::chrono::milliseconds timeout) { process_->options.timeout = timeout; }

void MpiRuntime::watch(const WatchOptions& options) {
  set_timeout(options.timeout);
  if (process_->size == 1) return;
  require(!watcher_, "MpiRuntime::watch was called twice");
  watcher_ = std::make_unique<MpiWatcher>(process_, options);
  process_->grace = std::chrono::seconds(8);  // the watcher knows more, so it speaks first
}

std::unique_ptr<Communicator> MpiRuntime::world(DeviceType device) {
  require_built(device);
  if (device == DeviceType::kCuda) {
    if constexpr (kCudaBuilt) return make_nccl_world(process_);
  }
  return make_mpi_world(process_);
}

void MpiRuntime::abort(ExitCode code) {
  if (watcher_ && code == ExitCode::kCommunication) {
    std::unique_lock lock(process_->mutex);
    const std::string reason = process_->abort_message;
    lock.unlock();
    watcher_->dump_all(reason.empty() ? fmt::format("rank {} failed", process_->rank) : reason);
  }
  end_all_ranks(*process_, code);
}

void MpiRuntime::abort_together(ExitCode code) {
  if (process_->rank != 0) std::this_thread::sleep_for(std::chrono::seconds(10));  // rank 0 is faster
  abort(code);
}

void end_all_ranks(const MpiProcess& process, ExitCode code) {
  std::fflush(nullptr);
  if (process.size == 1) {  // no peers to end; an abort would add lines of MPI's own to the error's
    MPI_Finalize();
    std::_Exit(static_cast<int>(code));
  }
  MPI_Abort(MPI_COMM_WORLD, static_cast<int>(code));
  std::_Exit(static_cast<int>(code));
}

}  // namespace megalith
