// Attention of a sequence that several ranks share. B samples, S tokens of a sample on this rank, N heads, K key/value
// heads, D head dim.
#pragma once

#include <array>
#include <span>

#include "core/layers/core_attention.h"
#include "parallel/context_parallel/context_group.h"

namespace megalith {

// Each rank with its own heads while it is computed: Jacobs et al. 2023, arXiv:2309.14509 (DeepSpeed-Ulysses). An
// all-to-all takes a part of the sequence of all heads to the whole sequence of a part of the heads, attention is that
// of one rank, and another all-to-all takes its output back; likewise backward. N and K are multiples of the C ranks.
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

// Each rank with its own queries: Liu et al. 2023, arXiv:2310.01889, on
// the cut of core/ops/sequence_part.h, as in Megatron-LM. Rank r of C has chunks r and 2 C - 1 - r. Against its own
// keys the attention of its rows is causal. Of the keys of a rank before it all its queries see the first half; of
// those of a rank behind it the second half of its queries sees all. So each of the C - 1 other blocks takes half the
// work of a square, on every rank, and none is masked. What the blocks give is merged in fp32, in the order of the
// ring: own keys, those of rank r - 1, r - 2, ... The ring passes keys and values from rank to rank while the block
// before is computed; backward does so again, and the gradients of keys and values travel with them, each rank adding
// its part in fp32, until they are home. The gathered form collects all keys and values first, and reduce-scatters
// their gradients; it computes the same blocks.
class RingAttention : public CoreAttention {
 public:
  // `group` outlives it; `gathers`: the second form.
  RingAttention(const Spec& spec, ContextGroup& group, bool gathers)
      : CoreAttention(spec), group_(group), gathers_(gathers) {}

  Tensor forward_again(const Context& ctx, const Microbatch& mb, Stash& stash) const override;
  void backward_data(const Context& ctx, const Microbatch& mb, const Tensor& d_out, const Heads& gradients,
                     Stash& stash) const override;

 private:
  class Keys;
  class KeyGradients;
  struct Block;  // queries against the keys of one rank

  Block block(int step, std::int64_t tokens) const;
  void add_block(const Context& ctx, const Block& block, const Tensor& q, const Tensor& keys, const Tensor& sum,
                 const Tensor& lse) const;
  std::array<Tensor, 2> block_gradients(const Context& ctx, const Block& block, const Tensor& q, const Done& done,
                                        const Tensor& keys, const Tensor& dq_sum) const;
  static Heads heads_of(const Tensor& queries, const Tensor& keys, const Block& block);

  ContextGroup& group_;
  bool gathers_;
};

}  // namespace megalith
