// Recorder of a group's last calls, for hang reports: their times, the current call, and a hash of the complete
// sequence. The hash is equal on all ranks of a group. Every Communicator has a recorder. Thread-safe.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace megalith {

struct CollectiveCall {
  using Clock = std::chrono::steady_clock;

  std::string_view kind;        // static string, such as "all_reduce"
  int dtype = -1;               // DType as a number; -1: a host call
  std::int64_t count = 0;       // elements that this rank passes; bytes for host calls
  int argument = -1;            // root or peer, -1: none
  bool point_to_point = false;  // a send or receive: not part of the group's sequence
  std::string label;            // the tensor: "gradients of bucket 2"
  std::uint64_t sequence = 0;   // number in the group, from 1; sends and receives are numbered separately
  Clock::time_point began{};    // on this rank
  Clock::time_point ended{};    // epoch while it runs; for a GPU's calls the time of enqueueing
  bool waits = false;           // enqueued, but not reached by the GPU
  bool runs() const { return ended == Clock::time_point{}; }
};
// `all_reduce #12 (gradients of bucket 2: fp32, 4096 elements)`
std::string to_string(const CollectiveCall& call);

class FlightRecorder {
 public:
  explicit FlightRecorder(std::string group) : group_(std::move(group)) {}
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  const std::string& group() const { return group_; }

  // Ranks of the group in the world; set before the first call.
  void set_world_ranks(std::vector<int> ranks) { world_ranks_ = std::move(ranks); }
  const std::vector<int>& world_ranks() const { return world_ranks_; }

  // Adds a call to the sequence, before it is made eagerly or by a replay. Called by one thread, in program order.
  void announce(const CollectiveCall& call);
  // Begins the call and assigns its number, in the order of announce(); one at a time.
  void begin(CollectiveCall call);
  // Ends a completed call, or a GPU's call when it is enqueued. A failed call stays open.
  void end();
  std::uint64_t calls() const;  // that began, sends and receives included: the number of the last

  // Drops all calls; the next call is #1.
  void restart();

  // Sets the GPU's progress: in call `number` since `since`, or past it. From the first report on, calls that the GPU
  // has not reached are kept, even if the host is far ahead.
  void set_device_progress(std::uint64_t number, bool runs, CollectiveCall::Clock::time_point since);

  static constexpr std::size_t kLast = 64;
  std::vector<CollectiveCall> last() const;  // at most kLast, oldest first; on a GPU, those around its current call
  std::optional<CollectiveCall> current() const;
  std::uint64_t sequence() const;  // of the last collective that began

  // Sequence announced so far, without sends and receives: length, and XXH3 hash of kind, dtype, count and root. Texts
  // of the calls are kept until forget(), up to 4,096.
  struct Sequence {
    std::uint64_t length = 0;
    std::uint64_t hash = 0;
    std::vector<std::string> calls;
  };
  Sequence sequence_so_far() const;
  void forget();

 private:
  struct DeviceProgress {
    std::uint64_t number = 0;
    bool runs = false;
    CollectiveCall::Clock::time_point since{};
  };

  const CollectiveCall* find(std::uint64_t number) const;

  const std::string group_;
  std::vector<int> world_ranks_;
  mutable std::mutex mutex_;
  std::deque<CollectiveCall> calls_;  // the newest
  std::uint64_t written_ = 0;         // number of the last entry
  std::optional<DeviceProgress> device_;
  std::uint64_t begun_ = 0;        // collectives
  std::uint64_t points_ = 0;       // sends and receives
  std::uint64_t collectives_ = 0;  // announced
  std::uint64_t hash_ = 0;
  bool keeps_ = true;
  std::vector<std::string> signatures_;
};

// JSON content of a rank's dump:
//   {"rank": 1, "world_size": 4, "time": "2026-11-21T11:34:00Z", "reason": "...", "groups": [{"group": "dp", "ranks":
//   [0, 1], "calls": [{"sequence": 12, "kind": "all_reduce", "tensor": "...", "dtype": "fp32", "count": 4096,
//   "root_or_peer": null, "state": "running", "began_ms": -5012.1, "ended_ms": null}]}]}
// A state is "ended", "running" or, on a GPU, "enqueued". Times are milliseconds relative to now. For a GPU's calls,
// except the running one, they are the host's enqueue times.
std::string dump_json(int rank, int world_size, std::string_view reason,
                      const std::vector<const FlightRecorder*>& recorders);

}  // namespace megalith
