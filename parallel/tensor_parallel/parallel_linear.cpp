#include "parallel/tensor_parallel/parallel_linear.h"

#include "core/ops/gemm.h"

namespace megalith {

namespace {

// This rank's rows of one part of a column-parallel weight or bias.
LogicalTensor rows_of(const LinearSpec::Part& part, const char* suffix, std::int64_t inputs, const TensorSplit& split) {
  const std::int64_t units = part.outputs / part.unit;
  LogicalTensor rows{.name = part.name + suffix, .global_shape = {part.outputs}};
  if (inputs > 0) rows.global_shape = {part.outputs, inputs};
  if (units >= split.ranks) {
    require(units % split.ranks == 0, "a column-parallel part's units divide by the ranks");
    rows.rows = part.outputs / split.ranks;
    rows.global_row = split.rank * rows.rows;
  } else {
    require(split.ranks % units == 0, "the ranks divide by a column-parallel part's units");
    rows.holders = static_cast<int>(split.ranks / units);
    rows.rows = part.unit;
    rows.global_row = split.rank / rows.holders * part.unit;
    rows.partial_gradient = true;
    rows.counted = split.rank % rows.holders == 0;
  }
  return rows;
}

// `inputs` is 0 for the bias.
Parameter column_parameter(const LinearSpec& spec, std::int64_t inputs, const TensorSplit& split) {
  const char* suffix = inputs == 0 ? ".bias" : ".weight";
  std::vector<LinearSpec::Part> parts = spec.parts;
  if (parts.empty()) parts.push_back({.name = spec.name, .outputs = spec.outputs});
  Parameter parameter{.initializer = inputs == 0 ? Initializer::kZeros : Initializer::kNormal,
                      .init_std = spec.init_std,
                      .decay = inputs > 0};
  std::int64_t outputs = 0;
  for (const LinearSpec::Part& part : parts) {
    parameter.parts.push_back(rows_of(part, suffix, inputs, split));
    outputs += parameter.parts.back().rows;
  }
  parameter.shape = inputs == 0 ? Shape{outputs} : Shape{outputs, inputs};
  return parameter;
}

Parameter row_weight(const LinearSpec& spec, const TensorSplit& split) {
  require(spec.inputs % split.ranks == 0, "a row-parallel linear's inputs divide by the ranks");
  const std::int64_t inputs = spec.inputs / split.ranks;
  return {.parts = {{.name = spec.name + ".weight",
                     .rows = spec.outputs,
                     .global_shape = {spec.outputs, spec.inputs},
                     .global_column = split.rank * inputs}},
          .shape = {spec.outputs, inputs},
          .init_std = spec.init_std};
}

}  // namespace

ColumnParallelLinear::ColumnParallelLinear(ParameterStore& store, const LinearSpec& spec, TensorGroup& group)
    : name_(spec.name),
      input_kind_(spec.input_kind),
      group_(group),
      weight_(store.add(column_parameter(spec, spec.inputs, group.split()))) {
  if (spec.bias) bias_ = &store.add(column_parameter(spec, 0, group.split()));
}

Tensor ColumnParallelLinear::forward(const Context& ctx, const Microbatch&, const Tensor& x, Stash& stash) const {
  stash.save(Linear::kInput, input_kind_, x);
  const Tensor y = ctx.empty({group_.whole_rows(x.size(0)), weight_.shape[0]}, x.dtype, "matmul");
  group_.use_rows(ctx, x, name_ + " input", [&](const Tensor& rows, std::int64_t first) {
    launch(ctx, Gemm{.a = rows,
                     .b = weight_.weight,
                     .c = y.slice(0, first, rows.size(0)),
                     .transpose_b = true,
                     .bias = bias_ != nullptr ? bias_->weight : Tensor{}});
  });
  return y;
}

Layer::Activated ColumnParallelLinear::forward_gelu(const Context& ctx, const Microbatch& mb, const Tensor& x,
                                                    Stash& stash) const {
  if (ctx.deterministic) return Layer::forward_gelu(ctx, mb, x, stash);
  stash.save(Linear::kInput, input_kind_, x);
  const Shape shape{group_.whole_rows(x.size(0)), weight_.shape[0]};
  const Activated y{.input = ctx.empty(shape, x.dtype, "matmul"), .output = ctx.empty(shape, x.dtype, "activation")};
  group_.use_rows(ctx, x, name_ + " input", [&](const Tensor& rows, std::int64_t first) {
    launch(ctx, Gemm{.a = rows,
                     .b = weight_.weight,
                     .c = y.output.slice(0, first, rows.size(0)),
                     .transpose_b = true,
                     .bias = bias_ != nullptr ? bias_->weight : Tensor{},
                     .pre_activation = y.input.slice(0, first, rows.size(0))});
  });
  return y;
}

Tensor ColumnParallelLinear::backward_data(const Context& ctx, const Microbatch&, const Tensor& dy,
                                           Stash& stash) const {
  stash[Linear::kOutputGradient] = dy;
  const Tensor dx =
      group_.sum_rows(ctx, {dy.size(0), weight_.shape[1]}, dy.dtype, name_ + " input gradient",
                      [&](const Tensor& rows, std::int64_t first) {
                        launch(ctx, Gemm{.a = dy.slice(0, first, rows.size(0)), .b = weight_.weight, .c = rows});
                      });
  if (group_.overlaps() && stash.has(Linear::kInput)) {
    stash[kWholeInput] = group_.gather_rows_behind(ctx, stash.at(Linear::kInput, name_), name_ + " input again");
  }
  return dx;
}

void ColumnParallelLinear::backward_weight(const Context& ctx, const Microbatch&, Stash& stash) const {
  const bool gathered = stash.has(kWholeInput);
  if (gathered) group_.wait_for_rows_behind(ctx);
  const Tensor x = gathered ? stash.at(kWholeInput, name_)
                            : group_.gather_rows(ctx, stash.at(Linear::kInput, name_), name_ + " input again");
  accumulate_linear_gradient(ctx, x, stash.at(Linear::kOutputGradient, name_), weight_, bias_);
}

RowParallelLinear::RowParallelLinear(ParameterStore& store, const LinearSpec& spec, TensorGroup& group)
    : name_(spec.name),
      input_kind_(spec.input_kind),
      group_(group),
      weight_(store.add(row_weight(spec, group.split()))) {
  if (!spec.bias) return;
  // Every rank sees the gradients of all rows.
  bias_ = &store.add({.parts = {group.split().shared(spec.name + ".bias", false)},
                      .shape = {spec.outputs},
                      .initializer = Initializer::kZeros,
                      .decay = false});
}

Tensor RowParallelLinear::forward(const Context& ctx, const Microbatch&, const Tensor& x, Stash& stash) const {
  stash.save(Linear::kInput, input_kind_, x);
  const bool adds_bias = bias_ != nullptr && group_.split().rank == 0;
  return group_.sum_rows(ctx, {x.size(0), weight_.shape[0]}, x.dtype, name_ + " output",
                         [&](const Tensor& rows, std::int64_t first) {
                           launch(ctx, Gemm{.a = x.slice(0, first, rows.size(0)),
                                            .b = weight_.weight,
                                            .c = rows,
                                            .transpose_b = true,
                                            .bias = adds_bias ? bias_->weight : Tensor{}});
                         });
}

Tensor RowParallelLinear::backward_data(const Context& ctx, const Microbatch&, const Tensor& dy, Stash& stash) const {
  const Tensor dx = ctx.empty({group_.whole_rows(dy.size(0)), weight_.shape[1]}, dy.dtype, "matmul");
  stash[Linear::kOutputGradient] =
      group_.gather_rows(ctx, dy, name_ + " output gradient", [&](const Tensor& rows, std::int64_t first) {
        launch(ctx, Gemm{.a = rows, .b = weight_.weight, .c = dx.slice(0, first, rows.size(0))});
      });
  return dx;
}

Tensor RowParallelLinear::backward_data_gelu(const Context& ctx, const Microbatch&, const Tensor& dy,
                                             const Tensor& gelu_input, Stash& stash) const {
  const Tensor dx = ctx.empty(gelu_input.shape, dy.dtype, "activation gradient");
  stash[Linear::kOutputGradient] =
      group_.gather_rows(ctx, dy, name_ + " output gradient", [&](const Tensor& rows, std::int64_t first) {
        launch(ctx, Gemm{.a = rows,
                         .b = weight_.weight,
                         .c = dx.slice(0, first, rows.size(0)),
                         .gelu_input = gelu_input.slice(0, first, rows.size(0))});
      });
  return dx;
}

void RowParallelLinear::backward_weight(const Context& ctx, const Microbatch&, Stash& stash) const {
  accumulate_linear_gradient(ctx, stash.at(Linear::kInput, name_), stash.at(Linear::kOutputGradient, name_), weight_,
                             bias_);
}

}  // namespace megalith
