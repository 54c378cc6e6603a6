// Executes the actions of slots (lowering.h). Copy engines copy to the host and back on two dedicated streams. Places
// on the host are planned as those on the device. The compute stream waits only for a slot's own copy, not for later
// copies. Calls never block the host. They allocate nothing except events, at a slot's first copy and in the first
// timed step.
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
    Stream& out;   // copies to the host
    Stream& back;  // copies from the host
  };
  // All references outlive this object. `host`: an arena of host memory, recording or planned. `poison`: see poison().
  ActivationTransfer(const Context& ctx, SegmentRunner& runner, const Streams& streams, Arena& host,
                     OffloadPoints points, bool poison);

  // Called before the actions of a list. `replays`: verbs may be replayed. `timed`: copies are timed.
  void begin(bool replays, bool timed = false) {
    replays_ = replays;
    waited_for_ = {};
    clock_.begin(timed);
  }
  // Called while the compute stream captures, after this verb. Copies of its outputs start at this point in each
  // replay.
  void written_in_graph(const Action& verb);

  // A call out of order is an error with exit code 9.
  void offload(const Action& action);
  void wait_offload(const Action& action);
  void reload(const Action& action);
  void wait_reload(const Action& action);

  // While on, rebinds views without copying, for captures that execute nothing.
  void rehearse(bool on) { rehearses_ = on; }
  // Sets a device tensor, [2] int64. Each step adds the bytes of bounded slots that it copies to the host and back.
  void count_into(const Tensor& bytes) { counted_ = bytes; }
  // Switches poisoning. Device memory becomes NaN when a slot leaves it, and ahead of the copy back.
  void poison(bool on) { poison_ = on; }
  // Marks all slots as on the device, after an aborted list. The streams must be idle.
  void reset();
  void synchronize();

  // Counts since construction, including warm-up.
  struct Stats {
    std::int64_t offloads = 0, reloads = 0;
    std::int64_t from_within = 0;                    // offloads that wait for an event inside of a graph
    std::int64_t bytes_out = 0, bytes_back = 0;      // of complete slots
    std::int64_t bounded_out = 0, bounded_back = 0;  // part of these that count_into() measures
    friend bool operator==(const Stats&, const Stats&) = default;
  };
  const Stats& stats() const { return stats_; }
  OffloadStats times() const { return clock_.read(); }  // of the last timed list, which must be complete

 private:
  enum class State : std::uint8_t { kHere, kLeaving, kLeft, kComing };
  struct Flight {  // state of a slot in a column
    State state = State::kHere;
    bool in_graph = false;  // a graph records `written`
    Arena::Place device;    // place in forward
    Tensor rows;            // rows in use by their bound; absent: complete storage
    std::int64_t sure = 0;  // leading rows for the copy engine; a kernel copies the rest
    void* host = nullptr;
    void* target = nullptr;
    CopyClock::Span* timed = nullptr;  // current or last copy
    Event written{"slot written"}, left{"slot is on the host"}, room{"room for a slot"}, back{"slot is back"};
  };

  const OffloadSlot& slot(const Action& action) const { return points_.slots[static_cast<std::size_t>(action.item)]; }
  void wait_until_written(const Action& action);
  Tensor rows_in_use(const Action& action, const Arena::Place& place) const;
  // Counter of one direction: 0 out, 1 back.
  Tensor count_of(int way) const { return counted_ ? counted_.slice(0, way, 1) : Tensor(); }
  Flight& pass(const Action& action, State from, State to);
  void fill_with_nan(void* begin, std::size_t bytes);

  const Context& ctx_;
  SegmentRunner& runner_;
  Streams streams_;
  Arena& host_;
  const OffloadPoints points_;
  std::vector<int> first_written_;  // of each slot: first slot with the same last writer
  // Source of a copy to the host that the last wait covered: a verb or, between layers, a layer.
  struct Source {
    int column = -1, microbatch = -1, verb = -1, layer = -1;
    friend bool operator==(const Source&, const Source&) = default;
  };
  Source waited_for_;
  bool poison_;
  bool replays_ = false, rehearses_ = false;
  std::map<std::pair<int, int>, Flight> flights_;  // key: slot, column
  Tensor counted_;
  Stats stats_;
  CopyClock clock_;
};

}  // namespace megalith
