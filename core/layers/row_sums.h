// Row sums that backward_weight adds to the main gradients of biases and norms. A segment gathers its sums and adds
// them in one launch:
//   RowSums sums(ctx);
//   fc2->backward_weight(sums.later(), mb, stash);
//   norm.backward_weight(sums.later(), stash);
//   sums.add();
#pragma once

#include <vector>

#include "core/layers/context.h"
#include "core/ops/elementwise/reduce.h"

namespace megalith {

class RowSums {
 public:
  explicit RowSums(const Context& ctx) : ctx_(ctx), later_(ctx) { later_.row_sums = this; }
  RowSums(const RowSums&) = delete;
  RowSums& operator=(const RowSums&) = delete;

  const Context& later() const { return later_; }  // context that gathers row sums here
  void gather(const std::vector<RowSum>& sums) { sums_.insert(sums_.end(), sums.begin(), sums.end()); }
  void add() const {
    if (!sums_.empty()) launch(ctx_, ReduceRows{.sums = sums_, .accumulate = true});
  }

 private:
  const Context& ctx_;
  Context later_;
  std::vector<RowSum> sums_;
};

// Adds the sums now, or leaves them to ctx.row_sums.
inline void add_row_sums(const Context& ctx, const std::vector<RowSum>& sums) {
  if (ctx.row_sums != nullptr) return ctx.row_sums->gather(sums);
  launch(ctx, ReduceRows{.sums = sums, .accumulate = true});
}

}  // namespace megalith
