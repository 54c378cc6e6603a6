// The two segments around experts that P ranks share (moe/routed.h, which has the dims): tokens go to the ranks that
// have some of their experts, each once to each, and what comes back is added up. Ranks p copies to p copies + copies -
// 1 have the same E_local experts, each a part of their columns. Dispatch: rows of (token, choices, weights) in the
// order (rank, token) leave, and arrive in the order (source rank, token); there they are routed to this rank's
// experts, whose rows lie in the order (expert, source rank, token). Return: of each token that arrived the sums of its
// rows over each of this rank's S groups of neighbouring experts, rounded, go back; there they are added in fp32, by
// ascending groups, and rounded once. With G groups in all, whichever ranks have them, that is what one rank with G
// groups does (UnpermuteGroups). Backward each does the other's work; gradients that the dispatch sends back are on
// their way until its wait_return().
#pragma once

#include <memory>

#include "core/layers/segment.h"
#include "moe/dispatcher.h"
#include "moe/routed.h"
#include "moe/shared_expert.h"

namespace megalith {

struct DispatchSpec {
  Dispatcher& dispatcher;
  std::string label;                           // of what travels: "layer 3's experts"
  std::int64_t experts = 1;                    // E
  std::int64_t combine_groups = 1;             // G
  std::int64_t expert_layer = 0;               // number among the layers of experts
  std::shared_ptr<const SharedExpert> shared;  // runs while rows travel; null: none does

  std::int64_t groups() const { return combine_groups / dispatcher.expert_groups(); }  // S
};

class Dispatch : public Segment {
 public:
  explicit Dispatch(DispatchSpec spec) : spec_(std::move(spec)) {}

  TensorList forward(const Context& ctx, const Microbatch& mb, const TensorList& inputs, Stash& stash) const override;
  TensorList backward_data(const Context& ctx, const Microbatch& mb, const TensorList& output_gradients,
                           Stash& stash) const override;
  void backward_weight(const Context& ctx, const Microbatch& mb, Stash& stash) const override;
  void wait_return(const Context& ctx) const override { spec_.dispatcher.wait(ctx); }

 private:
  enum Child { kOpen };

  // Of rows that arrived with these choices and weights, [T_arrived, K], where their experts' rows are.
  void route(const Context& ctx, const Microbatch& mb, const ExpertRoom& room, Tensor weight, Dispatched& dispatched,
             Arrived& arrived) const;

  DispatchSpec spec_;
};

class Return : public Segment {
 public:
  explicit Return(DispatchSpec spec) : spec_(std::move(spec)) {}

  TensorList forward(const Context& ctx, const Microbatch& mb, const TensorList& inputs, Stash& stash) const override;
  TensorList backward_data(const Context& ctx, const Microbatch& mb, const TensorList& output_gradients,
                           Stash& stash) const override;
  void backward_weight(const Context& ctx, const Microbatch& mb, Stash& stash) const override;

 private:
  enum Child { kClose };

  DispatchSpec spec_;
};

}  // namespace megalith
