#include "core/layers/parameter.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <vector>

#include "core/base/rng.h"
#include "core/device/copy.h"
#include "core/ops/elementwise/elementwise.h"
#include "core/ops/elementwise/fill_normal.h"
#include "core/ops/op.h"
#include "core/ops/optim/grad_norm.h"
#include "core/tensor/bf16.h"

namespace megalith {

namespace {
// 256 bytes of bf16, 512 of fp32.
constexpr std::int64_t kAlignment = 128;
std::int64_t round_up(std::int64_t value, std::int64_t to) { return (value + to - 1) / to * to; }

// Returns the norm's largest block; smaller in units of less than 4 M elements, so that ranks split those too. Copies
// come last in a unit and do not count, so that the cut is the same for any number of pipeline stages.
std::int64_t block_of(const ParameterUnit& unit) {
  constexpr std::uint64_t kBlocks = 64;
  std::int64_t end = 0;
  for (const Parameter* parameter : unit.parameters)
    if (!parameter->is_copy) end = parameter->offset + parameter->shape.numel();
  const auto fair = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(end) / kBlocks));
  return std::clamp(fair, kAlignment, kSquareBlock);
}

// Draws the part's elements from `first` on, in rows of `columns`; padding stays unchanged.
void draw(Stream& stream, Tensor values, std::int64_t first, const LogicalTensor& part, std::int64_t columns,
          std::uint64_t seed, float std, bool uniform) {
  const std::int64_t pitch = elements_of_row(part.global_shape);
  const std::int64_t end = std::min(first + values.numel(), part.live_rows() * columns);
  while (first < end) {
    // All complete rows, or the rest of a partial row.
    const std::int64_t row = first / columns, column = first % columns;
    const std::int64_t rows =
        column == 0 ? std::clamp<std::int64_t>((end - first) / columns, 1, part.neighbours(row)) : 1;
    const std::int64_t width = std::min(columns - column, end - first), count = rows * width;
    launch(stream, FillNormal{.x = values.slice(0, 0, count).view({rows, width}),
                              .numbers = {.seed = seed,
                                          .name_hash = hash_name(part.name),
                                          .offset = part.global_row_of(row) * pitch + part.global_column + column,
                                          .std = std},
                              .uniform = uniform,
                              .pitch = pitch});
    values = values.slice(0, count, values.numel() - count);
    first += count;
  }
}

// Standard deviation of Glorot's uniform numbers: sqrt(2 / (fan in + fan out)) of the unsharded parameter.
float xavier_std(const Parameter& parameter) {
  std::int64_t inputs = 0, outputs = 0;
  for (const LogicalTensor& part : parameter.parts) {
    inputs = elements_of_row(part.global_shape);
    outputs += part.global_shape[0];
  }
  return static_cast<float>(std::sqrt(2.0 / static_cast<double>(inputs + outputs)));
}

Tensor view_of(const Tensor& whole, const Parameter& parameter) {
  if (!whole.present()) return {};
  return whole.slice(0, parameter.offset, parameter.shape.numel()).view(parameter.shape);
}

}  // namespace

std::int64_t elements_of_row(const Shape& shape) {
  std::int64_t elements = 1;
  for (int d = 1; d < shape.rank(); ++d) elements *= shape[d];
  return elements;
}

std::int64_t LogicalTensor::live_rows() const {
  return std::clamp<std::int64_t>(global_shape[0] - global_row, 0, rows);
}

std::int64_t LogicalTensor::global_row_of(std::int64_t row) const {
  return global_row + (stripe == 0 ? row : row / stripe * stripe_pitch + row % stripe);
}

Tensor Parameter::part_of(const Tensor& whole, std::size_t i) const {
  std::int64_t row = 0;
  for (std::size_t part = 0; part < i; ++part) row += parts[part].rows;
  return whole.slice(0, row, parts[i].rows);
}

void ParameterStore::begin_unit(std::string name, UnitKind kind) {
  units_.push_back({.name = std::move(name), .kind = kind});
}

