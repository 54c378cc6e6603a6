// The one place that says which tensor of transformers is which of ours. Ours are one per matrix, [outputs, inputs];
// theirs may be several fused along the outputs (GPT-2's c_attn is [q; k; v]), stored transposed (GPT-2's Conv1D), and
// their tables of tokens have no rows of padding. A projection of all experts of a layer is one tensor of ours, one
// expert below the other; theirs are apart by expert, or in one of three dims.
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

// A tensor of ours, or one expert's rows of it, that lies in one of theirs.
struct HfPart {
  std::string name;        // logical: "decoder.layers.0.self_attention.linear_q.weight"
  Shape shape;             // [rows, columns] or [rows], padding included
  std::int64_t rows = 0;   // of these, how many theirs holds; the rest are zeros
  std::int64_t first = 0;  // theirs begin at this row
  std::int64_t begin = 0;  // and ours at this one
  Shape whole = shape;     // of the logical tensor
};

struct HfTensor {
  std::string name;                 // as transformers writes it: "model.layers.0.self_attn.q_proj.weight"
  std::vector<std::int64_t> shape;  // as it is stored; of three dims the first two are the rows
  bool transposed = false;          // stored [columns, rows]
  std::vector<HfPart> parts;        // one below the other

  std::int64_t rows() const { return transposed ? shape[1] : shape.size() == 3 ? shape[0] * shape[1] : shape[0]; }
  std::int64_t columns() const { return shape.size() == 1 ? 1 : transposed ? shape[0] : shape.back(); }
};

// Llama and its kin have the projections apart; some files hold them fused, in all layers.
struct HfFusion {
  bool qkv = false;      // self_attn.qkv_proj = [q_proj; k_proj; v_proj]
  bool gate_up = false;  // mlp.gate_up_proj = [gate_proj; up_proj]
  // mlp.experts.gate_up_proj [E, 2 F, H] and down_proj [E, H, F], as the modules of transformers 5 have them.
  bool experts = false;
};

// Every tensor of a resolved model of one of the families, in the order of the layers, all parts of a tensor of ours
// together; an output layer that is the word table does not occur.
std::vector<HfTensor> hf_tensors(const ModelConfig& model, HfFusion fusion = {});

inline constexpr std::string_view kHfOutputLayer = "lm_head.weight";
std::string hf_word_table(HfFamily family);

// Files of a bare model lack the prefix "transformer." or "model."; with it, as hf_tensors names them.
std::string with_hf_prefix(HfFamily family, std::string_view stored);

// Constants that old files hold and the model computes: causal masks, RoPE's frequencies.
bool is_hf_buffer(HfFamily family, std::string_view name);

// Copies between the bytes of a tensor of theirs and part `i` of ours, padding included; `item` is the size of an
// element, 2 or 4. Out spans have the whole size.
void take_hf_part(const HfTensor& tensor, std::size_t i, std::size_t item, std::span<const std::byte> theirs,
                  std::span<std::byte> ours);
void put_hf_part(const HfTensor& tensor, std::size_t i, std::size_t item, std::span<const std::byte> ours,
                 std::span<std::byte> theirs);

}  // namespace megalith
