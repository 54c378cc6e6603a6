#include "apps/hf_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "core/base/error.h"

namespace megalith {

namespace {

// The rows of one linear layer of ours.
struct Rows {
  std::string name;  // without .weight
  std::int64_t rows;
};

class TensorList {
 public:
  TensorList(const ModelConfig& model, HfFusion fusion) : model_(model), fusion_(fusion) {}

  std::vector<HfTensor> gpt2() {
    table("transformer.wte", "embedding.word_embeddings");
    const std::int64_t positions = model_.max_position_embeddings;
    add({.name = "transformer.wpe.weight",
         .shape = {positions, model_.hidden_size},
         .parts = {part("embedding.position_embeddings.weight", {positions, model_.hidden_size})}});
    for (std::int64_t i = 0; i < model_.num_layers; ++i) {
      const std::string ours = fmt::format("decoder.layers.{}.", i), theirs = fmt::format("transformer.h.{}.", i);
      const std::string self = ours + "self_attention.";
      norm(theirs + "ln_1", ours + "input_layernorm", model_.hidden_size);
      linear(theirs + "attn.c_attn", model_.hidden_size, model_.add_bias_linear,
             {{self + "linear_q", q_rows()}, {self + "linear_k", kv_rows()}, {self + "linear_v", kv_rows()}});
      linear(theirs + "attn.c_proj", q_rows(), model_.add_bias_linear, {{self + "linear_proj", model_.hidden_size}});
      norm(theirs + "ln_2", ours + "pre_mlp_layernorm", model_.hidden_size);
      linear(theirs + "mlp.c_fc", model_.hidden_size, model_.add_bias_linear,
             {{ours + "mlp.linear_fc1", model_.ffn_hidden_size}});
      linear(theirs + "mlp.c_proj", model_.ffn_hidden_size, model_.add_bias_linear,
             {{ours + "mlp.linear_fc2", model_.hidden_size}});
    }
    norm("transformer.ln_f", "decoder.final_layernorm", model_.hidden_size);
    output();
    return std::move(tensors_);
  }

  std::vector<HfTensor> llama() {
    table("model.embed_tokens", "embedding.word_embeddings");
    for (std::int64_t i = 0; i < model_.num_layers; ++i) {
      const std::string ours = fmt::format("decoder.layers.{}.", i), theirs = fmt::format("model.layers.{}.", i);
      norm(theirs + "input_layernorm", ours + "input_layernorm", model_.hidden_size);
      attention(theirs + "self_attn.", ours + "self_attention.");
      norm(theirs + "post_attention_layernorm", ours + "pre_mlp_layernorm", model_.hidden_size);
      const Rows gate{ours + "mlp.linear_gate", model_.ffn_hidden_size}, up{ours + "mlp.linear_up", gate.rows};
      const bool bias = model_.add_bias_linear;
      if (fusion_.gate_up) {
        linear(theirs + "mlp.gate_up_proj", model_.hidden_size, bias, {gate, up});
      } else {
        linear(theirs + "mlp.gate_proj", model_.hidden_size, bias, {gate});
        linear(theirs + "mlp.up_proj", model_.hidden_size, bias, {up});
      }
      linear(theirs + "mlp.down_proj", model_.ffn_hidden_size, bias, {{ours + "mlp.linear_fc2", model_.hidden_size}});
    }
    norm("model.norm", "decoder.final_layernorm", model_.hidden_size);
    output();
    return std::move(tensors_);
  }

 private:
  std::int64_t q_rows() const { return model_.num_attention_heads * model_.kv_channels; }
  std::int64_t kv_rows() const { return model_.num_query_groups * model_.kv_channels; }

  static HfPart part(std::string name, const Shape& shape) {
    return {.name = std::move(name), .shape = shape, .rows = shape[0]};
  }
  void add(HfTensor tensor) { tensors_.push_back(std::move(tensor)); }

  void attention(const std::string& theirs, const std::string& ours) {
    const Rows q{ours + "linear_q", q_rows()}, k{ours + "linear_k", kv_rows()}, v{ours + "linear_v", kv_rows()};
    const bool bias = model_.has_qkv_bias();
    if (fusion_.qkv) {
      linear(theirs + "qkv_proj", model_.hidden_size, bias, {q, k, v});
    } else {
      linear(theirs + "q_proj", model_.hidden_size, bias, {q});
      linear(theirs + "k_proj", model_.hidden_size, bias, {k});
      linear(theirs + "v_proj", model_.hidden_size, bias, {v});
    }
    linear(theirs + "o_proj", q_rows(), model_.has_attn_proj_bias(), {{ours + "linear_proj", model_.hidden_size}});
    if (!model_.qk_layernorm) return;
    norm(theirs + "q_norm", ours + "q_layernorm", model_.kv_channels);
    norm(theirs + "k_norm", ours + "k_layernorm", model_.kv_channels);
  }

