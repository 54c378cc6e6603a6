#include "core/layers/parameter.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/rng.h"
#include "core/ops/elementwise.h"
#include "core/ops/fill_normal.h"

namespace megalith {

namespace {
// 256 bytes of bf16, 512 of fp32.
constexpr std::int64_t kAlignment = 128;
std::int64_t round_up(std::int64_t value, std::int64_t to) { return (value + to - 1) / to * to; }

// `values` are the rows of the part, of `columns` elements each; those of padding stay as they are.
void draw(Stream& stream, const Tensor& values, const LogicalTensor& part, std::int64_t columns, std::uint64_t seed,
          float std) {
  const std::int64_t whole = elements_of_row(part.global_shape), rows = part.live_rows();
  launch(stream, FillNormal{.x = values.slice(0, 0, rows * columns).view({rows, columns}),
                            .numbers = {.seed = seed,
                                        .name_hash = hash_name(part.name),
                                        .offset = part.global_row * whole + part.global_column,
                                        .std = std},
                            .pitch = whole});
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

Tensor Parameter::part_of(const Tensor& whole, std::size_t i) const {
  std::int64_t row = 0;
  for (std::size_t part = 0; part < i; ++part) row += parts[part].rows;
  return whole.slice(0, row, parts[i].rows);
}

void ParameterStore::begin_unit(std::string name) { units_.push_back({.name = std::move(name)}); }

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

void ParameterStore::allocate(MemoryPool& pool, DType dtype, DType main_grads_dtype, std::int64_t divisor) {
  require(main_grads_dtype == DType::kFp32 || main_grads_dtype == dtype, "main gradients are fp32 or as the weights");
  const std::size_t gradient_size = size_of(main_grads_dtype);
  for (ParameterUnit& unit : units_) {
    unit.numel = round_up(unit.numel, kAlignment * divisor);
    const auto n = static_cast<std::size_t>(unit.numel);
    unit.weights =
        Tensor(pool.allocate(n * size_of(dtype), MemoryCategory::kParameters, unit.name), dtype, {unit.numel});
    unit.main_grads =
        Tensor(pool.allocate(n * gradient_size, MemoryCategory::kGradients, unit.name), main_grads_dtype, {unit.numel});
    for (Parameter* parameter : unit.parameters) {
      const std::int64_t count = parameter->shape.numel();
      parameter->weight = unit.weights.slice(0, parameter->offset, count).view(parameter->shape);
      parameter->main_grad = unit.main_grads.slice(0, parameter->offset, count).view(parameter->shape);
    }
  }
  for (Parameter* tied : tied_) {
    tied->weight = tied->tied_to->weight;
    const auto bytes = static_cast<std::size_t>(tied->shape.numel()) * gradient_size;
    tied->main_grad = Tensor(pool.allocate(bytes, MemoryCategory::kGradients, tied->name() + " (second use)"),
                             main_grads_dtype, tied->shape);
  }
}

void ParameterStore::initialize(Stream& stream, std::uint64_t seed) {
  for (const ParameterUnit& unit : units_) launch(stream, Fill{.x = unit.weights, .value = 0});  // also the padding
  for_each_part([&](const Held& held) {
    const Parameter& parameter = held.parameter;
    const Tensor values = held.unit.weights.slice(0, held.begin, held.end - held.begin);
    if (parameter.initializer == Initializer::kOnes) launch(stream, Fill{.x = values, .value = 1});
    if (parameter.initializer == Initializer::kNormal)
      draw(stream, values, held.part, parameter.row_elements(), seed, parameter.init_std);
  });
}

void ParameterStore::zero_gradients(Stream& stream) {
  for (ParameterUnit& unit : units_) launch(stream, Fill{.x = unit.main_grads, .value = 0});
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
          .expected = fmt::format("a word on what each of the {} tensor-parallel ranks holds of it", split.ranks),
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

}  // namespace megalith
