// Decorators of segments: a chain that runs as one, and full recomputation of a segment in backward (Chen et al. 2016,
// arXiv:1604.06174). The stash keeps only the inputs; forward runs again, bit for bit, ahead of backward_data.
#pragma once

#include <vector>

#include "core/layers/segment.h"

namespace megalith {

// A chain of segments with one common layer stash.
class Sequential : public Segment {
 public:
  explicit Sequential(std::vector<std::unique_ptr<Segment>> segments) : segments_(std::move(segments)) {}

  TensorList forward(const Context& ctx, const Microbatch& mb, const TensorList& inputs, Stash& stash) const override;
  TensorList backward_data(const Context& ctx, const Microbatch& mb, const TensorList& output_gradients,
                           Stash& stash) const override;
  void backward_weight(const Context& ctx, const Microbatch& mb, Stash& stash) const override;

 private:
  Stash& layer(Stash& stash) const { return stash.child(static_cast<int>(segments_.size())); }
  Stash& part(Stash& stash, std::size_t segment) const;

  std::vector<std::unique_ptr<Segment>> segments_;
};

class Recompute : public Segment {
 public:
  explicit Recompute(std::unique_ptr<Segment> inner) : inner_(std::move(inner)) {}

  TensorList forward(const Context& ctx, const Microbatch& mb, const TensorList& inputs, Stash& stash) const override;
  TensorList backward_data(const Context& ctx, const Microbatch& mb, const TensorList& output_gradients,
                           Stash& stash) const override;
  void backward_weight(const Context& ctx, const Microbatch& mb, Stash& stash) const override;

 private:
  std::unique_ptr<Segment> inner_;
};

}  // namespace megalith
