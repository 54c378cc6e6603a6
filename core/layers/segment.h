// A piece of the model with three verbs. forward fills the stash. backward_data maps one optional gradient per output
// to one per input, and leaves the weight gradient's inputs in the stash. backward_weight consumes these, possibly much
// later. A segment is stateless between calls, so that it serves many microbatches in flight. It never writes its
// inputs, so that it can run again.
#pragma once

#include <array>
#include <initializer_list>

#include "core/layers/context.h"
#include "core/layers/hooks.h"
#include "core/layers/microbatch.h"
#include "core/layers/parameter.h"
#include "core/layers/stash.h"
#include "core/ops/op.h"

namespace megalith {

class TensorList {
 public:
  TensorList() = default;
  TensorList(std::initializer_list<Tensor> tensors) {
    for (const Tensor& tensor : tensors) push_back(tensor);
  }
  int size() const { return size_; }
  const Tensor& operator[](int i) const { return tensors_[checked(i)]; }
  Tensor& operator[](int i) { return tensors_[checked(i)]; }
  void push_back(const Tensor& tensor) {
    require(size_ < kMax, "TensorList holds at most 8 tensors");
    tensors_[static_cast<std::size_t>(size_++)] = tensor;
  }

 private:
  static constexpr int kMax = 8;

  // A missing tensor differs from an absent one: forgetting the residual stream is an error.
  std::size_t checked(int i) const {
    require(i >= 0 && i < size_,
            "a segment reads a tensor that its neighbor did not pass: the segments of a model pass two, "
            "(hidden, residual), and two gradients back");
    return static_cast<std::size_t>(i);
  }

  std::array<Tensor, kMax> tensors_{};
  int size_ = 0;
};

// Kind of a segment, for --cuda-graph-modules.
enum class SegmentModule : std::uint8_t {
  kOther,
  kEmbedding,
  kHead,  // final norm, output layer and loss
  kAttention,
  kMlp,
  kMoeRouter,
  kMoeDispatch,  // dispatch of rows to the ranks of their experts
  kMoe,          // experts and the sum of their rows; with the router, if that is recomputed with them
  kOwn,          // a user's layer (apps/config/own.h)
  kLayer,        // layers that are fully recomputed together
};

class ExchangingSegment;

class Segment {
 public:
  virtual ~Segment() = default;

  virtual TensorList forward(const Context& ctx, const Microbatch& mb, const TensorList& inputs,
                             Stash& stash) const = 0;
  virtual TensorList backward_data(const Context& ctx, const Microbatch& mb, const TensorList& output_gradients,
                                   Stash& stash) const = 0;
  virtual void backward_weight(const Context& ctx, const Microbatch& mb, Stash& stash) const = 0;

  // Makes the compute stream wait for gradients that backward_data left in transfer (ActionKind::kWaitExchange).
  virtual void wait_exchange(const Context&) const {}
  // This segment, if its verbs can leave their exchange to other actions; else null.
  virtual const ExchangingSegment* exchanging() const { return nullptr; }
};

// A segment whose forward and backward_data end with an exchange between ranks on another stream. A list of actions may
// split such a verb into begin(), start(), wait() and finish(), and run verbs of another microbatch in between. At most
// one exchange of each verb is in flight. A graph of the exchange alone holds what exchange() enqueues.
class ExchangingSegment : public Segment {
 public:
  const ExchangingSegment* exchanging() const final { return this; }

  // Enqueues the work ahead of the exchange. Returns the tensors for start() and finish(), sent and received ones.
  virtual TensorList begin(Verb verb, const Context& ctx, const Microbatch& mb, const TensorList& inputs,
                           Stash& stash) const = 0;
  // Starts the exchange, after the compute stream's work so far.
  void start(Verb verb, const Context& ctx, const Microbatch& mb, const TensorList& begun, Stash& stash) const {
    open(verb, ctx);
    exchange(verb, ctx, mb, begun, stash, /*marks_begin=*/false);
    close(verb);
  }
  virtual Stream& exchange_stream() const = 0;
  // Makes the exchange's stream wait for the compute stream.
  virtual void open(Verb verb, const Context& ctx) const = 0;
  // Enqueues the exchange on its stream. With `marks_begin` it first records an event for wait_begin().
  virtual void exchange(Verb verb, const Context& ctx, const Microbatch& mb, const TensorList& begun, Stash& stash,
                        bool marks_begin) const = 0;
  // Records the exchange's end, for wait().
  virtual void close(Verb verb) const = 0;
  // Makes the compute stream wait until the exchange's stream has reached the exchange. It then has its multiprocessors
  // ahead of kernels whose blocks stay on all multiprocessors to their end.
  virtual void wait_begin(Verb verb, const Context& ctx) const = 0;
  // Makes the compute stream wait for the exchange that the verb started last.
  virtual void wait(Verb verb, const Context& ctx) const = 0;
  // Enqueues the work after the exchange. Returns the outputs of the verb.
  virtual TensorList finish(Verb verb, const Context& ctx, const Microbatch& mb, const TensorList& begun,
                            Stash& stash) const = 0;

  void wait_exchange(const Context& ctx) const override { wait(Verb::kBackwardData, ctx); }
};

// A layer with one input and one output. As a segment it maps the first of the pair, the preceding linear's output,
// before its addition to the residual stream. The second and its gradient pass unchanged.
class Layer : public Segment {
 public:
  virtual Tensor forward(const Context& ctx, const Microbatch& mb, const Tensor& x, Stash& stash) const = 0;
  virtual Tensor backward_data(const Context& ctx, const Microbatch& mb, const Tensor& dy, Stash& stash) const = 0;

  TensorList forward(const Context& ctx, const Microbatch& mb, const TensorList& inputs, Stash& stash) const final {
    TensorList outputs = inputs;
    outputs[0] = forward(ctx, mb, inputs[0], stash);
    return outputs;
  }
  TensorList backward_data(const Context& ctx, const Microbatch& mb, const TensorList& output_gradients,
                           Stash& stash) const final {
    TensorList gradients = output_gradients;
    gradients[0] = backward_data(ctx, mb, output_gradients[0], stash);
    return gradients;
  }
};

}  // namespace megalith
