#include "core/optim/tensor_sums.h"

#include <algorithm>
#include <map>

#include "core/ops/elementwise/elementwise.h"
#include "core/ops/op.h"

namespace megalith {

TensorSums::TensorSums(const ParameterStore& store, MemoryPool& pool, const SummedNames& of, const Values& values,
                       const char* owner, bool zeros)
    : sum_{.tensors = {}, .zeros = zeros} {
  const auto doubles = [&](std::int64_t count) {
    const auto bytes = static_cast<std::size_t>(count) * sizeof(double);
    return Tensor(pool.allocate(bytes, MemoryCategory::kWorkspace, owner), DType::kFp64, {count});
  };
  std::map<std::string, ParameterStore::Held> by_name;
  store.for_each_part([&](const ParameterStore::Held& held) {
    if (!held.parameter.is_copy) by_name.emplace(held.part.name, held);
  });
  std::vector<std::string> names = of.all_names, experts = of.all_expert_names;
  if (names.empty() && experts.empty()) {
    for (const auto& [name, held] : by_name) (held.unit.kind == UnitKind::kDense ? names : experts).push_back(name);
  }
  std::sort(names.begin(), names.end());
  std::sort(experts.begin(), experts.end());
  dense_names_ = std::ssize(names);
  for (int part = 0; part < of.expert_parts; ++part) {
    for (const std::string& name : experts) names.push_back(part == of.expert_part ? name : "");  // "": not here
  }
  std::int64_t count = 0;
  for (const std::string& name : names) {
    const auto found = by_name.find(name);
    if (found != by_name.end() && found->second.part.counted && found->second.begin < found->second.end) {
      const std::int64_t block = found->second.unit.block;
      count += (found->second.end - 1) / block - found->second.begin / block + 1;
    }
    add_pieces_.ends.push_back(count);
    if (std::ssize(add_pieces_.ends) == dense_names_) dense_pieces_ = count;
  }
  add_pieces_.pieces = doubles(count);
  add_pieces_.out = doubles(static_cast<std::int64_t>(names.size()));
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::int64_t first = i == 0 ? 0 : add_pieces_.ends[i - 1];
    if (first == add_pieces_.ends[i]) continue;
    const ParameterStore::Held& held = by_name.at(names[i]);
    const ParameterUnit& unit = held.unit;
    has_shards_ = has_shards_ || !unit.owned.is_whole();
    // Padding is no parameter; its squares are 0.
    const std::int64_t live = held.begin + held.part.live_rows() * held.parameter.row_elements();
    const std::int64_t end = zeros ? std::min(live, held.end) : held.end;
    has_shards_ = has_shards_ || end < held.end;
    const FlatShard::Range own = unit.owned.clip({held.begin, end}, unit.numel);
    if (own.size() == 0) continue;
    const Tensor& owned = values(static_cast<std::size_t>(&unit - store.units().data()));
    SquaredTensor tensor{.x = owned.slice(0, own.begin - unit.owned.range(unit.numel).begin, own.size()),
                         .begin = own.begin % unit.block,
                         .block = unit.block};
    tensor.pieces = pieces().slice(0, first + own.begin / unit.block - held.begin / unit.block, tensor.num_pieces());
    sum_.tensors.push_back(tensor);
  }
}

void TensorSums::sum(Stream& stream) const {
  if (has_shards_) launch(stream, Fill{.x = pieces(), .value = 0});
  launch(stream, sum_);
}

void TensorSums::add_pieces(Stream& stream) const { launch(stream, add_pieces_); }

}  // namespace megalith
