// Carries out the actions of slots (lowering.h): copies by copy engines on two streams of their own, to the host and
// back, into places that are planned as the device's are. The compute stream waits for a slot's own copy alone, not for
// those behind it. Nothing of it allocates, but for the events of a slot's first way and of the first timed step;
// nothing makes the host wait.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "core/device/event.h"
#include "core/tensor/tensor.h"
#include "offload/copy_clock.h"
#include "offload/slots.h"
#include "parallel/pipeline_parallel/segment_runner.h"

namespace megalith {

class ActivationTransfer {
 public:
  struct Streams {
    Stream& out;   // to the host
    Stream& back;  // each first of its direction
  };
  // All outlive this object but `points`. `host`: an arena of the host's memory, recording or planned. `poison`: see
  // poison().
  ActivationTransfer(const Context& ctx, SegmentRunner& runner, const Streams& streams, Arena& host,
                     OffloadPoints points, bool poison);

  // Before the actions of a list: whether its verbs may be replayed, and whether its copies are timed.
  void begin(bool replays, bool timed = false) {
    replays_ = replays;
    waited_for_ = {};
    clock_.begin(timed);
  }
  // The compute stream captures, and has captured this verb: copies of what it wrote will start here in each replay.
  void written_in_graph(const Action& verb);

  // A call out of order is an error with exit code 9.
  void offload(const Action& action);
  void wait_offload(const Action& action);
  void reload(const Action& action);
  void wait_reload(const Action& action);

  // While on, views move and nothing is copied: for who captures verbs and runs none.
  void rehearse(bool on) { rehearses_ = on; }
  // [2] int64 on the device, of which one step's copies to the host and back add what they move of bounded slots.
  void count_into(const Tensor& bytes) { counted_ = bytes; }
  // From now on: memory becomes NaN where it is given up, and what a copy will come back into before it does.
  void poison(bool on) { poison_ = on; }
  // Nothing is under way any more; for a list that broke off. The streams are empty.
  void reset();
  void synchronize();

  // Since construction, warm-up included.
  struct Stats {
    std::int64_t offloads = 0, reloads = 0;
    std::int64_t from_within = 0;                    // offloads that wait for an event inside a graph
    std::int64_t bytes_out = 0, bytes_back = 0;      // whole slots
    std::int64_t bounded_out = 0, bounded_back = 0;  // of them those of which count_into() tells what moved
    friend bool operator==(const Stats&, const Stats&) = default;
  };
  const Stats& stats() const { return stats_; }
  OffloadStats times() const { return clock_.read(); }  // of the last timed list, which is over

 private:
  enum class State : std::uint8_t { kHere, kLeaving, kLeft, kComing };
  struct Flight {  // of a slot in a column
    State state = State::kHere;
    bool in_graph = false;  // records `written`
    Arena::Place device;    // forward's
    Tensor rows;            // of it, as many as their bound says; absent: all of it
    std::int64_t sure = 0;  // of them those that a copy engine takes; a kernel those behind them
    void* host = nullptr;
    void* target = nullptr;
    CopyClock::Span* timed = nullptr;  // the copy under way, or the last one
    Event written{"slot written"}, left{"slot is on the host"}, room{"room for a slot"}, back{"slot is back"};
  };

  const OffloadSlot& slot(const Action& action) const { return points_.slots[static_cast<std::size_t>(action.item)]; }
  void wait_until_written(const Action& action);
  Tensor rows_in_use(const Action& action, const Arena::Place& place) const;
  // Where copies in one direction add their bytes: 0 out, 1 back.
  Tensor count_of(int way) const { return counted_ ? counted_.slice(0, way, 1) : Tensor(); }
  Flight& pass(const Action& action, State from, State to);
  void fill_with_nan(void* begin, std::size_t bytes);

  const Context& ctx_;
  SegmentRunner& runner_;
  Streams streams_;
  Arena& host_;
  const OffloadPoints points_;
  std::vector<int> first_written_;  // of the slots that the same verb wrote last, by slot
  // Of the copies to the host what the last wait was for: what a verb or, between layers, a layer left there.
  struct Source {
    int column = -1, microbatch = -1, verb = -1, layer = -1;
    friend bool operator==(const Source&, const Source&) = default;
  };
  Source waited_for_;
  bool poison_;
  bool replays_ = false, rehearses_ = false;
  std::map<std::pair<int, int>, Flight> flights_;  // by slot and column
  Tensor counted_;
  Stats stats_;
  CopyClock clock_;
};

}  // namespace megalith