  void table(const std::string& theirs, const std::string& ours) {
    HfPart rows = part(ours + ".weight", {model_.padded_vocab_size, model_.hidden_size});
    rows.rows = model_.vocab_size;
    add({.name = theirs + ".weight", .shape = {model_.vocab_size, model_.hidden_size}, .parts = {std::move(rows)}});
  }

  void output() {
    if (model_.untie_embeddings_and_output_weights) table("lm_head", "output_layer");
  }

  void norm(const std::string& theirs, const std::string& ours, std::int64_t size) {
    add({.name = theirs + ".weight", .shape = {size}, .parts = {part(ours + ".weight", {size})}});
    if (model_.normalization == Normalization::kRmsNorm) return;
    add({.name = theirs + ".bias", .shape = {size}, .parts = {part(ours + ".bias", {size})}});
  }

  void linear(const std::string& theirs, std::int64_t inputs, bool bias, const std::vector<Rows>& rows) {
    const bool transposed = model_.position_embedding_type == PositionEmbedding::kLearnedAbsolute;  // GPT-2
    HfTensor weight{.name = theirs + ".weight", .transposed = transposed}, offset{.name = theirs + ".bias"};
    std::int64_t outputs = 0;
    for (const Rows& block : rows) {
      weight.parts.push_back(part(block.name + ".weight", {block.rows, inputs}));
      offset.parts.push_back(part(block.name + ".bias", {block.rows}));
      weight.parts.back().first = offset.parts.back().first = outputs;
      outputs += block.rows;
    }
    weight.shape = {outputs, inputs};
    if (transposed) std::swap(weight.shape[0], weight.shape[1]);
    offset.shape = {outputs};
    add(std::move(weight));
    if (bias) add(std::move(offset));
  }

  const ModelConfig& model_;
  HfFusion fusion_;
  std::vector<HfTensor> tensors_;
};

void check_sizes(const HfTensor& tensor, const HfPart& part, std::size_t item, std::size_t theirs, std::size_t ours) {
  const auto wanted = static_cast<std::size_t>(tensor.rows() * tensor.columns()) * item;
  require(theirs == wanted && ours == static_cast<std::size_t>(part.shape.numel()) * item,
          "the bytes of " + part.name + " and " + tensor.name);
}

// Theirs is [columns, rows], of which ours has some rows.
template <class Element>
void transpose_out(const HfTensor& tensor, const HfPart& part, const std::byte* theirs, std::byte* ours) {
  const std::int64_t rows = tensor.rows(), columns = tensor.columns();
  for (std::int64_t column = 0; column < columns; ++column) {
    for (std::int64_t row = 0; row < part.rows; ++row) {
      std::memcpy(ours + static_cast<std::size_t>(row * columns + column) * sizeof(Element),
                  theirs + static_cast<std::size_t>(column * rows + part.first + row) * sizeof(Element),
                  sizeof(Element));
    }
  }
}

template <class Element>
void transpose_in(const HfTensor& tensor, const HfPart& part, const std::byte* ours, std::byte* theirs) {
  const std::int64_t rows = tensor.rows(), columns = tensor.columns();
  for (std::int64_t column = 0; column < columns; ++column) {
    for (std::int64_t row = 0; row < part.rows; ++row) {
      std::memcpy(theirs + static_cast<std::size_t>(column * rows + part.first + row) * sizeof(Element),
                  ours + static_cast<std::size_t>(row * columns + column) * sizeof(Element), sizeof(Element));
    }
  }
}

}  // namespace

std::vector<HfTensor> hf_tensors(const ModelConfig& model, HfFusion fusion) {
  TensorList list(model, fusion);
  return hf_family(model) == HfFamily::kGpt2 ? list.gpt2() : list.llama();
}

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
  const std::size_t row = static_cast<std::size_t>(tensor.columns()) * item;
  const std::size_t held = static_cast<std::size_t>(part.rows) * row;
  if (!tensor.transposed) {
    const auto begin = theirs.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(part.first) * row);
    std::copy_n(begin, held, ours.begin());
  } else if (item == 2) {
    transpose_out<std::uint16_t>(tensor, part, theirs.data(), ours.data());
  } else {
    transpose_out<std::uint32_t>(tensor, part, theirs.data(), ours.data());
  }
  std::fill(ours.begin() + static_cast<std::ptrdiff_t>(held), ours.end(), std::byte{0});
}

void put_hf_part(const HfTensor& tensor, std::size_t i, std::size_t item, std::span<const std::byte> ours,
                 std::span<std::byte> theirs) {
  const HfPart& part = tensor.parts[i];
  check_sizes(tensor, part, item, theirs.size(), ours.size());
  const std::size_t row = static_cast<std::size_t>(tensor.columns()) * item;
  if (!tensor.transposed) {
    std::copy_n(ours.begin(), static_cast<std::size_t>(part.rows) * row,
                theirs.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(part.first) * row));
  } else if (item == 2) {
    transpose_in<std::uint16_t>(tensor, part, ours.data(), theirs.data());
  } else {
    transpose_in<std::uint32_t>(tensor, part, ours.data(), theirs.data());
  }
}

}  // namespace megalith
