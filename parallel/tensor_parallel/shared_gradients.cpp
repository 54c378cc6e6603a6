#include "parallel/tensor_parallel/shared_gradients.h"

#include <map>

#include "core/ops/elementwise/elementwise.h"
#include "core/ops/op.h"

namespace megalith {

namespace {

constexpr std::int64_t kSmall = 65'536;  // elements

std::unique_ptr<Communicator> neighbors(Communicator& group, int holders) {
  std::vector<int> ranks;
  ranks.reserve(static_cast<std::size_t>(holders));
  for (int i = 0; i < holders; ++i) ranks.push_back(group.rank() / holders * holders + i);
  return group.subgroup(ranks, "tp holders");
}

}  // namespace

SharedGradients::SharedGradients(TensorGroup& group, const ParameterStore& store, MemoryPool& pool) : group_(group) {
  Communicator& all = group.communicator();
  std::map<int, Set> sets;  // equal on all ranks
  store.for_each_part([&](const ParameterStore::Held& held) {
    if (!held.part.partial_gradient || held.part.holders == 1) return;
    Set& set = sets[held.part.holders];
    const FlatShard& owned = held.unit.owned;
    const FlatShard::Range own = owned.clip({held.begin, held.end}, held.unit.numel);
    if (own.size() == 0) return;
    const Tensor gradient = held.unit.owned_grads.slice(0, own.begin - owned.range(held.unit.numel).begin, own.size());
    (gradient.numel() < kSmall ? set.small : set.large).push_back(gradient);
  });
  for (auto& [holders, set] : sets) {
    if (holders != all.size()) set.own = neighbors(all, holders);
    set.group = set.own ? set.own.get() : &all;
    std::int64_t numel = 0;
    for (const Tensor& gradient : set.small) numel += gradient.numel();
    if (numel > 0) {
      const DType dtype = set.small[0].dtype;
      set.packed = Tensor(pool.allocate(static_cast<std::size_t>(numel) * size_of(dtype), MemoryCategory::kGradients,
                                        "shared gradients"),
                          dtype, {numel});
    }
    sets_.push_back(std::move(set));
  }
}

void SharedGradients::sum(Stream& compute) {
  const auto for_each_small = [&](const Set& set, auto&& visit) {
    std::int64_t at = 0;
    for (const Tensor& gradient : set.small) {
      visit(gradient, set.packed.slice(0, at, gradient.numel()));
      at += gradient.numel();
    }
  };
  for (const Set& set : sets_)
    for_each_small(set, [&](const Tensor& from, const Tensor& to) { launch(compute, Copy{.src = from, .dst = to}); });
  if (sets_.empty()) return;
  CommLane& lane = group_.lane();
  lane.begin(compute);
  for (const Set& set : sets_) {
    std::vector<Tensor> buffers = set.large;
    if (set.packed) buffers.push_back(set.packed);
    for (const Tensor& buffer : buffers)
      launch(lane.stream, AllReduce{.group = *set.group, .buffer = buffer, .label = "gradients of shared parameters"});
  }
  lane.end();
  lane.wait(compute);
  for (const Set& set : sets_)
    for_each_small(set, [&](const Tensor& to, const Tensor& from) { launch(compute, Copy{.src = from, .dst = to}); });
}

}  // namespace megalith
