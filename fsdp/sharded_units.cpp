#include "fsdp/sharded_units.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "core/base/digest.h"
#include "core/ops/elementwise/elementwise.h"
#include "core/ops/op.h"

namespace megalith {

namespace {

constexpr std::int64_t kSlotAlignment = 128;  // elements

}  // namespace

ShardedUnits::ShardedUnits(ParameterStore& parameters, const UnitSlots& slots, std::vector<UnitGroups> groups,
                           const UnitStreams& streams, MemoryPool& pool, std::size_t sum_room, bool poison)
    : parameters_(parameters),
      slots_(slots),
      groups_(std::move(groups)),
      streams_(streams),
      poison_(poison),
      states_(parameters.units().size(), State::kSharded),
      summed_(parameters.units().size(), false) {
  for (const ParameterUnit& unit : parameters.units()) complete_.emplace_back("shard of " + unit.name);
  // Allocates all slots of a kind as one block, which peers map as one.
  const auto allocate = [&](std::deque<UnitSlot>& to, const std::vector<std::int64_t>& elements,
                            const std::vector<int>& of, Tensor ParameterUnit::*shard, std::optional<DType> given,
                            MemoryCategory category) {
    if (elements.empty()) return;
    const auto tenant = std::ranges::find_if(of, [](int slot) { return slot != UnitSlots::kResident; }) - of.begin();
    const DType dtype = given.value_or((unit(static_cast<int>(tenant)).*shard).dtype);
    const auto aligned = [](std::int64_t count) {
      return (count + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment;
    };
    std::int64_t all = 0;
    for (const std::int64_t count : elements) all += aligned(count);
    const auto bytes = static_cast<std::size_t>(all) * size_of(dtype);
    const Tensor block(pool.allocate(bytes, category, "unit slots"), dtype, {all});
    std::int64_t begin = 0;
    for (const std::int64_t count : elements) {
      to.emplace_back().memory = block.slice(0, begin, count);
      begin += aligned(count);
    }
  };
  allocate(weights_, slots_.weight_elements, slots_.of_weights, &ParameterUnit::weight_shard, {},
           MemoryCategory::kParameters);
  allocate(gradients_, slots_.gradient_elements, slots_.of_gradients, &ParameterUnit::grad_shard, slots_.gradient_dtype,
           MemoryCategory::kGradients);
  const auto has_peers = [](const UnitGroups& each) { return each.reduce.size() > 1; };
  if (gradients_.empty() || sum_room == 0 || std::ranges::none_of(groups_, has_peers)) return;
  const DType dtype = gradients_.front().memory.dtype;
  const std::int64_t count =
      std::min(std::ranges::max(slots_.gradient_elements), static_cast<std::int64_t>(sum_room / size_of(dtype)));
  sum_room_ = Tensor(pool.allocate(static_cast<std::size_t>(count) * size_of(dtype), MemoryCategory::kGradients,
                                   "copies of gradients"),
                     dtype, {count});
}

void ShardedUnits::share() {
  std::uint64_t layout = kEmptyDigest;
  for (const ParameterUnit& each : parameters_.units())
    fold(layout, static_cast<std::uint64_t>(each.resident_weights ? 0 : each.numel));
  const Tensor& shards = parameters_.weight_shards();
  for (UnitGroups& groups : groups_) {
    MemorySharing* const sharing = groups.gather.memory_sharing();
    if (sharing != nullptr && shards.present())
      groups.copies = sharing->share_memory(shards.data, shards.bytes(), layout);
  }
  if (!sum_room_) return;
  for (const std::int64_t count : slots_.gradient_elements) fold(layout, static_cast<std::uint64_t>(count));
  const Tensor &first = gradients_.front().memory, &last = gradients_.back().memory;
  const auto bytes = static_cast<std::size_t>(last.as<std::byte>() - first.as<std::byte>()) + last.bytes();
  for (UnitGroups& groups : groups_) {
    MemorySharing* const sharing = groups.reduce.memory_sharing();
    groups.sum_copies = sharing != nullptr && sharing->share_memory(first.data, bytes, layout);
  }
}

std::vector<MemorySharing*> ShardedUnits::sharing() const {
  std::vector<MemorySharing*> sharing;
  for (const UnitGroups& groups : groups_) {
    if (groups.copies) sharing.push_back(groups.gather.memory_sharing());
    if (groups.sum_copies) sharing.push_back(groups.reduce.memory_sharing());
  }
  return sharing;
}

ShardedUnits::UnitSlot& ShardedUnits::slot_of(std::deque<UnitSlot>& slots, const std::vector<int>& of, int unit) {
  const int slot = of.at(static_cast<std::size_t>(unit));
  require(slot != UnitSlots::kResident, "ShardedUnits: a call for a resident unit");
  return slots[static_cast<std::size_t>(slot)];
}

void ShardedUnits::fail_call(const char* call, int index, const char* why) {
  fail({.subject = fmt::format("{} of unit {}", call, unit(index).name),
        .expected = why,
        .got = "a call out of order",
        .remedy = "call unshard, wait_unshard, reshard, and bind_gradients, reduce_shard, in this order "
                  "(fsdp/sharded_units.h)"});
}

void ShardedUnits::begin(std::span<const int> ahead) {
  for (const int unit : ahead) {
    if (slot_of(weights_, slots_.of_weights, unit).tenant != unit) unshard(unit);
  }
}

void ShardedUnits::reset() {
  for (std::size_t u = 0; u < states_.size(); ++u) {
    if (slots_.of_weights[u] != UnitSlots::kResident) parameters_.units()[u].bind_weights({});
    if (slots_.of_gradients[u] != UnitSlots::kResident) parameters_.units()[u].bind_gradients({});
    states_[u] = State::kSharded;
  }
  for (std::deque<UnitSlot>* slots : {&weights_, &gradients_}) {
    for (UnitSlot& slot : *slots) slot.tenant = -1;
  }
}

void ShardedUnits::unshard(int index) {
  UnitSlot& slot = slot_of(weights_, slots_.of_weights, index);
  if (slot.tenant >= 0) fail_call("unshard", index, "an empty slot");
  slot.tenant = index;
  states_[static_cast<std::size_t>(index)] = State::kGathered;
  const ParameterUnit& of = unit(index);
  // gather_instances() follows the update; the update follows all reads that freed slots earlier.
  streams_.gather.wait(complete_[static_cast<std::size_t>(index)]);
  streams_.gather.wait(updated_);
  streams_.gather.wait(slot.free);
  const UnitGroups& groups = groups_of(of);
  const std::string label = "weights of " + of.name;
  if (groups.copies) {
    launch(streams_.gather,
           SharedAllGather{.group = groups.gather, .in = of.weight_shard, .out = slot.place(of), .label = label});
  } else {
    launch(streams_.gather,
           AllGather{.group = groups.gather, .in = of.weight_shard, .out = slot.place(of), .label = label});
  }
  streams_.gather.record(slot.ready);
  ++gathers_;
}

void ShardedUnits::wait_unshard(int index) {
  State& state = states_[static_cast<std::size_t>(index)];
  UnitSlot& slot = slot_of(weights_, slots_.of_weights, index);
  if (state == State::kSharded) fail_call("wait_unshard", index, "a preceding unshard");
  if (state == State::kWhole) return;  // since the previous list
  state = State::kWhole;
  streams_.compute.wait(slot.ready);
  unit(index).bind_weights(slot.place(unit(index)));
}

void ShardedUnits::fill_with_nan(const Tensor& whole) {
  if (poison_) launch(streams_.compute, Fill{.x = whole, .value = std::numeric_limits<double>::quiet_NaN()});
}

void ShardedUnits::reshard(int index) {
  State& state = states_[static_cast<std::size_t>(index)];
  if (state != State::kWhole) fail_call("reshard", index, "a gathered unit");
  state = State::kSharded;
  UnitSlot& slot = slot_of(weights_, slots_.of_weights, index);
  slot.tenant = -1;
  fill_with_nan(unit(index).weights);
  unit(index).bind_weights({});
  streams_.compute.record(slot.free);
}

void ShardedUnits::updated() {
  if (slots_.has_weights()) streams_.compute.record(updated_);
}

void ShardedUnits::bind_gradients(int index) {
  UnitSlot& slot = slot_of(gradients_, slots_.of_gradients, index);
  if (slot.tenant >= 0) fail_call("bind_gradients", index, "an empty slot");
  slot.tenant = index;
  streams_.compute.wait(slot.free);
  unit(index).bind_gradients(slot.place(unit(index)));
  fill_with_nan(unit(index).main_grads);
  unit(index).begin_gradients(streams_.compute);
}

// Sums in fp32 for any dtype of the gradients.
void ShardedUnits::sum_copies(const ParameterUnit& of, const Tensor& whole, bool is_first) {
  const UnitGroups& groups = groups_of(of);
  const std::int64_t round = std::int64_t{8} * (groups.reduce.size() - 1);
  launch(streams_.reduce, SharedReduceScatter{.group = groups.reduce,
                                              .in = whole,
                                              .out = of.grad_shard,
                                              .copies = sum_room_.slice(0, 0, sum_room_.numel() / round * round),
                                              .accumulate = !is_first,
                                              .label = "gradients of " + of.name});
}

// Sums in the gradients' dtype, then widens the result.
void ShardedUnits::sum_parts(const ParameterUnit& of, const Tensor& whole, bool is_first) {
  const Tensor own = of.shard.of(whole);
  const bool widens = whole.dtype != of.grad_shard.dtype, sums_into_shard = is_first && !widens;
  launch(streams_.reduce, ReduceScatter{.group = groups_of(of).reduce,
                                        .in = whole,
                                        .out = sums_into_shard ? of.grad_shard : own,
                                        .label = "gradients of " + of.name});
  if (widens) {
    launch(streams_.reduce, CastRows{.x = own, .y = of.grad_shard, .accumulate = !is_first});
  } else if (!is_first) {
    launch(streams_.reduce, Add{.a = of.grad_shard, .b = own, .y = of.grad_shard});
  }
}

void ShardedUnits::reduce_shard(int index) {
  UnitSlot& slot = slot_of(gradients_, slots_.of_gradients, index);
  if (slot.tenant != index) fail_call("reduce_shard", index, "bound gradients");
  slot.tenant = -1;
  ParameterUnit& of = unit(index);
  const Tensor whole = of.main_grads;
  of.bind_gradients({});
  streams_.compute.record(slot.ready);
  streams_.reduce.wait(slot.ready);
  const bool is_first = !summed_[static_cast<std::size_t>(index)];
  if (groups_of(of).sum_copies) {
    sum_copies(of, whole, is_first);
  } else {
    sum_parts(of, whole, is_first);
  }
  streams_.reduce.record(slot.free);
  summed_[static_cast<std::size_t>(index)] = true;
  ++reductions_;
}

void ShardedUnits::sum_instances(int index) {
  if (!summed_[static_cast<std::size_t>(index)]) fail_call("sum_instances", index, "a preceding reduce_shard");
  const ParameterUnit& of = unit(index);
  const std::string label = "gradients of " + of.name;
  Communicator& instances = *groups_of(of).instances;
  if (of.owned.ranks == of.shard.ranks) {
    launch(streams_.reduce, AllReduce{.group = instances, .buffer = of.grad_shard, .label = label});
  } else {
    launch(streams_.reduce,
           ReduceScatter{.group = instances, .in = of.grad_shard, .out = of.owned_grads, .label = label});
  }
}

void ShardedUnits::gather_instances(int index) {
  const ParameterUnit& of = unit(index);
  if (!updated_.recorded()) fail_call("gather_instances", index, "a preceding update");
  streams_.reduce.wait(updated_);
  launch(streams_.reduce, AllGather{.group = *groups_of(of).instances,
                                    .in = of.owned_weights,
                                    .out = of.weight_shard,
                                    .label = "shard of " + of.name});
  last_complete_ = &complete_[static_cast<std::size_t>(index)];
  streams_.reduce.record(*last_complete_);
}

void ShardedUnits::begin_sums() { summed_.assign(summed_.size(), false); }

void ShardedUnits::finish_sums() {
  if (!slots_.has_gradients()) return;
  streams_.reduce.record(summed_up_);
  streams_.compute.wait(summed_up_);
}

void ShardedUnits::wait_for_all() {
  if (last_complete_ != nullptr) streams_.compute.wait(*last_complete_);
  for (UnitSlot& slot : weights_) {
    if (slot.tenant >= 0) streams_.compute.wait(slot.ready);
  }
}

std::uint64_t ShardedUnits::digest() const {
  std::uint64_t addresses = kEmptyDigest;
  for (const std::deque<UnitSlot>* slots : {&weights_, &gradients_}) {
    for (const UnitSlot& slot : *slots) fold(addresses, reinterpret_cast<std::uintptr_t>(slot.memory.data));
  }
  return addresses;
}

}  // namespace megalith
