#include "tests/own/residual_adapter.h"

#include "core/layers/linear.h"
#include "core/ops/elementwise/activation.h"
#include "core/ops/elementwise/elementwise.h"

namespace megalith {

namespace {

// This rank's rows of A, with their place in the unsharded tensor.
Parameter down_of(const ResidualAdapter::Spec& spec, const TensorSplit& split) {
  const std::int64_t rows = spec.rank / split.ranks;
  return {.parts = {{.name = spec.name + ".down.weight",
                     .rows = rows,
                     .global_shape = {spec.rank, spec.hidden},
                     .global_row = split.rank * rows}},
          .shape = {rows, spec.hidden},
          .init_std = spec.init_std};
}

// This rank's columns of B.
Parameter up_of(const ResidualAdapter::Spec& spec, const TensorSplit& split) {
  const std::int64_t columns = spec.rank / split.ranks;
  return {.parts = {{.name = spec.name + ".up.weight",
                     .rows = spec.hidden,
                     .global_shape = {spec.hidden, spec.rank},
                     .global_column = split.rank * columns}},
          .shape = {spec.hidden, columns},
          .initializer = Initializer::kZeros};
}

}  // namespace

ResidualAdapter::ResidualAdapter(ParameterStore& store, const Spec& spec, RowExchange& rows)
    : name_(spec.name),
      pins_input_(spec.pins_input),
      rows_(rows),
      down_(store.add(down_of(spec, rows.split()))),
      up_(store.add(up_of(spec, rows.split()))) {}

Tensor ResidualAdapter::activated(const Context& ctx, const Tensor& hidden) const {
  const Tensor output = ctx.empty(hidden.shape, hidden.dtype, "activation");
  launch(ctx.compute, GeluForward{.x = hidden, .y = output});
  return output;
}

Tensor ResidualAdapter::forward(const Context& ctx, const Microbatch&, const Tensor& x, Stash& stash) const {
  const std::int64_t tokens = rows_.whole_rows(x.size(0));
  const Tensor hidden = ctx.empty({tokens, down_.shape[0]}, x.dtype, "matmul");
  rows_.use_rows(ctx, x, name_ + " input",
                 read_rows(ctx, {.b = down_.weight, .c = hidden, .transpose_b = true}));  // sum over all ranks' rows
  const Tensor output = activated(ctx, hidden);
  stash.keep(kInput, SlotKind::kOwn, x);
  if (pins_input_) stash.never_offload(kInput);
  stash.keep(kHidden, SlotKind::kOwn, hidden);
  stash.save(kActivated, SlotKind::kOwn, output);  // backward_data recomputes it if it is not kept
  const Tensor sum = rows_.sum_rows(ctx, {tokens, up_.shape[0]}, x.dtype, name_ + " output",
                                    make_rows(ctx, {.a = output, .b = up_.weight, .transpose_b = true}));
  launch(ctx.compute, Add{.a = sum, .b = x, .y = sum});
  return sum;
}

Tensor ResidualAdapter::backward_data(const Context& ctx, const Microbatch&, const Tensor& dy, Stash& stash) const {
  const Tensor& hidden = stash.at(kHidden, name_);
  if (!stash.has(kActivated)) stash.refill(kActivated, activated(ctx, hidden));
  const Tensor gradient = ctx.empty(hidden.shape, hidden.dtype, "activation gradient");
  stash[kOutputGradient] =
      rows_.gather_rows(ctx, dy, name_ + " output gradient", read_rows(ctx, {.b = up_.weight, .c = gradient}));
  launch(ctx.compute, GeluBackward{.x = hidden, .dy = gradient, .dx = gradient});
  stash[kHiddenGradient] = gradient;
  const Tensor dx = rows_.sum_rows(ctx, {hidden.size(0), down_.shape[1]}, dy.dtype, name_ + " input gradient",
                                   make_rows(ctx, {.a = gradient, .b = down_.weight}));
  launch(ctx.compute, Add{.a = dx, .b = dy, .y = dx});
  return dx;
}

void ResidualAdapter::backward_weight(const Context& ctx, const Microbatch&, Stash& stash) const {
  const Tensor x = rows_.gather_rows(ctx, stash.at(kInput, name_), name_ + " input again");
  accumulate_linear_gradient(ctx, x, stash.at(kHiddenGradient, name_), down_, nullptr);
  accumulate_linear_gradient(ctx, stash.at(kActivated, name_), stash.at(kOutputGradient, name_), up_, nullptr);
}

}  // namespace megalith
