// A piece of the model with three verbs. forward fills the stash; backward_data takes and returns one optional gradient
// per tensor and leaves in the stash what the weight gradient needs; backward_weight consumes that, possibly much
// later. A segment holds no state between calls, so that it serves many microbatches in flight, and never writes to its
// inputs, so that it can be run again.
#pragma once

#include <array>
#include <initializer_list>

#include "core/layers/context.h"
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

  // A tensor that was left out is not an absent one: who forgets the residual stream shall not lose it in silence.
  std::size_t checked(int i) const {
    require(i >= 0 && i < size_,
            "a segment reads a tensor that its neighbour did not hand on: between the segments of a model flow two, "
            "(hidden, residual), and back two gradients");
    return static_cast<std::size_t>(i);
  }

  std::array<Tensor, kMax> tensors_{};
  int size_ = 0;
};

// The part of the model that a segment is, as --cuda-graph-modules chooses them.
enum class SegmentModule : std::uint8_t {
  kOther,
  kEmbedding,
  kHead,  // final norm, output layer and loss
  kAttention,
  kMlp,
  kMoeRouter,
  kMoeDispatch,  // of rows to the ranks of their experts
  kMoe,          // experts, and what adds up their rows; or with the router, where that is recomputed with them
  kOwn,          // a layer of your own (apps/config/own.h)
  kLayer,        // whole layers that are recomputed together
};

class Segment {
 public:
  virtual ~Segment() = default;

  virtual TensorList forward(const Context& ctx, const Microbatch& mb, const TensorList& inputs,
                             Stash& stash) const = 0;
  virtual TensorList backward_data(const Context& ctx, const Microbatch& mb, const TensorList& output_gradients,
                                   Stash& stash) const = 0;
  virtual void backward_weight(const Context& ctx, const Microbatch& mb, Stash& stash) const = 0;

  // Gradients that backward_data has left on their way are there for the compute stream (ActionKind::kWaitReturn).
  virtual void wait_return(const Context&) const {}
};

// One tensor in, one out. As a segment of a model it works on the first of the pair, what the linear in front has made,
// before that is added to the residual stream; the second is handed on as it came, and so is its gradient.
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
