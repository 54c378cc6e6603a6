// Attention of a sequence that several ranks share, each with its own heads while it is computed: Jacobs et al. 2023,
// arXiv:2309.14509 (DeepSpeed-Ulysses). An all-to-all takes a part of the sequence of all heads to the whole sequence
// of a part of the heads, attention is that of one rank, and another all-to-all takes its output back; likewise
// backward. N heads and K key/value heads of this rank are multiples of the C ranks.
// B samples, S tokens of a sample on this rank, D head dim.
#pragma once

#include <span>

#include "core/layers/core_attention.h"
#include "parallel/context_parallel/context_group.h"

namespace megalith {

class AllToAllAttention : public CoreAttention {
 public:
  AllToAllAttention(const Spec& spec, ContextGroup& group);  // `group` outlives it

  Tensor forward_again(const Context& ctx, const Microbatch& mb, Stash& stash) const override;
  void backward_data(const Context& ctx, const Microbatch& mb, const Tensor& d_out, const Heads& gradients,
                     Stash& stash) const override;

 private:
  // Kept are heads of the whole sequence, [B, C S, heads / C, D], in its order.
  Heads inputs(const Context& ctx, const Microbatch& mb, const Heads& heads) const override;
  // Tensors [B, S, heads, D], each cut into C parts of its heads -> [B, C S, sum of heads / C, D].
  Tensor to_whole_sequence(const Context& ctx, std::span<const Tensor> parts, const std::string& label) const;
  // The inverse, which writes `parts`.
  void to_whole_heads(const Context& ctx, const Tensor& whole, std::span<const Tensor> parts,
                      const std::string& label) const;
  Tensor exchange(const Context& ctx, const Tensor& sent, const std::string& label) const;
  Heads split(const Tensor& whole) const;

  ContextGroup& group_;
};

}  // namespace megalith