Parameter& ParameterStore::add(Parameter spec) {
  require(!units_.empty() && !spec.parts.empty(), "ParameterStore::add needs a unit and a name");
  if (spec.parts.size() == 1 && spec.parts[0].rows == 0) spec.parts[0].rows = spec.shape[0];
  for (LogicalTensor& part : spec.parts) {
    part.declared = part.global_shape.rank() > 0 || part.holders > 1;
    if (part.global_shape.rank() > 0) continue;
    part.global_shape = spec.shape;
    part.global_shape[0] = part.rows;
  }
  ParameterUnit& unit = units_.back();
  spec.unit = static_cast<int>(units_.size()) - 1;
  spec.offset = unit.numel;
  unit.numel += round_up(spec.shape.numel(), kAlignment);
  unit.parameters.push_back(&parameters_.emplace_back(std::move(spec)));
  return parameters_.back();
}

Parameter& ParameterStore::add_tied(Parameter& target) {
  Parameter tied = target;
  tied.tied_to = &target;
  tied_.push_back(&parameters_.emplace_back(std::move(tied)));
  return *tied_.back();
}

const ParameterBuffer& ParameterStore::add_buffer(LogicalTensor part) {
  require(part.rows > 0, "ParameterStore::add_buffer needs a size");
  part.global_shape = {part.rows};
  return buffers_.emplace_back(ParameterBuffer{.part = std::move(part), .values = {}});
}

void ParameterUnit::bind_weights(const Tensor& whole) {
  weights = whole;
  for (Parameter* parameter : parameters) parameter->weight = view_of(whole, *parameter);
}

void ParameterUnit::bind_gradients(const Tensor& whole) {
  main_grads = whole;
  for (Parameter* parameter : parameters) parameter->main_grad = view_of(whole, *parameter);
}

void ParameterUnit::begin_gradients(Stream& stream) {
  std::int64_t filled = 0;  // end of the elements that are filled or overwritten
  const auto fill_to = [&](std::int64_t end) {
    if (end > filled) launch(stream, Fill{.x = main_grads.slice(0, filled, end - filled), .value = 0});
  };
  for (Parameter* parameter : parameters) {
    parameter->overwrites = parameter->one_write;
    if (!parameter->one_write) continue;
    fill_to(parameter->offset);
    filled = parameter->offset + parameter->shape.numel();
  }
  fill_to(numel);
}

void ParameterStore::allocate(MemoryPool& pool, DType dtype, std::optional<DType> main_grads_dtype) {
  require(!main_grads_dtype || main_grads_dtype == DType::kFp32 || main_grads_dtype == dtype,
          "main gradients are fp32 or as the weights");
  const auto flat = [&pool](std::int64_t numel, DType of, MemoryCategory category, std::string_view name) {
    return Tensor(pool.allocate(static_cast<std::size_t>(numel) * size_of(of), category, name), of, {numel});
  };
  std::int64_t shards = 0;
  for (ParameterUnit& unit : units_) {
    unit.block = block_of(unit);
    if (unit.owned.is_whole()) unit.owned = unit.shard;
    require(unit.owned.ranks % unit.shard.ranks == 0, "what a rank owns is a part of its shard");
    if (!unit.owned.is_whole()) unit.numel = round_up(unit.numel, unit.block * unit.owned.ranks);
    if (!unit.resident_weights) shards += unit.shard.range(unit.numel).size();
  }
  if (shards > 0) weight_shards_ = flat(shards, dtype, MemoryCategory::kParameters, "shards of units");
  std::int64_t begin = 0;
  for (ParameterUnit& unit : units_) {
    const std::int64_t own = unit.shard.range(unit.numel).size();
    if (unit.resident_weights) {
      unit.bind_weights(flat(unit.numel, dtype, MemoryCategory::kParameters, unit.name));
      unit.weight_shard = unit.shard.of(unit.weights);
    } else {
      unit.weight_shard = weight_shards_.slice(0, begin, own);
      begin += own;
    }
    if (!main_grads_dtype) {
      unit.grad_shard = {};
    } else if (unit.resident_gradients) {
      unit.bind_gradients(flat(unit.numel, *main_grads_dtype, MemoryCategory::kGradients, unit.name));
      unit.grad_shard = unit.shard.of(unit.main_grads);
    } else {
      unit.grad_shard = flat(own, *main_grads_dtype, MemoryCategory::kGradients, unit.name);
    }
    const FlatShard part{.rank = unit.owned.rank % (unit.owned.ranks / unit.shard.ranks),
                         .ranks = unit.owned.ranks / unit.shard.ranks};
    unit.owned_weights = part.of(unit.weight_shard);
    if (main_grads_dtype) unit.owned_grads = part.of(unit.grad_shard);
  }
  for (Parameter* tied : tied_) {
    tied->weight = tied->tied_to->weight;
    if (!main_grads_dtype) continue;
    const auto bytes = static_cast<std::size_t>(tied->shape.numel()) * size_of(*main_grads_dtype);
    tied->main_grad = Tensor(pool.allocate(bytes, MemoryCategory::kGradients, tied->name() + " (second use)"),
                             *main_grads_dtype, tied->shape);
  }
  if (buffers_.empty()) return;
  std::int64_t count = 0;
  for (const ParameterBuffer& buffer : buffers_) count += buffer.part.rows;
  const auto bytes = static_cast<std::size_t>(count) * sizeof(float);
  buffer_values_ = Tensor(pool.allocate(bytes, MemoryCategory::kParameters, "buffers"), DType::kFp32, {count});
  count = 0;
  for (ParameterBuffer& buffer : buffers_) {
    buffer.values = buffer_values_.slice(0, count, buffer.part.rows);
    count += buffer.part.rows;
  }
}

