#include "parallel/comm/nccl/nccl_watcher.h"

#include <errno.h>
#include <fmt/format.h>
#include <nccl.h>

#include <future>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/device/cuda_device.h"
#include "core/device/cuda_stream.h"
#include "parallel/comm/mpi/mpi_process.h"
#include "parallel/comm/nccl/nccl_peer_memory.h"

namespace megalith {

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = WatchedGroup::Clock;

constexpr std::uint64_t kSeen = std::uint64_t{1} << 63;  // set in a mark by the watcher; a new call overwrites it
constexpr milliseconds kPeriod(50);
// Time from the abort of the groups to the end of the process, for the host to throw, unwind and report.
constexpr seconds kGrace(20);
// A released stream may reach the next wait of the same step.
constexpr std::chrono::microseconds kReleasePeriod(100);

std::string name_of_kind(int kind) {
  if (kind == NcclWatcher::kStart) return "the start";
  return kind >= 0 ? kCollectiveNames.at(static_cast<std::size_t>(kind)) : "a call";
}

// Makes the next host wait on any stream throw the message, so that results of aborted kernels are never used.
void fail_next_wait(const std::string& message) {
  CudaFault* const fault = cuda_fault();
  unsigned free = 0;
  if (!std::atomic_ref(fault->claimed).compare_exchange_strong(free, 1)) return;  // a kernel's own fault says more
  fault->values[0] =
      static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(new std::string(message)));  // never freed
  fault->raise = [](const std::int64_t* values) {
    throw Error(ExitCode::kCommunication, *reinterpret_cast<const std::string*>(static_cast<std::intptr_t>(values[0])));
  };
  std::atomic_ref(fault->ready).store(1, std::memory_order_release);
}

}  // namespace

NcclHostCall::NcclHostCall(MpiProcess& process, WatchedGroup& group, int kind) : group_(group), lock_(group.calls) {
  process.throw_if_aborted();
  group.since = WatchedGroup::Clock::now().time_since_epoch().count();
  group.host_call = kind;
}

NcclWatcher::NcclWatcher(std::shared_ptr<MpiProcess> process)
    : process_(std::move(process)), thread_([this] { watch(); }) {}

NcclWatcher::~NcclWatcher() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void NcclWatcher::add(const std::shared_ptr<WatchedGroup>& group) {
  const std::lock_guard lock(mutex_);
  groups_.push_back(group);
}

void NcclWatcher::remove(const std::shared_ptr<WatchedGroup>& group) {
  const std::lock_guard lock(mutex_);
  std::erase(groups_, group);
}

void NcclWatcher::wait_until_released(const WatchedGroup& group) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, kGrace, [&] { return group.released.load(); });
}

void NcclWatcher::watch() {
  std::unique_lock lock(mutex_);
  awake_.look(Clock::now());
  while (!changed_.wait_for(lock, kPeriod, [this] { return stop_; })) {
    awake_.look(Clock::now());
    for (const auto& group : groups_) {
      if (process_->aborted) break;
      const std::string fault = fault_of(*group);
      if (fault.empty()) continue;
      process_->abort(fault);
      fail_next_wait(fault);
    }
    if (process_->aborted) return release(lock);
  }
}

std::string NcclWatcher::fault_of(WatchedGroup& group) const {
  const milliseconds timeout = process_->options.timeout + process_->grace;
  const auto late = [&](int kind) {
    return fmt::format(
        "{} on group {}: expected all ranks within {} ms, got no answer from one of the ranks {} of the world; see "
        "whether that rank hangs or made another call",
        name_of_kind(kind), group.name, process_->options.timeout.count(), group.peers);
  };
  const int host_call = group.host_call;
  const Clock::time_point since{Clock::duration(group.since.load())};
  if (host_call >= 0 && awake_.since(since) > timeout && host_call == group.host_call) return late(host_call);

  // The exchange fails if the GPU writes meanwhile; then the stream has left the call.
  const std::atomic_ref place(group.progress->mark);
  std::uint64_t mark = place.load();
  const std::uint64_t base = std::atomic_ref(group.progress->base).load();
  const bool known = mark != 0 && mark == place.load();  // `base` belongs to `mark`
  const int kind = static_cast<int>(mark & 15) - 1;
  const bool inside = kind >= 0;
  bool seen = inside && (mark & kSeen) != 0;
  if (inside && !seen && place.compare_exchange_strong(mark, mark | kSeen)) {
    group.seen_at = Clock::now();
    seen = true;
  }
  if (known) group.recorder->set_device_progress(((mark & ~kSeen) >> 4) + base, seen, group.seen_at);
  if (seen && awake_.since(group.seen_at) > timeout) return late(kind);

  for (ncclComm* const comm : {group.comm.load(), group.graph_comm.load()}) {
    ncclResult_t result = ncclSuccess;
    if (comm == nullptr || ncclCommGetAsyncError(comm, &result) != ncclSuccess) continue;
    if (result == ncclSuccess || result == ncclInProgress) continue;
    return fmt::format(
        "{} on group {}: expected an answer from the ranks {} of the world, got NCCL's error {} ({}): {}",
        name_of_kind(kind), group.name, group.peers, static_cast<int>(result), ncclGetErrorString(result),
        ncclGetLastError(comm));
  }
  return "";
}

// Signals kernels of all groups to return before it waits for any, since freeing a group's memory waits for the GPU.
void NcclWatcher::release(std::unique_lock<std::mutex>& lock) {
  const auto groups = groups_;
  lock.unlock();
  std::vector<std::unique_lock<std::timed_mutex>> held;
  std::vector<ncclComm_t> comms;
  std::vector<PeerMemory*> shared;
  for (const auto& group : groups) {
    // A host inside NCCL that waits for a peer to connect cannot be interrupted.
    if (!held.emplace_back(group->calls, std::defer_lock).try_lock_for(seconds(2))) end_process();
    for (ncclComm* const comm : {group->comm.load(), group->graph_comm.load()})
      if (comm != nullptr) comms.push_back(comm);
    if (group->peer_memory != nullptr) shared.push_back(group->peer_memory);
  }
  auto reported = std::make_shared<std::promise<void>>();
  std::future<void> all_reported = reported->get_future();
  // The end of an abort waits for graphs with the group's calls, and so for the host; it runs in a separate thread.
  std::thread([comms, reported] {
    static_cast<void>(ncclGroupStart());
    for (ncclComm_t comm : comms) static_cast<void>(ncclCommAbort(comm));
    reported->set_value();
    static_cast<void>(ncclGroupEnd());
  }).detach();
  if (all_reported.wait_for(kGrace) != std::future_status::ready) end_process();
  held.clear();
  lock.lock();
  for (const auto& group : groups) group->released = true;
  changed_.notify_all();
  const auto end = Clock::now() + kGrace;
  while (!stop_) {
    for (PeerMemory* memory : shared) memory->release();
    changed_.wait_for(lock, kReleasePeriod);
    if (Clock::now() > end) end_process();
  }
}

void NcclWatcher::end_process() {
  std::string message;
  {
    const std::lock_guard lock(process_->mutex);
    message = process_->abort_message;
  }
  const std::string line =
      fmt::format("{}: error: [rank {}/{}] {}", program_invocation_short_name, process_->rank, process_->size, message);
  log_last_words(line);
  end_all_ranks(*process_, ExitCode::kCommunication);
}

}  // namespace megalith
