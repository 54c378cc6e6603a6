#include "moe/merge.h"

#include "core/layers/row_sums.h"
#include "core/ops/elementwise/elementwise.h"
#include "moe/ops/rank_rows.h"
#include "moe/ops/route_rows.h"
#include "moe/routed.h"

namespace megalith {

Tensor Merge::add_rows(const Context& ctx, const Tensor& rows, const Tensor& residual, Stash& stash) const {
  if (spec_.returned) return rows;
  const Dispatched at = dispatched(stash);
  const Tensor hidden = ctx.empty(residual.shape, residual.dtype, "merged rows");
  if (spec_.groups == 1) {
    launch(ctx.compute, UnpermuteRows{.x = rows, .position = at.position, .y = hidden});
  } else {
    launch(ctx.compute, UnpermuteGroups{.x = rows,
                                        .position = at.position,
                                        .choice = at.choice,
                                        .y = hidden,
                                        .experts_per_group = spec_.experts / spec_.groups,
                                        .first_expert = 0,
                                        .groups = spec_.groups});
  }
  return hidden;
}

TensorList Merge::forward(const Context& ctx, const Microbatch& mb, const TensorList& inputs, Stash& stash) const {
  const auto [given, residual] = from_list<ExpertRows>(inputs);
  const Tensor rows = add_rows(ctx, given, residual, stash);
  Tensor hidden = rows;
  const auto add = [&](const Tensor& shared) {
    if (spec_.returned) hidden = ctx.empty(rows.shape, rows.dtype, "merged rows");  // inputs must not change
    launch(ctx.compute, Add{.a = rows, .b = shared, .y = hidden});
  };
  if (shared_) {
    const Tensor& x = stash.layer().at(kSharedInput, "shared expert's input");
    const SharedExpert::Opened opened = shared_->open(ctx, mb, x, stash.child(kOpen));
    add(shared_->close(ctx, mb, opened, stash.child(kClose)));
  } else if (spec_.shared_ran) {
    add(stash.layer().at(kSharedOutput, "shared expert's output"));
  }
  return {apply_dropout(ctx, mb, spec_.dropout, hidden), residual};
}

TensorList Merge::backward_data(const Context& ctx, const Microbatch& mb, const TensorList& output_gradients,
                                Stash& stash) const {
  const Tensor d_hidden = apply_dropout(ctx, mb, spec_.dropout, output_gradients[0]);
  if (shared_) {
    const SharedExpert::OpenedGradient opened = shared_->close_backward_data(ctx, mb, d_hidden, stash.child(kClose));
    stash.layer().hand(kSharedGradient, shared_->open_backward_data(ctx, mb, opened, stash.child(kOpen)));
  }
  return {d_hidden, output_gradients[1]};
}

void Merge::backward_weight(const Context& ctx, const Microbatch& mb, Stash& stash) const {
  if (!shared_) return;
  RowSums sums(ctx);
  shared_->close_backward_weight(sums.later(), mb, stash.child(kClose));
  shared_->open_backward_weight(sums.later(), mb, stash.child(kOpen));
  sums.add();
}

}  // namespace megalith
