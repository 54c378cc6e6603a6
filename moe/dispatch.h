// Dispatch and return segments around experts that are sharded over P ranks (dims: moe/routed.h). Each token is sent
// once to each rank that holds some of its experts. Ranks p copies to p copies + copies - 1 hold the same E_local
// experts, each a part of their FFN columns. Dispatch: rows of (token, choices, weights) leave in the order (rank,
// token) and arrive in the order (source rank, token). The receiving rank routes them to its experts, in the order
// (expert, source rank, token). Return: a rank sums the rows of each arrived token over each of its S combine groups
// and rounds the sums. The sums return, are added in fp32 by ascending group, and are rounded once. One rank with all G
// groups computes the same (UnpermuteGroups). Backward: each segment communicates in the opposite direction. Gradients
// that Dispatch returns are in flight until wait_return().
#pragma once

#include <memory>

#include "core/layers/segment.h"
#include "moe/dispatcher.h"
#include "moe/routed.h"
#include "moe/shared_expert.h"

namespace megalith {

struct DispatchSpec {
  Dispatcher& dispatcher;
  std::string label;                           // of the rows: "layer 3's experts"
  std::int64_t experts = 1;                    // E
  std::int64_t combine_groups = 1;             // G
  std::int64_t expert_layer = 0;               // index among the layers of experts
  std::shared_ptr<const SharedExpert> shared;  // runs while rows are in flight; null: none

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

  // Routes arrived rows to experts by their choices and weights, both [T_arrived, K].
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
