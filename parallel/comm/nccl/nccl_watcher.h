// Watcher that detects failed or hanging NCCL calls, also inside replayed graphs, and ends them. Streams mark their
// current call in host memory. The GPU's front end writes the marks, which uses no multiprocessor and can be captured.
// A thread reads the marks and NCCL's asynchronous errors, and updates the groups' flight recorders, by which
// MpiWatcher reports late calls. After a timeout without an MpiWatcher, or after an abort of the process, the thread
// aborts all groups. Waiting kernels then return, and the host throws. If a library call prevents the process from
// ending, the thread prints the message and ends all ranks. No CUDA header is required.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "parallel/comm/collective.h"
#include "parallel/watch/awake_time.h"

struct ncclComm;

namespace megalith {

class FlightRecorder;
struct MpiProcess;
class PeerMemory;

struct WatchedGroup {
  using Clock = std::chrono::steady_clock;

  std::string name;
  std::string peers;  // the peers' ranks in the world: "1, 3"
  std::atomic<ncclComm*> comm{nullptr};
  std::atomic<ncclComm*> graph_comm{nullptr};  // for graph calls; null: not rehearsed
  PeerMemory* peer_memory = nullptr;           // guarded by calls; null: not shared
  std::shared_ptr<FlightRecorder> recorder;
  // Pinned; written by the streams. A call's number in the recorder is its id in `mark`, which is equal at each replay
  // of a captured call, plus `base`.
  struct Progress {
    std::uint64_t mark = 0;  // inside() the stream's current call, or after() the last one; 0: neither
    std::uint64_t base = 0;
  };
  Progress* progress = nullptr;
  std::timed_mutex calls;              // locked while the host is inside NCCL
  std::atomic<int> host_call{-1};      // kind of that call: Collective's index or kStart
  std::atomic<std::int64_t> since{0};  // start of that call, in Clock's ticks
  std::atomic<bool> released{false};   // the communicators are being aborted

  // Used by the watcher's thread:
  std::uint64_t seen = 0;
  Clock::time_point seen_at;
};

// Scope in which the host is inside NCCL. Throws if the process was aborted meanwhile.
class NcclHostCall {
 public:
  NcclHostCall(MpiProcess& process, WatchedGroup& group, int kind);
  ~NcclHostCall() { group_.host_call = -1; }
  NcclHostCall(const NcclHostCall&) = delete;
  NcclHostCall& operator=(const NcclHostCall&) = delete;

 private:
  WatchedGroup& group_;
  std::lock_guard<std::timed_mutex> lock_;
};

class NcclWatcher {
 public:
  explicit NcclWatcher(std::shared_ptr<MpiProcess> process);
  ~NcclWatcher();
  NcclWatcher(const NcclWatcher&) = delete;
  NcclWatcher& operator=(const NcclWatcher&) = delete;

  void add(const std::shared_ptr<WatchedGroup>& group);
  void remove(const std::shared_ptr<WatchedGroup>& group);
  // Waits, after an abort of the process, until the kernels of this group were signaled to return.
  void wait_until_released(const WatchedGroup& group);

  // Values of a mark.
  static std::uint64_t inside(std::uint64_t id, int kind) { return (id << 4) | static_cast<unsigned>(kind + 1); }
  static std::uint64_t after(std::uint64_t id) { return id << 4; }
  static constexpr int kStart = static_cast<int>(kCollectiveNames.size());  // start of NCCL
  static_assert(kStart < 15);                                               // a mark has four bits for the kind

 private:
  void watch();
  std::string fault_of(WatchedGroup& group) const;  // empty without a fault
  void release(std::unique_lock<std::mutex>& lock);
  [[noreturn]] void end_process();

  std::shared_ptr<MpiProcess> process_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;  // guarded by mutex_, as is groups_
  std::vector<std::shared_ptr<WatchedGroup>> groups_;
  AwakeTime awake_;  // for the watcher's thread
  std::thread thread_;
};

}  // namespace megalith
