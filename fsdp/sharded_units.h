// Sharded units of parameters, gathered only while an op reads them (ZeRO stage 3, arXiv:1910.02054; PyTorch FSDP,
// arXiv:2304.11277). Gathered units lie in slots at fixed addresses. A rank calls the functions in the order of its
// actions (unshard_lowering.h), or from hooks at the same points. All ranks of a group use the same order. A call out
// of order is an error with exit code 9.
// If the ranks' GPUs can read each other's memory, copy engines carry out the gathers. Reductions sum such copies in
// one pass. Neither occupies multiprocessors during the transfer.
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

// Bytes for copies of the peers' gradients: one half is summed while the other is filled. Each sum waits for the
// running GEMM, so few sums are better.
inline constexpr std::size_t kSumRoom = std::size_t{512} << 20;

struct UnitStreams {
  Stream& compute;
  Stream& gather;  // gather and reduce: each with a dedicated group
  Stream& reduce;
};

struct UnitGroups {
  Communicator& gather;
  Communicator& reduce;               // same ranks as `gather`
  Communicator* instances = nullptr;  // ranks with the same shard, for hybrid sharding
  bool copies = false;                // gathers copy the peers' shards; set by share()
  bool sum_copies = false;            // reductions copy the peers' gradients; set by share()
};

class ShardedUnits {
 public:
  // `parameters` are allocated; all arguments outlive this object. `groups` begins with the group of dense units and
  // ends with the group of expert units. `sum_room`: maximum bytes for copies of the peers' gradients, 0 without GPUs.
  // `poison`: see poison_slots().
  ShardedUnits(ParameterStore& parameters, const UnitSlots& slots, std::vector<UnitGroups> groups,
               const UnitStreams& streams, MemoryPool& pool, std::size_t sum_room, bool poison);

  // Collective, once, before the first gather. Lets the peers copy shards and gradients directly where possible.
  void share();

  // Starts the gathers that a list expects as already started (UnshardPoints::ahead). Called before the list's actions.
  void begin(std::span<const int> ahead);
  // Marks all units as sharded, after an aborted list. The streams must be idle.
  void reset();

  void unshard(int unit);
  void wait_unshard(int unit);
  void reshard(int unit);
  // Makes later gathers wait for the update of the shards on the compute stream.
  void updated();

  // Binds the unit's gradient slot, ahead of its backward_weight calls. A gradient that one op writes is not zeroed.
  void bind_gradients(int unit);
  // Reduces the unit's gradients into its shard. The first sum since begin_sums() overwrites the shard; later sums are
  // added in call order. Slot gradients narrower than the shard are summed in fp32 if GPUs read each other's memory.
  // Otherwise the communicator sums them in their own dtype.
  void reduce_shard(int unit);
  void sum_instances(int unit);  // over the instances; into the owned part if that is smaller
  // Gathers the shard from its owned parts, after updated(). Later gathers of the unit wait for it.
  void gather_instances(int unit);
  void begin_sums();
  // Makes the compute stream wait for all sums on the reduce stream.
  void finish_sums();

  // Switches poisoning: resharded weights become NaN, and so do gradients when they are bound.
  void poison_slots(bool on) { poison_ = on; }
  // Groups whose ranks read each other's shards or gradients.
  std::vector<MemorySharing*> sharing() const;
  // Numbers of calls since construction.
  std::int64_t gathers() const { return gathers_; }
  std::int64_t reductions() const { return reductions_; }
  // Makes the compute stream wait for all gathers in flight and for complete shards.
  void wait_for_all();
  // Digest of the slots' addresses.
  std::uint64_t digest() const;

 private:
  enum class State : std::uint8_t { kSharded, kGathered, kWhole };
  struct UnitSlot {
    Tensor memory;
    int tenant = -1;
    Event free{"unit slot free"};    // last occupant was read or reduced
    Event ready{"unit slot ready"};  // weights gathered, or gradients complete

    Tensor place(const ParameterUnit& unit) const { return memory.slice(0, 0, unit.numel); }
  };

  ParameterUnit& unit(int index) { return parameters_.units()[static_cast<std::size_t>(index)]; }
  UnitSlot& slot_of(std::deque<UnitSlot>& slots, const std::vector<int>& of, int unit);
  const UnitGroups& groups_of(const ParameterUnit& unit) const {
    return unit.kind == UnitKind::kDense ? groups_.front() : groups_.back();
  }
  void fill_with_nan(const Tensor& whole);  // only if slots are poisoned
  // Reduce the gradients over the ranks and write or add them to the shard.
  void sum_copies(const ParameterUnit& of, const Tensor& whole, bool is_first);
  void sum_parts(const ParameterUnit& of, const Tensor& whole, bool is_first);
  [[noreturn]] void fail_call(const char* call, int unit, const char* why);

  ParameterStore& parameters_;
  const UnitSlots slots_;
  std::vector<UnitGroups> groups_;
  UnitStreams streams_;
  bool poison_;
  Tensor sum_room_;  // absent if unused
  std::deque<UnitSlot> weights_, gradients_;
  std::vector<State> states_;  // state of each unit's weights
  std::vector<bool> summed_;   // per unit: gradients were reduced since begin_sums()
  Event updated_{"shards updated"};
  std::deque<Event> complete_;      // per unit: shard is complete after gather_instances()
  Event* last_complete_ = nullptr;  // latest recorded of `complete_`
  Event summed_up_{"shards summed"};
  std::int64_t gathers_ = 0, reductions_ = 0;
};

}  // namespace megalith
