// Mapping between tensors of transformers ("theirs") and of Megalith ("ours"). Megalith has one tensor per matrix,
// [outputs, inputs]. Tensors of transformers may be several matrices fused along the outputs (GPT-2's c_attn is [q; k;
// v]) or transposed (GPT-2's Conv1D). Their token tables have no padding. Megalith stores a projection of all experts
// of a layer as one tensor along the rows; transformers splits it by expert or uses three dims.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/hf/hf_config.h"
#include "core/tensor/shape.h"

namespace megalith {

// Tensor of Megalith, or one expert's rows of it, inside a tensor of transformers.
struct HfPart {
  std::string name;        // logical: "decoder.layers.0.self_attention.linear_q.weight"
  Shape shape;             // [rows, columns] or [rows], with padding
  std::int64_t rows = 0;   // rows stored in transformers; the rest are zeros
  std::int64_t first = 0;  // first row in the tensor of transformers
  std::int64_t begin = 0;  // first row in Megalith's tensor
  Shape whole = shape;     // shape of the logical tensor
};

struct HfTensor {
  std::string name;                 // name in transformers: "model.layers.0.self_attn.q_proj.weight"
  std::vector<std::int64_t> shape;  // as stored; of three dims the first two are the rows
  bool transposed = false;          // stored [columns, rows]
  std::vector<HfPart> parts;        // concatenated along the rows

  std::int64_t rows() const { return transposed ? shape[1] : shape.size() == 3 ? shape[0] * shape[1] : shape[0]; }
  std::int64_t columns() const { return shape.size() == 1 ? 1 : transposed ? shape[0] : shape.back(); }
};

// Fusions in a folder. Llama-like models usually store projections separately; some files fuse them in all layers.
struct HfFusion {
  bool qkv = false;      // self_attn.qkv_proj = [q_proj; k_proj; v_proj]
  bool gate_up = false;  // mlp.gate_up_proj = [gate_proj; up_proj]
  // Shapes in transformers 5: mlp.experts.gate_up_proj [E, 2 F, H] and down_proj [E, H, F].
  bool experts = false;
};

// Returns every tensor of a resolved model of a family, in layer order, with all parts of one of Megalith's tensors
// together. A tied output layer is omitted.
std::vector<HfTensor> hf_tensors(const ModelConfig& model, HfFusion fusion = {});

inline constexpr std::string_view kHfOutputLayer = "lm_head.weight";
std::string hf_word_table(HfFamily family);

// Adds the prefix "transformer." or "model." if a bare model's file omits it. Names then equal those of hf_tensors.
std::string with_hf_prefix(HfFamily family, std::string_view stored);

// Returns whether `name` is a constant of old files that the model computes: causal masks, RoPE's frequencies.
bool is_hf_buffer(HfFamily family, std::string_view name);

// Copies between the bytes of a tensor of transformers and part `i` of Megalith's, with padding.
// `item` is the size of an element: 2 or 4 bytes. Output spans have the full size.
void take_hf_part(const HfTensor& tensor, std::size_t i, std::size_t item, std::span<const std::byte> theirs,
                  std::span<std::byte> ours);
void put_hf_part(const HfTensor& tensor, std::size_t i, std::size_t item, std::span<const std::byte> ours,
                 std::span<std::byte> theirs);

}  // namespace megalith
