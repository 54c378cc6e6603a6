#include "parallel/checkpoint/model_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "core/base/error.h"
#include "core/base/memory_limit.h"
#include "core/base/text/units.h"
#include "core/device/copy.h"
#include "core/layers/parameter.h"
#include "core/tensor/bf16.h"

namespace megalith {

namespace {

// One logical tensor of one kind on the device.
struct Item {
  Shard shard;        // without data
  Tensor tensor;      // contiguous; numel 0 if the slice is only padding
  bool saved = true;  // false: other ranks save the replicas
  // Other holders: all replicas, the ranks of the same shard in other instances, or nobody.
  enum class Holders : std::uint8_t { kReplicas, kInstances, kNobody } holders = Holders::kReplicas;
  UnitKind kind = UnitKind::kDense;
};

// Rows of a part that are adjacent in the global tensor.
Slice slice_of(const LogicalTensor& part, std::int64_t row, std::int64_t rows, std::int64_t columns) {
  Slice slice = Slice::whole(part.global_shape);
  slice.start[0] = part.global_row_of(row);
  slice.stop[0] = slice.start[0] + rows;
  if (part.global_shape.rank() > 1) {
    slice.start[1] = part.global_column;
    slice.stop[1] = part.global_column + columns;
  }
  return slice;
}

// Splits `item` to the elements `held` of its slice, row-major, which its tensor contains. The result is a range of the
// global tensor if all columns are here, otherwise boxes.
void add_cut(const Item& item, const FlatShard::Range& held, std::vector<Item>& items) {
  if (held.size() == 0) return;
  const Slice& whole = item.shard.slice;
  Shape shape;
  for (const std::int64_t extent : whole.extents()) shape.push_back(extent);
  const std::int64_t columns = shape.rank() > 1 ? shape[1] : 1;
  std::vector<Slice> pieces;
  if (shape.rank() < 2 || columns == item.shard.shape[1]) {
    const std::int64_t first = whole.start[0] * columns;
    pieces = {Slice::range(first + held.begin, first + held.end)};
  } else {
    pieces = boxes_of_range(shape, held.begin, held.end);
    for (Slice& piece : pieces) {
      for (std::size_t d = 0; d < 2; ++d) {
        piece.start[d] += whole.start[d];
        piece.stop[d] += whole.start[d];
      }
    }
  }
  std::int64_t at = 0;
  for (Slice& piece : pieces) {
    items.push_back(item);
    items.back().tensor = item.tensor.slice(0, at, piece.numel());
    at += piece.numel();
    items.back().shard.slice = std::move(piece);
  }
}

// Adds the part of a parameter in `flat`: elements of its unit from `first_held` on, either all or this rank's shard.
void add_parameter(const ParameterUnit& unit, const Parameter& parameter, std::string_view kind, const Tensor& flat,
                   std::int64_t first_held, std::vector<Item>& items) {
  const bool sharded = flat.numel() < unit.numel;
  const bool owned = flat.numel() < unit.weight_shard.numel();
  std::int64_t end = parameter.offset;
  for (std::size_t i = 0; i < parameter.parts.size(); ++i) {
    const LogicalTensor& part = parameter.parts[i];
    const std::int64_t columns = parameter.row_elements(), first = end;
    end += part.rows * columns;
    Item item{.shard = {.name = shard_name(kind, part.name),
                        .dtype = flat.dtype,
                        .shape = part.global_shape,
                        .slice = {},
                        .data = {}},
              .tensor = {},
              .saved = part.counted && !parameter.is_copy,
              .holders = owned     ? Item::Holders::kNobody
                         : sharded ? Item::Holders::kInstances
                                   : Item::Holders::kReplicas,
              .kind = unit.kind};
    std::int64_t row = 0, rows = 0;  // parameters of only padding are listed too
    do {
      rows = part.neighbours(row);
      item.shard.slice = slice_of(part, row, rows, columns);
      const std::int64_t begin = first + row * columns;
      const std::int64_t from = std::clamp(begin, first_held, first_held + flat.numel());
      const std::int64_t to = std::clamp(begin + rows * columns, from, first_held + flat.numel());
      item.tensor = flat.slice(0, from - first_held, to - from);
      if (sharded) {
        add_cut(item, {from - begin, to - begin}, items);
      } else {
        items.push_back(item);
      }
      row += rows;
    } while (row < part.live_rows());
  }
}

// All state of this rank, in a fixed order; only weights without `optimizer`.
std::vector<Item> items_of(const ParameterStore& parameters, const AdamWOptimizer* optimizer) {
  std::vector<Item> items;
  for (std::size_t u = 0; u < parameters.units().size(); ++u) {
    const ParameterUnit& unit = parameters.units()[u];
    for (const Parameter* parameter : unit.parameters) {
      const auto add = [&](std::string_view kind, const Tensor& flat, std::int64_t first_held) {
        add_parameter(unit, *parameter, kind, flat, first_held, items);
      };
      if (unit.resident_weights) {
        add(kParamKind, unit.weights, 0);
      } else {
        add(kParamKind, unit.weight_shard, unit.shard.range(unit.numel).begin);
      }
      if (optimizer == nullptr) continue;
      const AdamWOptimizer::UnitState& state = optimizer->units()[u];
      if (optimizer->has_own_main_params()) add(kMainParamKind, state.main_params, state.begin);
      add(kExpAvgKind, state.exp_avg, state.begin);
      add(kExpAvgSqKind, state.exp_avg_sq, state.begin);
    }
  }
  for (const ParameterBuffer& buffer : parameters.buffers()) {
    const LogicalTensor& part = buffer.part;
    items.push_back({.shard = {.name = shard_name(kParamKind, part.name),
                               .dtype = DType::kFp32,
                               .shape = part.global_shape,
                               .slice = Slice::whole(part.global_shape),
                               .data = {}},
                     .tensor = buffer.values,
                     .saved = part.counted});
  }
  return items;
}

using Stored = std::map<std::string, DType>;

// Stored dtype of a tensor of this run's `dtype`. Only moments may differ, after a run with another --exp-avg-dtype or
// --exp-avg-sq-dtype.
DType stored_dtype(const std::string& name, DType dtype, const Stored& stored) {
  const std::string_view kind = kind_of(name);
  const auto found = stored.find(name);
  const bool converts = kind == kExpAvgKind || kind == kExpAvgSqKind;
  if (!converts || found == stored.end()) return dtype;
  return found->second == DType::kFp32 || found->second == DType::kBf16 ? found->second : dtype;
}

// Specs of all tensors of the model, with the kinds and dtypes of `items`.
std::vector<TensorSpec> specs_of(const ParameterStore& parameters, const std::vector<Item>& items,
                                 const Stored& stored) {
  std::map<std::string_view, DType> kinds;
  for (const Item& item : items) kinds.emplace(kind_of(item.shard.name), item.shard.dtype);
  std::vector<TensorSpec> specs;
  for (const auto& [kind, dtype] : kinds) {
    for (const ParameterUnit& unit : parameters.units()) {
      for (const Parameter* parameter : unit.parameters) {
        for (const LogicalTensor& part : parameter->parts) {
          const std::string name = shard_name(kind, part.name);
          specs.push_back({.name = name, .dtype = stored_dtype(name, dtype, stored), .shape = part.global_shape});
        }
      }
    }
  }
  for (const ParameterBuffer& buffer : parameters.buffers()) {
    specs.push_back(
        {.name = shard_name(kParamKind, buffer.part.name), .dtype = DType::kFp32, .shape = buffer.part.global_shape});
  }
  return specs;
}

// Reads a tensor stored as `dtype` into the item's tensor; fp32 is rounded to bf16 to nearest even.
void read_converted(const Item& item, DType dtype, Stream& stream, LoadedCheckpoint& checkpoint) {
  std::vector<float> values(static_cast<std::size_t>(item.tensor.numel()));
  if (dtype == DType::kFp32) {
    checkpoint.read(item.shard.name, item.shard.slice, std::as_writable_bytes(std::span(values)));
  } else {
    std::vector<bf16> narrow(values.size());
    checkpoint.read(item.shard.name, item.shard.slice, std::as_writable_bytes(std::span(narrow)));
    std::transform(narrow.begin(), narrow.end(), values.begin(), [](bf16 x) { return to_float(x); });
  }
  upload(stream, values, item.tensor);
}

}  // namespace

std::vector<WrittenShard> shards_to_write(const ParameterStore& parameters, const AdamWOptimizer* optimizer,
                                          std::span<const StateHolders> holders) {
  std::vector<Item> items = items_of(parameters, optimizer);
  std::erase_if(items, [](const Item& item) { return !item.saved || item.tensor.numel() == 0; });
  std::vector<WrittenShard> mine;
  // Ranks of a group split the writing of their replicated state; null: only this rank.
  const auto add = [&mine](std::span<Item> copies, const Communicator* group) {
    std::vector<Shard> shards;
    for (const Item& item : copies) shards.push_back(item.shard);
    const std::vector<int> writers = assign_writers(shards, group == nullptr ? 1 : group->size());
    for (std::size_t i = 0; i < copies.size(); ++i) {
      if (group == nullptr || writers[i] == group->rank()) mine.push_back({std::move(shards[i]), copies[i].tensor});
    }
  };
  for (const StateHolders& of : holders) {
    for (const auto& [held_by, group] : {std::pair{Item::Holders::kReplicas, of.replicas},
                                         {Item::Holders::kInstances, of.instances},
                                         {Item::Holders::kNobody, nullptr}}) {
      std::vector<Item> copies;
      std::ranges::copy_if(items, std::back_inserter(copies), [&, held_by = held_by](const Item& item) {
        return item.holders == held_by && std::ranges::find(of.kinds, item.kind) != of.kinds.end();
      });
      add(copies, group);
    }
  }
  return mine;
}

SaveResult save_shards(const std::vector<WrittenShard>& mine, Stream& stream, SaveRequest request) {
  std::vector<std::vector<std::byte>> host;
  std::size_t bytes = 0;
  for (const WrittenShard& written : mine) bytes += written.tensor.bytes();
  try {
    for (const WrittenShard& written : mine) host.emplace_back(written.tensor.bytes());
  } catch (const std::bad_alloc&) {
    const std::optional<MemoryLimit> limit = met_limit(bytes);
    fail({.code = ExitCode::kOutOfMemory,
          .subject = "a checkpoint's copy of this rank's shards",
          .expected = fmt::format("{:.2f} MiB of host memory", mib(bytes)),
          .got = "no room for them",
          .remedy = limit ? std::string(LimitText(*limit).view())
                          : "free memory of the host, or move fewer activations there"});
  }
  request.shards.reserve(mine.size());
  try {
    for (std::size_t i = 0; i < mine.size(); ++i) {
      copy_to_host(stream, host[i].data(), mine[i].tensor.data, host[i].size());
      request.shards.push_back(mine[i].shard);
      request.shards.back().data = host[i];
    }
  } catch (...) {
    try {
      stream.synchronize();  // the copies' target memory is freed next
    } catch (const std::exception&) {
    }
    throw;
  }
  stream.synchronize();
  return save_checkpoint(request);
}

void load_tensors(const LoadTarget& target, LoadedCheckpoint& checkpoint, LoadScope scope) {
  Stream& stream = target.stream;
  const std::vector<Item> items =
      items_of(target.parameters, scope == LoadScope::kEverything ? target.optimizer : nullptr);
  Stored stored;
  for (const TensorSpec& spec : checkpoint.tensors()) stored.emplace(spec.name, spec.dtype);
  const bool is_part = target.all_parameters != nullptr;
  checkpoint.check_tensors(specs_of(is_part ? *target.all_parameters : target.parameters, items, stored));
  for (const Item& item : items) {
    if (item.tensor.numel() == 0) continue;
    const DType dtype = stored_dtype(item.shard.name, item.shard.dtype, stored);
    if (dtype != item.shard.dtype) {
      read_converted(item, dtype, stream, checkpoint);
      continue;
    }
    std::vector<std::byte> host(item.tensor.bytes());
    checkpoint.read(item.shard.name, item.shard.slice, host);
    copy_from_host(stream, item.tensor.data, host.data(), host.size());
    stream.synchronize();
  }
  if (scope == LoadScope::kWeights && target.optimizer != nullptr) target.optimizer->initialize(stream);
}

}  // namespace megalith
