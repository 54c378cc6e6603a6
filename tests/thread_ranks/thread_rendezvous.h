// Meeting point of the threads of a group. All ranks announce each collective; the calls are compared, and each rank
// reads the announced buffers of its peers.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/tensor/tensor.h"
#include "parallel/comm/communicator.h"

namespace megalith {

struct ThreadGroup;

// Shared by all groups of a world: one lock, and a list of the threads' waits, so that an abort reaches each of them.
struct ThreadWorldState {
  std::mutex mutex;
  std::set<std::condition_variable*> signals;
  std::chrono::milliseconds timeout{};
  bool shares_messages = false;
  bool aborted = false;
  ExitCode abort_code = ExitCode::kCommunication;
  std::string abort_message;
  std::shared_ptr<ThreadGroup> world;  // until its ranks took it

  void abort(ExitCode code, const std::string& message);
  bool is_abort(const Error& error);  // one that throw_if_aborted threw
  // Both with the lock held. The first message stays.
  void abort_locked(ExitCode code, const std::string& message);
  void throw_if_aborted() const;
};

// Wakes the threads that wait for one group, and no others of the world.
class ThreadSignal {
 public:
  explicit ThreadSignal(ThreadWorldState& world);
  ~ThreadSignal();
  ThreadSignal(const ThreadSignal&) = delete;
  ThreadSignal& operator=(const ThreadSignal&) = delete;

  std::condition_variable changed;

 private:
  ThreadWorldState& world_;
};

// Announcement of a rank. Pointers stay valid until the last barrier of the call.
struct ThreadCall {
  const char* name = "";
  int argument = -1;                                   // the reduction or root, equal on all ranks
  std::optional<DType> dtype;                          // none: a call of the host
  std::int64_t numel = 0;                              // equal on all ranks
  const Tensor* buffer = nullptr;                      // read by peers
  const std::vector<std::int64_t>* in_rows = nullptr;  // all_to_all_v only
  const std::vector<std::int64_t>* out_rows = nullptr;
  const ExchangeRows* rows = nullptr;  // exchange_rows only
  const std::string* text = nullptr;   // host calls
  bool flag = false;
  int color = 0;
  int key = 0;
};

class ThreadRendezvous {
 public:
  ThreadRendezvous(ThreadWorldState& world, std::string group, int size);

  // Waits until all ranks announced a call. Throws on every rank if the calls differ, if the world was or is aborted,
  // or if the last rank is late. After a return the peers may read the announced data. The call must then continue to
  // its last meet() without throwing.
  void begin(int rank, const ThreadCall& call);
  // A further barrier of the call: always completes, because no rank leaves a call that began.
  void meet();

  // Between begin() and the last meet().
  const ThreadCall& call(int rank) const { return calls_[static_cast<std::size_t>(rank)]; }

 private:
  std::optional<std::string> mismatch() const;
  // The last rank unlocks, wakes the others and returns true.
  bool arrive(std::unique_lock<std::mutex>& lock);

  ThreadWorldState& world_;
  ThreadSignal signal_;
  std::string group_;
  int size_;
  std::vector<ThreadCall> calls_;
  int arrived_ = 0;
  std::uint64_t generation_ = 0;
};

// One direction between two ranks: the sender announces, the receiver copies.
struct ThreadChannel {
  enum class State : std::uint8_t { kEmpty, kOffered, kTaken };
  State state = State::kEmpty;
  const Tensor* buffer = nullptr;
  std::optional<std::size_t> place;  // of the Send
};

struct ThreadGroup {
  ThreadGroup(std::shared_ptr<ThreadWorldState> world_state, const std::string& name, int group_size);

  std::shared_ptr<ThreadWorldState> world;
  int size;
  ThreadRendezvous streams;                            // collectives of the streams' workers
  ThreadRendezvous host;                               // the control plane
  std::vector<ThreadChannel> channels;                 // [from * size + to]
  ThreadSignal channel_signal;                         // a channel's state changed
  std::vector<std::shared_ptr<ThreadGroup>> children;  // during a split: [rank of its first member]
  std::vector<std::span<std::byte>> shared;            // memory of each rank for messages; empty: not shared

  ThreadChannel& channel(int from, int to) { return channels[static_cast<std::size_t>(from * size + to)]; }
};

}  // namespace megalith
