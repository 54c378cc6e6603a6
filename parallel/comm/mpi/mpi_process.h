// State that the MPI groups of one process share; internal to parallel/comm.
#pragma once

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/base/error.h"
#include "core/base/files/scratch_folder.h"
#include "parallel/comm/communicator.h"
#include "parallel/comm/mpi/mpi_runtime.h"

namespace megalith {

class NcclWatcher;

struct MpiProcess {
  MpiOptions options;
  std::optional<ScratchFolder> shared_memory;  // of this rank; MPI shares it with the node's ranks
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  int ranks_per_gpu = 1;
  std::atomic<bool> aborted{false};
  std::mutex mutex;
  std::string abort_message;                                    // guarded by mutex
  std::vector<std::weak_ptr<FlightRecorder>> recorders;         // guarded; of all groups
  std::vector<std::shared_ptr<FlightRecorder>> kept_recorders;  // guarded; for the dump after an abort
  std::vector<std::shared_ptr<void>> kept;  // guarded; memory that MPI may still write to after an abort
  std::weak_ptr<NcclWatcher> nccl_watcher;
  std::chrono::milliseconds grace{0};  // extra time, if a watcher reports first

  void add(const std::shared_ptr<FlightRecorder>& recorder) {
    const std::lock_guard lock(mutex);
    std::erase_if(recorders, [](const auto& each) { return each.expired(); });
    recorders.push_back(recorder);
  }

  // Recorders of groups that communicated. A GPU group has a second recorder for its host calls.
  std::vector<std::shared_ptr<FlightRecorder>> live_recorders() {
    const std::lock_guard lock(mutex);
    std::vector<std::shared_ptr<FlightRecorder>> live;
    for (const auto& each : recorders) {
      if (auto recorder = each.lock(); recorder && recorder->calls() > 0) live.push_back(std::move(recorder));
    }
    return live;
  }

  void abort(const std::string& message) {
    const std::lock_guard lock(mutex);
    if (aborted) return;
    abort_message = message;
    for (const auto& each : recorders) kept_recorders.push_back(each.lock());
    aborted = true;
  }

  void throw_if_aborted() {
    if (!aborted) return;
    const std::lock_guard lock(mutex);
    throw Error(ExitCode::kCommunication, abort_message);
  }
};

// MpiRuntime::abort, callable from any thread.
[[noreturn]] void end_all_ranks(MpiProcess& process, ExitCode code);

// Pause between two polls. Yielding has the lowest latency (about 20 us) on an idle core. A slow yield shows that
// another thread uses the core. A yielding thread then comes last in the queue, but a thread that wakes from a sleep
// runs first. Measured with one compute thread per core: 20 concurrent all-reduces take half the time.
class Backoff {
 public:
  explicit Backoff(std::chrono::milliseconds timeout) : timeout_(timeout) {}

  // Returns false after the timeout. Suspensions of the process do not count.
  bool pause() {
    const auto now = std::chrono::steady_clock::now();
    waited_ += std::min<std::chrono::steady_clock::duration>(now - last_, std::chrono::seconds(1));
    last_ = now;
    if (waited_ > timeout_) return false;
    if (!contended_ && waited_ < std::chrono::microseconds(200)) {
      sched_yield();
      contended_ = std::chrono::steady_clock::now() - now > std::chrono::microseconds(20);
    } else {
      std::this_thread::sleep_for(sleep_);
      sleep_ = std::min(sleep_ * 2, std::chrono::microseconds(100));
    }
    return true;
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::duration waited_{};
  std::chrono::milliseconds timeout_;
  std::chrono::microseconds sleep_{1};
  bool contended_ = false;
};

// Creates a group of all ranks; collective. MPI is initialized.
std::unique_ptr<Communicator> make_mpi_world(const std::shared_ptr<MpiProcess>& process,
                                             const std::string& name = "world");

}  // namespace megalith
