// Dispatch and return segments around experts that are sharded over P ranks (dims: moe/routed.h). Each token is sent
// once to each rank that holds some of its experts. Ranks p copies to p copies + copies - 1 hold the same E_local
// experts, each a part of their FFN columns. Dispatch: rows of (token, choices, weights) leave in the order (rank,
// token) and arrive in the order (source rank, token). The receiving rank routes them to its experts, in the order
// (expert, source rank, token). Return: a rank sums the rows of each arrived token over each of its S combine groups
// and rounds the sums. The sums return, are added in fp32 by ascending group, and are rounded once. One rank with all G
// groups computes the same (UnpermuteGroups). Backward: each segment communicates in the opposite direction. Gradients
// that Dispatch returns are in flight until wait_exchange(). Each verb may also leave its exchange to other actions
// (ExchangingSegment).
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

// What Dispatch and Return share. The half of a shared expert runs between start() and wait(), or ends begin().
class RowsExchange : public ExchangingSegment {
 public:
  explicit RowsExchange(DispatchSpec spec) : spec_(std::move(spec)) {}

  TensorList forward(const Context& ctx, const Microbatch& mb, const TensorList& inputs, Stash& stash) const override;
  TensorList begin(Verb verb, const Context& ctx, const Microbatch& mb, const TensorList& inputs,
                   Stash& stash) const override;
  Stream& exchange_stream() const override { return spec_.dispatcher.stream(); }
  void open(Verb verb, const Context& ctx) const override { spec_.dispatcher.open(ctx, verb); }
  void close(Verb verb) const override { spec_.dispatcher.close(verb); }
  void wait_begin(Verb verb, const Context& ctx) const override { spec_.dispatcher.wait_begin(ctx, verb); }
  void wait(Verb verb, const Context& ctx) const override { spec_.dispatcher.wait(ctx, verb); }

 protected:
  // Runs the verb without other actions.
  TensorList run(Verb verb, const Context& ctx, const Microbatch& mb, const TensorList& inputs, Stash& stash,
                 bool waits = true) const;
  // begin() without the shared expert.
  virtual TensorList prepare(Verb verb, const Context& ctx, const Microbatch& mb, const TensorList& inputs,
                             Stash& stash) const = 0;
  // Runs this segment's half of the shared expert, which reads `begun` or the layer's stash.
  virtual void run_shared(Verb verb, const Context& ctx, const Microbatch& mb, const TensorList& begun,
                          Stash& stash) const = 0;

  DispatchSpec spec_;
};

class Dispatch : public RowsExchange {
 public:
  using RowsExchange::RowsExchange;

  void exchange(Verb verb, const Context& ctx, const Microbatch& mb, const TensorList& begun, Stash& stash,
                bool marks_begin) const override;
  TensorList finish(Verb verb, const Context& ctx, const Microbatch& mb, const TensorList& begun,
                    Stash& stash) const override;
  TensorList backward_data(const Context& ctx, const Microbatch& mb, const TensorList& output_gradients,
                           Stash& stash) const override;
  void backward_weight(const Context& ctx, const Microbatch& mb, Stash& stash) const override;

 protected:
  void run_shared(Verb verb, const Context& ctx, const Microbatch& mb, const TensorList& begun,
                  Stash& stash) const override;
  TensorList prepare(Verb verb, const Context& ctx, const Microbatch& mb, const TensorList& inputs,
                     Stash& stash) const override;

 private:
  enum Child { kOpen };

  TensorList begin_forward(const Context& ctx, const Microbatch& mb, const TensorList& inputs, Stash& stash) const;
  TensorList begin_backward(const Context& ctx, const TensorList& output_gradients, Stash& stash) const;
};

class Return : public RowsExchange {
 public:
  using RowsExchange::RowsExchange;

  void exchange(Verb verb, const Context& ctx, const Microbatch& mb, const TensorList& begun, Stash& stash,
                bool marks_begin) const override;
  TensorList finish(Verb verb, const Context& ctx, const Microbatch& mb, const TensorList& begun,
                    Stash& stash) const override;
  TensorList backward_data(const Context& ctx, const Microbatch& mb, const TensorList& output_gradients,
                           Stash& stash) const override;
  void backward_weight(const Context& ctx, const Microbatch& mb, Stash& stash) const override;

 protected:
  void run_shared(Verb verb, const Context& ctx, const Microbatch& mb, const TensorList& begun,
                  Stash& stash) const override;
  TensorList prepare(Verb verb, const Context& ctx, const Microbatch& mb, const TensorList& inputs,
                     Stash& stash) const override;

 private:
  enum Child { kClose };
};

}  // namespace megalith
