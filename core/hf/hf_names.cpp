#include "core/hf/hf_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "core/base/error.h"
#include "core/model/config.h"

namespace megalith {

namespace {

// Linear layer under Megalith's name and, if stored separately, the name in transformers; both without .weight.
struct Linear {
  std::string theirs;
  std::string ours;
  std::int64_t rows;
};

class TensorList {
 public:
  TensorList(const ModelConfig& model, HfFusion fusion)
      : model_(model), fusion_(fusion), family_(hf_family(model)), is_gpt2_(family_ == HfFamily::kGpt2) {}

  std::vector<HfTensor> all() {
    table(is_gpt2_ ? "transformer.wte" : "model.embed_tokens", "embedding.word_embeddings");
    if (is_gpt2_) {
      const Shape positions{model_.max_position_embeddings, model_.hidden_size};
      add("transformer.wpe.weight", {part("embedding.position_embeddings.weight", positions)});
    }
    const std::vector<bool> has_experts = moe_layers(model_.moe, model_.num_layers);
    for (std::int64_t i = 0; i < model_.num_layers; ++i) {
      const std::string theirs = fmt::format("{}.{}.", is_gpt2_ ? "transformer.h" : "model.layers", i);
      const std::string ours = fmt::format("decoder.layers.{}.", i);
      layer(theirs, ours);
      has_experts[static_cast<std::size_t>(i)] ? experts(theirs, ours + "mlp.") : mlp(theirs + "mlp.", ours + "mlp.");
    }
    norm(is_gpt2_ ? "transformer.ln_f" : "model.norm", "decoder.final_layernorm", model_.hidden_size);
    if (model_.untie_embeddings_and_output_weights) table("lm_head", "output_layer");
    return std::move(tensors_);
  }

 private:
  void layer(const std::string& theirs, const std::string& ours) {
    const std::int64_t hidden = model_.hidden_size;
    norm(theirs + (is_gpt2_ ? "ln_1" : "input_layernorm"), ours + "input_layernorm", hidden);
    attention(theirs + (is_gpt2_ ? "attn." : "self_attn."), ours + "self_attention.");
    norm(theirs + (is_gpt2_ ? "ln_2" : "post_attention_layernorm"), ours + "pre_mlp_layernorm", hidden);
  }

  void mlp(const std::string& theirs, const std::string& ours) {
    const std::int64_t hidden = model_.hidden_size, ffn = model_.ffn_hidden_size;
    const bool bias = model_.add_bias_linear;
    const Linear gate{theirs + "gate_proj", ours + "linear_gate", ffn}, up{theirs + "up_proj", ours + "linear_up", ffn};
    if (is_gpt2_) {
      fused(theirs + "c_fc", hidden, bias, {{{}, ours + "linear_fc1", ffn}});
    } else if (fusion_.gate_up) {
      fused(theirs + "gate_up_proj", hidden, bias, {gate, up});
    } else {
      unfused(hidden, bias, {gate, up});
    }
    unfused(ffn, bias, {{theirs + (is_gpt2_ ? "c_proj" : "down_proj"), ours + "linear_fc2", hidden}});
  }

