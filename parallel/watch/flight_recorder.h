// What a group communicated last, for the report of a hang: the last calls with their times, the one that runs now, and
// a hash of the whole sequence, which is the same on all ranks of a group. Every Communicator has one. Thread-safe.
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

  std::string_view kind;        // "all_reduce", of static lifetime
  int dtype = -1;               // DType as a number; -1: a call of the host
  std::int64_t count = 0;       // elements this rank passes; for the host's calls bytes
  int argument = -1;            // the root or the peer, -1: none
  bool point_to_point = false;  // a send or receive: not part of the group's sequence
  std::string label;            // the tensor: "gradients of bucket 2"
  std::uint64_t sequence = 0;   // its number in the group, from 1; sends and receives have numbers of their own
  Clock::time_point began{};    // on this rank
  Clock::time_point ended{};    // the epoch while it runs; for a GPU's calls when they were enqueued
  bool waits = false;           // enqueued, but the GPU has not come to it
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

  // The group's ranks as the world counts them; before the first call.
  void set_world_ranks(std::vector<int> ranks) { world_ranks_ = std::move(ranks); }
  const std::vector<int>& world_ranks() const { return world_ranks_; }

  // The rank will make the call, eagerly or by a replay: adds it to the sequence. By one thread, in program order.
  void announce(const CollectiveCall& call);
  // The call begins, in the order of announce(), and gets its number; one at a time.
  void begin(CollectiveCall call);
  // Only a call that came to its end; one that failed stays as it is. A GPU's call was enqueued.
  void end();
  std::uint64_t calls() const;  // that began, sends and receives included: the number of the last

  // Drops all calls; the next is #1.
  void restart();

  // Where the GPU is: in call `number` since `since`, or beyond it. Calls that it has not come to are kept from the
  // first report on, however far the host is ahead.
  void set_device_progress(std::uint64_t number, bool runs, CollectiveCall::Clock::time_point since);

  static constexpr std::size_t kLast = 64;
  std::vector<CollectiveCall> last() const;  // at most kLast, oldest first; on a GPU those around the one that it is in
  std::optional<CollectiveCall> current() const;
  std::uint64_t sequence() const;  // of the last collective that began

  // The sequence announced so far, without sends and receives: its length and XXH3 hash of kind, dtype, count and root,
  // and while it is kept (until forget(), and at most 4,096 calls) each of them as a text.
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
  std::uint64_t written_ = 0;         // number of the last of them
  std::optional<DeviceProgress> device_;
  std::uint64_t begun_ = 0;        // collectives
  std::uint64_t points_ = 0;       // sends and receives
  std::uint64_t collectives_ = 0;  // announced
  std::uint64_t hash_ = 0;
  bool keeps_ = true;
  std::vector<std::string> signatures_;
};

// The content of a rank's dump, a JSON object:
//   {"rank": 1, "world_size": 4, "time": "2026-11-21T11:34:00Z", "reason": "...", "groups": [{"group": "dp", "ranks":
//   [0, 1], "calls": [{"sequence": 12, "kind": "all_reduce", "tensor": "...", "dtype": "fp32", "count": 4096,
//   "root_or_peer": null, "state": "running", "began_ms": -5012.1, "ended_ms": null}]}]}
// A state is "ended", "running" or, on a GPU, "enqueued". Times are milliseconds relative to now; on a GPU, but for the
// call that runs, those of the host that enqueued.
std::string dump_json(int rank, int world_size, std::string_view reason,
                      const std::vector<const FlightRecorder*>& recorders);

}  // namespace megalith
