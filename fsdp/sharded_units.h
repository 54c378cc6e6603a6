// Units of parameters that data-parallel ranks share out and gather for as long as something computes with them
// (ZeRO stage 3, arXiv:1910.02054; PyTorch FSDP, arXiv:2304.11277), in slots at fixed addresses. A rank calls the
// functions in the order of its actions (unshard_lowering.h), or from its own hooks at the same points; all ranks of
// the group in the same order. A call out of order is an error with exit code 9.
//
// Where the ranks' GPUs read each other's memory, gathers are copies by copy engines, sums one pass over such copies:
// neither takes a multiprocessor from the products beside it while data is on its way.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "core/device/event.h"
#include "fsdp/unit_slots.h"
#include "parallel/comm/communicator.h"
#include "parallel/comm/memory_sharing.h"

namespace megalith {

// For copies of the peers' gradients, half of which are summed while the next are copied: a sum waits for the product
// that runs at the moment, so few are better.
inline constexpr std::size_t kSumRoom = std::size_t{512} << 20;

struct UnitStreams {
  Stream& compute;
  Stream& gather;  // each with a group of its own
  Stream& reduce;
};

struct UnitGroups {
  Communicator& gather;
  Communicator& reduce;               // of the same ranks
  Communicator* instances = nullptr;  // those with the same shard, in hybrid sharding
  bool copies = false;                // of the peers' shards; set by share()
  bool sum_copies = false;            // likewise of their gradients
};

class ShardedUnits {
 public:
  // `parameters` are allocated; all outlive this object. The first of `groups` are of dense units, the last of experts.
  // `sum_room`: most bytes for copies of the peers' gradients, 0 where no GPUs are. `poison`: see poison_slots().
  ShardedUnits(ParameterStore& parameters, const UnitSlots& slots, std::vector<UnitGroups> groups,
               const UnitStreams& streams, MemoryPool& pool, std::size_t sum_room, bool poison);

  // Collective, once, before the first gather: lets the peers copy shards and gradients themselves where they can.
  void share();

  // Before the actions of a list: starts the gathers that it finds started (UnshardPoints::ahead), unless they are.
  void begin(std::span<const int> ahead);
  // Nothing is whole any more; for a list that broke off. The streams are empty.
  void reset();

  void unshard(int unit);
  void wait_unshard(int unit);
  void reshard(int unit);
  // Weights of the shards were written on the compute stream: later gathers wait for it.
  void updated();

  // Between the two every backward_weight of the unit's segments: what one op writes is not zero before.
  void bind_gradients(int unit);
  // Into the shard: its first sum since begin_sums() replaces what is there, later ones are added in their order. With
  // gradients of a narrower dtype in the slots, the parts are summed in fp32 where GPUs read each other's memory, else
  // as the communicator sums that dtype.
  void reduce_shard(int unit);
  void sum_instances(int unit);  // of what this rank owns, where that is less than its shard
  // Behind updated(), where a rank owns less than its shard: later gathers of the unit wait for it.
  void gather_instances(int unit);
  void begin_sums();
  // The compute stream may read the shards' gradients, having waited for all of the reductions' stream.
  void finish_sums();

  // From now on: weights become NaN where they are given up, gradients where they are bound, before they begin.
  void poison_slots(bool on) { poison_ = on; }
  // Groups whose ranks read each other's shards or gradients.
  std::vector<MemorySharing*> sharing() const;
  // Since construction.
  std::int64_t gathers() const { return gathers_; }
  std::int64_t reductions() const { return reductions_; }
  // What is enqueued on the compute stream from here on comes after all gathers under way, and reads whole shards.
  void wait_for_all();
  // Of the slots' addresses.
  std::uint64_t digest() const;

 private:
  enum class State : std::uint8_t { kSharded, kGathered, kWhole };
  struct Slot {
    Tensor memory;
    int tenant = -1;
    Event free{"unit slot free"};    // its last tenant was read, or reduced
    Event ready{"unit slot ready"};  // gathered, or gradients complete

    Tensor place(const ParameterUnit& unit) const { return memory.slice(0, 0, unit.numel); }
  };

  ParameterUnit& unit(int index) { return parameters_.units()[static_cast<std::size_t>(index)]; }
  Slot& slot_of(std::deque<Slot>& slots, const std::vector<int>& of, int unit);
  const UnitGroups& groups_of(const ParameterUnit& unit) const {
    return unit.kind == UnitKind::kDense ? groups_.front() : groups_.back();
  }
  void fill_with_nan(const Tensor& whole);  // where slots are poisoned
  // Over the ranks, into or onto its shard.
  void sum_copies(const ParameterUnit& of, const Tensor& whole, bool is_first);
  void sum_parts(const ParameterUnit& of, const Tensor& whole, bool is_first);
  [[noreturn]] void fail_call(const char* call, int unit, const char* why);

  ParameterStore& parameters_;
  const UnitSlots slots_;
  std::vector<UnitGroups> groups_;
  UnitStreams streams_;
  bool poison_;
  Tensor sum_room_;  // absent: none
  std::deque<Slot> weights_, gradients_;
  std::vector<State> states_;  // of each unit's weights
  std::vector<bool> summed_;   // of each unit's gradients, since begin_sums()
  Event updated_{"shards updated"};
  std::deque<Event> complete_;      // of each unit, where a rank owns less than its shard: that is gathered
  Event* last_complete_ = nullptr;  // of these
  Event summed_up_{"shards summed"};
  std::int64_t gathers_ = 0, reductions_ = 0;
};

}  // namespace megalith