  // Names in Mixtral's files differ from those of its modules.
  void experts(const std::string& layer, const std::string& ours) {
    const std::int64_t hidden = model_.hidden_size, ffn = model_.moe.ffn_hidden_size, count = model_.moe.num_experts;
    const bool has_old_names = family_ == HfFamily::kMixtral && !fusion_.experts;
    const std::string theirs = layer + (has_old_names ? "block_sparse_moe." : "mlp.");
    add(theirs + "gate.weight", {part(ours + "router.weight", {count, hidden})});
    const std::string gate = ours + "experts.linear_gate.weight", up = ours + "experts.linear_up.weight",
                      down = ours + "experts.linear_fc2.weight";
    if (fusion_.experts) {
      std::vector<HfPart> gates_and_ups, downs;
      for (std::int64_t e = 0; e < count; ++e) {
        gates_and_ups.push_back(expert(gate, {ffn, hidden}, e));
        gates_and_ups.push_back(expert(up, {ffn, hidden}, e));
        downs.push_back(expert(down, {hidden, ffn}, e));
      }
      add(theirs + "experts.gate_up_proj", std::move(gates_and_ups));
      tensors_.back().shape = {count, 2 * ffn, hidden};
      add(theirs + "experts.down_proj", std::move(downs));
      tensors_.back().shape = {count, hidden, ffn};
      return;
    }
    const auto each = [&](const char* projection, const std::string& name, const Shape& shape) {
      for (std::int64_t e = 0; e < count; ++e)
        add(fmt::format("{}experts.{}.{}.weight", theirs, e, projection), {expert(name, shape, e)});
    };
    each(has_old_names ? "w1" : "gate_proj", gate, {ffn, hidden});
    each(has_old_names ? "w3" : "up_proj", up, {ffn, hidden});
    each(has_old_names ? "w2" : "down_proj", down, {hidden, ffn});
  }

  void attention(const std::string& theirs, const std::string& ours) {
    const std::int64_t q_rows = model_.num_attention_heads * model_.kv_channels;
    const std::int64_t kv_rows = model_.num_query_groups * model_.kv_channels;
    const std::vector<Linear> qkv = {{theirs + "q_proj", ours + "linear_q", q_rows},
                                     {theirs + "k_proj", ours + "linear_k", kv_rows},
                                     {theirs + "v_proj", ours + "linear_v", kv_rows}};
    if (is_gpt2_ || fusion_.qkv) {
      fused(theirs + (is_gpt2_ ? "c_attn" : "qkv_proj"), model_.hidden_size, model_.has_qkv_bias(), qkv);
    } else {
      unfused(model_.hidden_size, model_.has_qkv_bias(), qkv);
    }
    unfused(q_rows, model_.has_attn_proj_bias(),
            {{theirs + (is_gpt2_ ? "c_proj" : "o_proj"), ours + "linear_proj", model_.hidden_size}});
    if (!model_.qk_layernorm) return;
    norm(theirs + "q_norm", ours + "q_layernorm", model_.kv_channels);
    norm(theirs + "k_norm", ours + "k_layernorm", model_.kv_channels);
  }

  static HfPart part(std::string name, const Shape& shape) {
    return {.name = std::move(name), .shape = shape, .rows = shape[0]};
  }

  HfPart expert(const std::string& name, const Shape& shape, std::int64_t e) const {
    HfPart rows = part(name, shape);
    rows.begin = e * shape[0];
    rows.whole[0] = model_.moe.num_experts * shape[0];
    return rows;
  }

  // Adds a tensor of transformers that consists of the parts, concatenated along the rows.
  void add(std::string theirs, std::vector<HfPart> parts, bool transposed = false) {
    std::int64_t rows = 0;
    for (HfPart& part : parts) {
      part.first = rows;
      rows += part.rows;
    }
    std::vector<std::int64_t> shape = {rows};
    if (parts[0].shape.rank() == 2) shape.insert(transposed ? shape.begin() : shape.end(), parts[0].shape[1]);
    tensors_.push_back(
        {.name = std::move(theirs), .shape = std::move(shape), .transposed = transposed, .parts = std::move(parts)});
  }

  void table(const std::string& theirs, const std::string& ours) {
    HfPart rows = part(ours + ".weight", {model_.padded_vocab_size, model_.hidden_size});
    rows.rows = model_.vocab_size;
    add(theirs + ".weight", {std::move(rows)});
  }

  void norm(const std::string& theirs, const std::string& ours, std::int64_t size) {
    add(theirs + ".weight", {part(ours + ".weight", {size})});
    if (model_.normalization != Normalization::kRmsNorm) add(theirs + ".bias", {part(ours + ".bias", {size})});
  }

  void unfused(std::int64_t inputs, bool bias, const std::vector<Linear>& linears) {
    for (const Linear& linear : linears) fused(linear.theirs, inputs, bias, {linear});
  }

