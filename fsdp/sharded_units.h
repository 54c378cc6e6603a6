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

namespace megalith {

struct UnitStreams {
  Stream& compute;
  Stream& gather;  // each with a group of its own
  Stream& reduce;
};

struct UnitGroups {
  Communicator& gather;
  Communicator& reduce;               // of the same ranks
  Communicator* instances = nullptr;  // those with the same shard, in hybrid sharding
};

class ShardedUnits {
 public:
  // `parameters` are allocated; all outlive this object. `sum_room`: most bytes for copies of the peers' gradients, 0
  // where no GPUs are. `poison`: see poison_slots().
  ShardedUnits(ParameterStore& parameters, const UnitSlots& slots, const UnitGroups& groups, const UnitStreams& streams,
               MemoryPool& pool, std::size_t sum_room, bool poison);

  // Collective, once, before the first gather: lets the peers copy shards and gradients themselves where they can.
  void share();

  // Before the actions of a list: starts the gathers that it finds started (UnshardPoints::ahead), unless they are.
  void begin(std::span<const int> ahead);
  // Nothing is whole any more; for a list that broke off. The streams are empty.
  void reset();
  // All units' tensors are where they will be while they are whole, for who captures verbs and runs none, before a
  // list's first action; then as they were.
  void bind_all();
  void bind_whole();

  void unshard(int unit);
  void wait_unshard(int unit);
  void reshard(int unit);
  // Weights of the shards were written on the compute stream: later gathers wait for it.
  void updated();

  // Between the two every backward_weight of the unit's segments: what one op writes is not zero before.
  void bind_gradients(int unit);
  // Into the shard: its first sum since begin_sums() replaces what is there, later ones are added in their order.
  void reduce_shard(int unit);
  void sum_instances(int unit);
  void begin_sums();
  // The compute stream may read the shards' gradients.
  void finish_sums();

  // From now on: weights become NaN where they are given up, gradients where they are bound, before they begin.
  void poison_slots(bool on) { poison_ = on; }
  bool gathers_by_copies() const { return copies_; }
  bool sums_by_copies() const { return sums_copies_; }
  // Since construction.
  std::int64_t gathers() const { return gathers_; }
  std::int64_t reductions() const { return reductions_; }
  // What is enqueued on the compute stream from here on comes after all gathers under way.
  void wait_for_all();
  // Of the slots' addresses.
  std::uint64_t digest() const;

 private:
  enum class State : std::uint8_t { kSharded, kGathered, kWhole };
  struct Slot {
    Tensor memory;
    int tenant = -1;
    Event free{"unit slot free"};    // its last tenant was read, or reduced
    std::int64_t freed_at = 0;       // which record of its stream that is; 0: none yet
    Event ready{"unit slot ready"};  // gathered, or gradients complete
  };

  ParameterUnit& unit(int index) { return parameters_.units()[static_cast<std::size_t>(index)]; }
  Slot& slot_of(std::deque<Slot>& slots, const std::vector<int>& of, int unit);
  void gather(const ParameterUnit& unit, const Tensor& whole);
  void fill_with_nan(const Tensor& whole);  // where slots are poisoned
  // Unless the stream saw that record, or a later one of the same stream.
  static void wait(Stream& stream, Event& event, std::int64_t recorded_as, std::int64_t& saw);
  [[noreturn]] void fail_call(const char* call, int unit, const char* why);

  ParameterStore& parameters_;
  const UnitSlots slots_;
  UnitGroups groups_;
  UnitStreams streams_;
  bool poison_;
  bool copies_ = false, sums_copies_ = false;  // from the peers' memory
  Tensor sum_room_;                            // absent: none
  std::deque<Slot> weights_, gradients_;
  std::vector<State> states_;  // of each unit's weights
  std::vector<bool> summed_;   // of each unit's gradients, since begin_sums()
  Event updated_{"shards updated"};
  std::int64_t updated_at_ = 0;
  Event summed_up_{"shards summed"};
  std::int64_t compute_records_ = 0, reduce_records_ = 0;  // of the events here
  std::int64_t gather_saw_ = 0, compute_saw_ = 0;          // of these the last one that was waited for
  std::int64_t gathers_ = 0, reductions_ = 0;
};

}  // namespace megalith
