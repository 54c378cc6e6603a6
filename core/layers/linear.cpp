#include "core/layers/linear.h"

#include "core/layers/row_sums.h"
#include "core/ops/elementwise/activation.h"

namespace megalith {

namespace {

// Returns this rank's rows of one part of a weight or bias whose outputs are split.
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
Parameter split_by_outputs(const LinearSpec& spec, std::int64_t inputs, const TensorSplit& split) {
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

Parameter weight_of(const LinearSpec& spec, const TensorSplit& split) {
  if (!spec.splits_inputs) return split_by_outputs(spec, spec.inputs, split);
  require(spec.inputs % split.ranks == 0, "a row-parallel linear's inputs divide by the ranks");
  const std::int64_t inputs = spec.inputs / split.ranks;
  return {.parts = {{.name = spec.name + ".weight",
                     .rows = spec.outputs,
                     .global_shape = {spec.outputs, spec.inputs},
                     .global_column = split.rank * inputs}},
          .shape = {spec.outputs, inputs},
          .init_std = spec.init_std};
}

Parameter bias_of(const LinearSpec& spec, const TensorSplit& split) {
  if (!spec.splits_inputs) return split_by_outputs(spec, 0, split);
  // Every rank has the gradients of all rows.
  return {.parts = {split.shared(spec.name + ".bias", false)},
          .shape = {spec.outputs},
          .initializer = Initializer::kZeros,
          .decay = false};
}

// Returns the GEMM of `count` rows.
Gemm piece_of(Gemm gemm, std::int64_t first, std::int64_t count) {
  for (Tensor* tensor : {&gemm.a, &gemm.c, &gemm.pre_activation, &gemm.gelu_input})
    if (tensor->present()) *tensor = tensor->slice(0, first, count);
  return gemm;
}

}  // namespace

Tensor matmul(const Context& ctx, const Tensor& x, const Tensor& w, bool transpose_x, bool transpose_w) {
  const Tensor y = ctx.empty({x.size(transpose_x ? 1 : 0), w.size(transpose_w ? 0 : 1)}, x.dtype, "matmul");
  launch(ctx, Gemm{.a = x, .b = w, .c = y, .transpose_a = transpose_x, .transpose_b = transpose_w});
  return y;
}

RowExchange::RowsTask make_rows(const Context& ctx, const Gemm& gemm) {
  return [&ctx, gemm](const Tensor& rows, std::int64_t first) {
    Gemm piece = piece_of(gemm, first, rows.size(0));
    piece.c = rows;
    launch(ctx, piece);
  };
}

RowExchange::RowsTask read_rows(const Context& ctx, const Gemm& gemm) {
  return [&ctx, gemm](const Tensor& rows, std::int64_t first) {
    Gemm piece = piece_of(gemm, first, rows.size(0));
    piece.a = rows;
    launch(ctx, piece);
  };
}

void accumulate_linear_gradient(const Context& ctx, const Tensor& x, const Tensor& dy, const Parameter& weight,
                                const Parameter* bias) {
  launch(ctx, Gemm{.a = dy, .b = x, .c = weight.main_grad, .transpose_a = true, .accumulate = !weight.overwrites});
  if (bias != nullptr) add_row_sums(ctx, {{.x = dy, .out = bias->main_grad}});
}

Linear::Linear(ParameterStore& store, const LinearSpec& spec, RowExchange& rows)
    : name_(spec.name),
      input_kind_(spec.input_kind),
      splits_inputs_(spec.splits_inputs),
      rows_(rows),
      weight_(store.add(weight_of(spec, rows.split()))) {
  weight_.one_write = spec.one_write;
  if (spec.bias) bias_ = &store.add(bias_of(spec, rows.split()));
}

Tensor Linear::bias() const {
  return bias_ != nullptr && (!splits_inputs_ || rows_.split().rank == 0) ? bias_->weight : Tensor{};
}

Tensor Linear::forward(const Context& ctx, const Microbatch& mb, const Tensor& x, Stash& stash) const {
  stash.save(kInput, input_kind_, x);
  Gemm gemm{.b = weight_.weight, .transpose_b = true, .bias = bias(), .b_is_constant = mb.mode == Mode::kGenerate};
  if (splits_inputs_) {
    gemm.a = x;
    return rows_.sum_rows(ctx, {x.size(0), weight_.shape[0]}, x.dtype, name_ + " output", make_rows(ctx, gemm));
  }
  const Tensor y = ctx.empty({rows_.whole_rows(x.size(0)), weight_.shape[0]}, x.dtype, "matmul");
  gemm.c = y;
  rows_.use_rows(ctx, x, name_ + " input", read_rows(ctx, gemm));
  return y;
}

Linear::Activated Linear::forward_gelu(const Context& ctx, const Microbatch& mb, const Tensor& x, Stash& stash) const {
  if (ctx.deterministic || splits_inputs_) {
    const Tensor input = forward(ctx, mb, x, stash), output = ctx.empty(input.shape, input.dtype, "activation");
    launch(ctx.compute, GeluForward{.x = input, .y = output});
    return {.input = input, .output = output};
  }
  stash.save(kInput, input_kind_, x);
  const Shape shape{rows_.whole_rows(x.size(0)), weight_.shape[0]};
  const Activated y{.input = ctx.empty(shape, x.dtype, "matmul"), .output = ctx.empty(shape, x.dtype, "activation")};
  rows_.use_rows(
      ctx, x, name_ + " input",
      read_rows(ctx,
                {.b = weight_.weight, .c = y.output, .transpose_b = true, .bias = bias(), .pre_activation = y.input}));
  return y;
}

Tensor Linear::backward_data(const Context& ctx, const Microbatch&, const Tensor& dy, Stash& stash) const {
  if (splits_inputs_) {
    const Tensor dx = ctx.empty({rows_.whole_rows(dy.size(0)), weight_.shape[1]}, dy.dtype, "matmul");
    return read_gradient(ctx, dy, {.b = weight_.weight, .c = dx}, stash);
  }
  stash[kOutputGradient] = dy;
  const Tensor dx = rows_.sum_rows(ctx, {dy.size(0), weight_.shape[1]}, dy.dtype, name_ + " input gradient",
                                   make_rows(ctx, {.a = dy, .b = weight_.weight}));
  if (rows_.prefetches_rows() && stash.has(kInput))
    stash[kWholeInput] = rows_.prefetch_rows(ctx, stash.at(kInput, name_), name_ + " input again");
  return dx;
}

Tensor Linear::backward_data_gelu(const Context& ctx, const Microbatch& mb, const Tensor& dy, const Tensor& gelu_input,
                                  Stash& stash) const {
  if (!splits_inputs_) {
    const Tensor gradient = backward_data(ctx, mb, dy, stash);
    launch(ctx.compute, GeluBackward{.x = gelu_input, .dy = gradient, .dx = gradient});
    return gradient;
  }
  const Tensor dx = ctx.empty(gelu_input.shape, dy.dtype, "activation gradient");
  return read_gradient(ctx, dy, {.b = weight_.weight, .c = dx, .gelu_input = gelu_input}, stash);
}

Tensor Linear::read_gradient(const Context& ctx, const Tensor& dy, const Gemm& gemm, Stash& stash) const {
  stash[kOutputGradient] = rows_.gather_rows(ctx, dy, name_ + " output gradient", read_rows(ctx, gemm));
  return gemm.c;
}

void Linear::backward_weight(const Context& ctx, const Microbatch&, Stash& stash) const {
  const bool gathered = stash.has(kWholeInput);
  if (gathered) rows_.wait_for_prefetched_rows(ctx);
  Tensor x = stash.at(gathered ? kWholeInput : kInput, name_);
  if (!gathered && !splits_inputs_) x = rows_.gather_rows(ctx, x, name_ + " input again");
  accumulate_linear_gradient(ctx, x, stash.at(kOutputGradient, name_), weight_, bias_);
}

}  // namespace megalith
