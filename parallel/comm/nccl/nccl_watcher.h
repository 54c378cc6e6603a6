// Notices that NCCL calls fail or hang, also those inside replayed graphs, and ends them. Streams mark in host memory
// which call they are in: the marks are writes by the GPU's front end, which take no multiprocessor and can be
// captured. A thread reads the marks, tells the groups' flight recorders, by which MpiWatcher reports late calls, and
// reads NCCL's asynchronous errors. When a call takes longer than the timeout and no MpiWatcher ends the run, or the
// process was aborted, it aborts all groups, so that kernels that wait for peers return and the host wakes up and
// throws. If the process does not end then, because a library call does not return, it prints the message and ends all
// ranks itself. Needs no CUDA header.
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
  std::string peers;  // their ranks in the world: "1, 3"
  std::atomic<ncclComm*> comm{nullptr};
  std::atomic<ncclComm*> graph_comm{nullptr};  // of calls in graphs; null: none was rehearsed
  PeerMemory* peer_memory = nullptr;           // guarded by calls; null: none is shared
  std::shared_ptr<FlightRecorder> recorder;
  // Pinned; written by the streams. The call's number at the recorder is its id in `mark`, by which a captured call is
  // the same at each replay, plus `base`.
  struct Progress {
    std::uint64_t mark = 0;  // inside() the call that a stream is in, or behind() the last one; 0: neither
    std::uint64_t base = 0;
  };
  Progress* progress = nullptr;
  std::timed_mutex calls;              // held while the host is inside NCCL
  std::atomic<int> host_call{-1};      // the kind of that call, Collective's index or kStart
  std::atomic<std::int64_t> since{0};  // its start, in Clock's ticks
  std::atomic<bool> released{false};   // they are being aborted and no longer the group's

  // Of the watcher's thread:
  std::uint64_t seen = 0;
  Clock::time_point seen_at;
};

// While it lives the host is inside NCCL, as the watcher sees it. Throws if the process was aborted meanwhile.
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
  // After an abort of the process: until the kernels of this group have been told to return.
  void wait_until_released(const WatchedGroup& group);

  // What a mark is set to.
  static std::uint64_t inside(std::uint64_t id, int kind) { return (id << 4) | static_cast<unsigned>(kind + 1); }
  static std::uint64_t behind(std::uint64_t id) { return id << 4; }
  static constexpr int kStart = static_cast<int>(kCollectiveNames.size());  // of NCCL
  static_assert(kStart < 15);                                               // four bits of a mark

 private:
  void watch();
  std::string fault_of(WatchedGroup& group) const;  // empty if all is well
  void release(std::unique_lock<std::mutex>& lock);
  [[noreturn]] void end_process();

  std::shared_ptr<MpiProcess> process_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;  // guarded by mutex_, like groups_
  std::vector<std::shared_ptr<WatchedGroup>> groups_;
  AwakeTime awake_;  // of the watcher's thread
  std::thread thread_;
};

}  // namespace megalith
