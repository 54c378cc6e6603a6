// Attention of a sequence sharded over several ranks. B samples, S tokens of a sample on this rank, N heads, K
// key/value heads, D head dim.
#pragma once

#include <array>
#include <span>

#include "core/layers/core_attention.h"
#include "parallel/context_parallel/context_group.h"

namespace megalith {

// Attention in which each rank computes a part of the heads: Jacobs et al. 2023, arXiv:2309.14509 (DeepSpeed-Ulysses).
// An all-to-all maps a part of the sequence with all heads to the complete sequence with a part of the heads. Attention
// then is that of one rank, and another all-to-all returns its output. Backward is analogous. N and K are multiples of
// the C ranks.
class AllToAllAttention : public CoreAttention {
 public:
  AllToAllAttention(const Spec& spec, ContextGroup& group);  // `group` outlives it

  Tensor forward_again(const Context& ctx, const Microbatch& mb, Stash& stash) const override;
  void backward_data(const Context& ctx, const Microbatch& mb, const Tensor& d_out, const Heads& gradients,
                     Stash& stash) const override;

 private:
  // Saves heads of the complete sequence, [B, C S, heads / C, D], in sequence order.
  Heads inputs(const Context& ctx, const Microbatch& mb, const Heads& heads) const override;
  // Maps tensors [B, S, heads, D], each split into C parts of its heads, to [B, C S, sum of heads / C, D].
  Tensor to_whole_sequence(const Context& ctx, std::span<const Tensor> parts, const std::string& label) const;
  // Inverse mapping, which writes `parts`.
  void to_whole_heads(const Context& ctx, const Tensor& whole, std::span<const Tensor> parts,
                      const std::string& label) const;
  Tensor exchange(const Context& ctx, const Tensor& sent, const std::string& label) const;
  Heads split(const Tensor& whole) const;

  ContextGroup& group_;
};

// Attention in which each rank keeps its own queries: Liu et al. 2023, arXiv:2310.01889, with the split of
// core/ops/sequence_part.h, as in Megatron-LM. Rank r of C has chunks r and 2 C - 1 - r. Attention with a rank's own
// keys is causal. All its queries see the first half of a lower rank's keys. The second half of its queries sees all
// keys of a higher rank. So each of the other C - 1 blocks is half a square on every rank, and none is masked. Blocks
// are merged in fp32, in ring order: own keys, then those of rank r - 1, r - 2, ... The ring passes keys and values
// between ranks while the previous block is computed, and again in backward. Their gradients travel with them, each
// rank adds its part in fp32, and they end at their owner. The gathered form first gathers all keys and values, and
// reduce-scatters their gradients. It computes the same blocks. No query may reach a window, which would mask a part of
// a block. With documents, a block is the part of them that both
// ranks have (document_parts.h), and other rows are neutral in the merge.
class RingAttention : public CoreAttention {
 public:
  // `group` outlives it; `gathers` selects the gathered form.
  RingAttention(const Spec& spec, ContextGroup& group, bool gathers)
      : CoreAttention(spec), group_(group), gathers_(gathers) {}

  Tensor forward_again(const Context& ctx, const Microbatch& mb, Stash& stash) const override;
  void backward_data(const Context& ctx, const Microbatch& mb, const Tensor& d_out, const Heads& gradients,
                     Stash& stash) const override;

 private:
  class Keys;
  class KeyGradients;
  struct Block;  // queries with the keys of one rank

  Block block(int step, std::int64_t tokens) const;
  void add_block(const Context& ctx, const Block& block, const Tensor& q, const Tensor& keys, const Tensor& sum,
                 const Tensor& lse) const;
  std::array<Tensor, 2> block_gradients(const Context& ctx, const Block& block, const Tensor& q, const Done& done,
                                        const Tensor& keys, const Tensor& dq_sum) const;
  void add_documents(const Context& ctx, const Documents& documents, int step, const Tensor& q, const Tensor& keys,
                     const Tensor& sum, const Tensor& lse) const;
  std::array<Tensor, 2> document_gradients(const Context& ctx, const Documents& documents, int step, const Tensor& q,
                                           const Done& done, const Tensor& keys, const Tensor& dq_sum) const;
  static Heads heads_of(const Tensor& queries, const Tensor& keys, const Block& block);

  ContextGroup& group_;
  bool gathers_;
};

}  // namespace megalith
