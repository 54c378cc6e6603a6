#include "parallel/comm/mpi/mpi_runtime.h"

#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "core/base/error.h"
#include "core/base/exit_record.h"
#include "core/base/log.h"
#include "core/base/machine/launch.h"
#include "parallel/comm/mpi/mpi_process.h"
#include "parallel/comm/mpi/mpi_watcher.h"
#include "parallel/comm/mpi/rank_link.h"

namespace megalith {

namespace {

// Name of Open MPI's shared-memory transport; version 5 also accepts the older name.
#if defined(OMPI_MAJOR_VERSION) && OMPI_MAJOR_VERSION >= 5
#define MEGALITH_SHARED_MEMORY_BTL "sm"
#else
#define MEGALITH_SHARED_MEMORY_BTL "vader"
#endif

constexpr const char* kRanksPerGpu = "MEGALITH_RANKS_PER_GPU";

const char* of_environment(const char* name) { return std::getenv(name); }

// If a rank and its mpirun are killed, the rank's file in /dev/shm stays. A folder of this program lets the next start
// find it.
void share_memory_in_own_folder(MpiProcess& process) {
  constexpr const char* kFolder = "OMPI_MCA_btl_" MEGALITH_SHARED_MEMORY_BTL "_backing_directory";
  if (std::getenv(kFolder) != nullptr || launch_of(LaunchSigns::kCertain).ranks == 1) return;
  std::optional<ScratchFolder> folder = ScratchFolder::make("/dev/shm", "megalith");
  if (!folder) return;
  setenv(kFolder, folder->path().c_str(), 1);
  process.shared_memory.emplace(std::move(*folder));
}

int ranks_per_gpu() {
  const char* const text = std::getenv(kRanksPerGpu);
  if (text == nullptr) return 1;
  const std::string_view digits = text;
  int ranks = 0;
  const auto [end, error] = std::from_chars(digits.begin(), digits.end(), ranks);
  if (error != std::errc{} || end != digits.end() || ranks < 1) {
    refuse_usage(kRanksPerGpu, {.expected = "a number of ranks from 1 up", .got = fmt::format("\"{}\"", digits)});
  }
  return ranks;
}

}  // namespace

void set_mpi_environment() {
  const auto set = [](const char* name, const char* value) { setenv(name, value, 0); };
  // Open MPI asks hwloc for devices, and hwloc asks an X server. Without a name server, each rank waits 5 s for the
  // answer.
  set("HWLOC_COMPONENTS", "-gl");
  // Maximum number of GPU queues in CUDA. A queue that waits for a peer (nccl_peer_memory.h) blocks the streams that
  // share it.
  set("CUDA_DEVICE_MAX_CONNECTIONS", "32");
  // By default, PMIx shares memory between mpirun and the ranks of a node under a lock. A rank killed with the lock
  // leaves mpirun waiting forever. Messages require no lock.
  set("PMIX_MCA_gds", "hash");
  // A RankLink starts mpirun.
  if (std::getenv("PMIX_RANK") == nullptr && !place_without_mpi(of_environment)) {
    // Without mpirun, a process would start a daemon for spawning, which listens on every interface.
    set("OMPI_MCA_ess_singleton_isolated", "1");
    // Such processes of a user would also share one folder. The last to end removes it, which breaks the MPI_Init of
    // the next one. Under mpirun each run has a separate folder.
    set("OMPI_MCA_orte_create_session_dirs", "0");
  }
  if (!on_one_node(of_environment)) return;
  // Open MPI's TCP listens on every interface, even for ranks on one host, and a few bytes from anyone end the run.
  set("OMPI_MCA_pml", "ob1");
  set("OMPI_MCA_btl", "self," MEGALITH_SHARED_MEMORY_BTL);
}

void set_deterministic_environment() { setenv("NCCL_GRAPH_REGISTER", "0", 1); }

void set_graphs_environment() { setenv("NCCL_GRAPH_MIXING_SUPPORT", "0", 0); }

MpiRuntime::MpiRuntime(int& argc, char**& argv, const MpiOptions& options) : process_(std::make_shared<MpiProcess>()) {
  require(options.max_message_bytes > 0 && options.max_message_bytes < (std::size_t{1} << 31),
          "MpiOptions::max_message_bytes");
  process_->options = options;
  process_->ranks_per_gpu = ranks_per_gpu();
  set_mpi_environment();
  link_ = RankLink::connect(options.timeout);
  share_memory_in_own_folder(*process_);
  int provided = MPI_THREAD_SINGLE;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);  // ends the process on failure
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
  if (ends_) wait_for_all();
  ends_.reset();
  watcher_.reset();
  MPI_Finalize();
}

// MPI_Finalize waits for the ranks too, but does not report a missing rank.
void MpiRuntime::wait_for_all() {
  try {
    ends_->host_barrier();
  } catch (const Error& error) {
    log_last_words(
        fmt::format("{}: error: [rank {}/{}] {}", program_invocation_short_name, rank(), size(), error.what()));
    abort(error.code());
  }
}

bool MpiRuntime::aborted() const { return process_->aborted; }
int MpiRuntime::rank() const { return process_->rank; }
int MpiRuntime::size() const { return process_->size; }
int MpiRuntime::local_rank() const { return process_->local_rank; }
int MpiRuntime::local_size() const { return process_->local_size; }
int MpiRuntime::gpu() const { return process_->local_rank / process_->ranks_per_gpu; }
int MpiRuntime::max_on_gpu() const { return std::min(process_->ranks_per_gpu, process_->local_size); }
int MpiRuntime::gpus_needed() const {
  return (process_->local_size + process_->ranks_per_gpu - 1) / process_->ranks_per_gpu;
}

void MpiRuntime::set_timeout(std::chrono::milliseconds timeout) { process_->options.timeout = timeout; }

void MpiRuntime::watch(const WatchOptions& options) {
  set_timeout(options.timeout);
  if (process_->size == 1) return;
  require(!watcher_, "MpiRuntime::watch was called twice");
  ends_ = make_mpi_world(process_, "end of the run");
  watcher_ = std::make_unique<MpiWatcher>(process_, options);
  process_->grace = std::chrono::seconds(8);  // the watcher's report has more detail, so it comes first
}

std::unique_ptr<Communicator> MpiRuntime::world() { return make_mpi_world(process_); }

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
  if (process_->rank != 0) std::this_thread::sleep_for(std::chrono::seconds(10));  // rank 0 aborts earlier
  abort(code);
}

void end_all_ranks(MpiProcess& process, ExitCode code) {
  std::fflush(nullptr);
  record_exit_code(static_cast<int>(code));
  {
    const std::lock_guard lock(process.mutex);
    if (process.shared_memory) process.shared_memory->remove();  // existing mappings stay valid
  }
  if (process.size == 1) {  // no peers to end; an abort would add lines of MPI to the error
    MPI_Finalize();
    std::_Exit(static_cast<int>(code));
  }
  MPI_Abort(MPI_COMM_WORLD, static_cast<int>(code));
  std::_Exit(static_cast<int>(code));
}

}  // namespace megalith