void ParameterStore::initialize(Stream& stream, std::uint64_t seed, bool xavier) {
  const auto resident = [](const ParameterUnit& unit) -> const Tensor& {
    return unit.resident_weights ? unit.weights : unit.weight_shard;
  };
  for (const ParameterUnit& unit : units_) launch(stream, Fill{.x = resident(unit), .value = 0});  // padding, too
  for_each_part([&](const Held& held) {
    const Parameter& parameter = held.parameter;
    const FlatShard shard = held.unit.resident_weights ? FlatShard{} : held.unit.shard;
    const FlatShard::Range own = shard.clip({held.begin, held.end}, held.unit.numel);
    if (own.size() == 0) return;
    const Tensor values = resident(held.unit).slice(0, own.begin - shard.range(held.unit.numel).begin, own.size());
    if (parameter.initializer == Initializer::kOnes) launch(stream, Fill{.x = values, .value = 1});
    if (parameter.initializer != Initializer::kNormal) return;
    const float std = xavier ? xavier_std(parameter) : parameter.init_std;
    draw(stream, values, own.begin - held.begin, held.part, parameter.row_elements(), seed, std, xavier);
  });
  if (buffer_values_) launch(stream, Fill{.x = buffer_values_, .value = 0});
}

void ParameterStore::zero_gradients(Stream& stream) {
  for (ParameterUnit& unit : units_) {
    if (unit.resident_gradients) launch(stream, Fill{.x = unit.main_grads, .value = 0});
  }
  for (Parameter* tied : tied_) launch(stream, Fill{.x = tied->main_grad, .value = 0});
}

void ParameterStore::add_tied_gradients(Stream& stream) {
  for (Parameter* tied : tied_) {
    launch(stream, Add{.a = tied->tied_to->main_grad, .b = tied->main_grad, .y = tied->tied_to->main_grad});
  }
}

void ParameterStore::check_split(const TensorSplit& split) const {
  if (split.ranks == 1) return;
  for_each_part([&](const Held& held) {
    if (held.part.declared) return;
    fail({.subject = "parameter " + held.part.name,
          .expected = fmt::format("a declaration of what each of the {} tensor-parallel ranks holds", split.ranks),
          .got = "none",
          .remedy = "declare it by TensorSplit::shared_between_linears or shared where each rank holds a copy, by "
                    "rows and global_shape where it holds a slice (CONTRIBUTING.md)"});
  });
}

std::int64_t ParameterStore::numel() const {
  std::int64_t numel = 0;
  for (const ParameterUnit& unit : units_) {
    for (const Parameter* parameter : unit.parameters) numel += parameter->shape.numel();
  }
  return numel;
}

void upload(Stream& stream, std::span<const float> values, const Tensor& tensor) {
  require(static_cast<std::int64_t>(values.size()) == tensor.numel() && tensor.is_contiguous(), "upload: sizes differ");
  std::vector<bf16> rounded;
  if (tensor.dtype != DType::kFp32) {
    require(tensor.dtype == DType::kBf16, "upload to a tensor that is neither fp32 nor bf16");
    std::transform(values.begin(), values.end(), std::back_inserter(rounded), to_bf16);
  }
  const void* const host = rounded.empty() ? static_cast<const void*>(values.data()) : rounded.data();
  copy_from_host(stream, tensor.data, host, tensor.bytes());
  stream.synchronize();
}

}  // namespace megalith