  void fused(const std::string& theirs, std::int64_t inputs, bool bias, const std::vector<Linear>& linears) {
    std::vector<HfPart> weights, biases;
    for (const Linear& linear : linears) {
      weights.push_back(part(linear.ours + ".weight", {linear.rows, inputs}));
      biases.push_back(part(linear.ours + ".bias", {linear.rows}));
    }
    add(theirs + ".weight", std::move(weights), is_gpt2_);
    if (bias) add(theirs + ".bias", std::move(biases));
  }

  const ModelConfig& model_;
  HfFusion fusion_;
  HfFamily family_;
  bool is_gpt2_;
  std::vector<HfTensor> tensors_;
};

// Calls visit(ours, theirs, bytes) with both byte offsets of each run that a part shares with its tensor.
template <class Visit>
void for_each_run(const HfTensor& tensor, const HfPart& part, std::size_t item, Visit visit) {
  const auto rows = static_cast<std::size_t>(part.rows), columns = static_cast<std::size_t>(tensor.columns());
  const auto first = static_cast<std::size_t>(part.first), all_rows = static_cast<std::size_t>(tensor.rows());
  if (!tensor.transposed) return visit(0, first * columns * item, rows * columns * item);
  for (std::size_t column = 0; column < columns; ++column) {
    for (std::size_t row = 0; row < rows; ++row) {
      visit((row * columns + column) * item, (column * all_rows + first + row) * item, item);
    }
  }
}

// Copies without a library call for a single element.
void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes == 2) {
    std::memcpy(to, from, 2);
  } else if (bytes == 4) {
    std::memcpy(to, from, 4);
  } else {
    std::memcpy(to, from, bytes);
  }
}

void check_sizes(const HfTensor& tensor, const HfPart& part, std::size_t item, std::size_t theirs, std::size_t ours) {
  const auto wanted = static_cast<std::size_t>(tensor.rows() * tensor.columns()) * item;
  require(theirs == wanted && ours == static_cast<std::size_t>(part.shape.numel()) * item,
          "the bytes of " + part.name + " and " + tensor.name);
}

}  // namespace

std::vector<HfTensor> hf_tensors(const ModelConfig& model, HfFusion fusion) { return TensorList(model, fusion).all(); }

std::string hf_word_table(HfFamily family) {
  return family == HfFamily::kGpt2 ? "transformer.wte.weight" : "model.embed_tokens.weight";
}

std::string with_hf_prefix(HfFamily family, std::string_view stored) {
  const std::string_view prefix = family == HfFamily::kGpt2 ? "transformer." : "model.";
  if (stored.starts_with(prefix) || stored.starts_with("lm_head.")) return std::string(stored);
  return fmt::format("{}{}", prefix, stored);
}

bool is_hf_buffer(HfFamily family, std::string_view name) {
  if (family == HfFamily::kGpt2) {
    return name.starts_with("transformer.h.") && (name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias"));
  }
  return name.starts_with("model.") && name.ends_with("rotary_emb.inv_freq");
}

void take_hf_part(const HfTensor& tensor, std::size_t i, std::size_t item, std::span<const std::byte> theirs,
                  std::span<std::byte> ours) {
  const HfPart& part = tensor.parts[i];
  check_sizes(tensor, part, item, theirs.size(), ours.size());
  for_each_run(tensor, part, item, [&](std::size_t our, std::size_t their, std::size_t bytes) {
    copy_bytes(ours.data() + our, theirs.data() + their, bytes);
  });
  std::ranges::fill(ours.subspan(static_cast<std::size_t>(part.rows * tensor.columns()) * item), std::byte{0});
}

void put_hf_part(const HfTensor& tensor, std::size_t i, std::size_t item, std::span<const std::byte> ours,
                 std::span<std::byte> theirs) {
  const HfPart& part = tensor.parts[i];
  check_sizes(tensor, part, item, theirs.size(), ours.size());
  for_each_run(tensor, part, item, [&](std::size_t our, std::size_t their, std::size_t bytes) {
    copy_bytes(theirs.data() + their, ours.data() + our, bytes);
  });
}

}  // namespace megalith
