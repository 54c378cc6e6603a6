#include "tests/unit/model/model_families.h"

#include <stdexcept>

namespace megalith::test {

namespace {

ModelConfig gpt2() {
  ModelConfig c;
  c.num_layers = 2;
  c.hidden_size = 32;
  c.num_attention_heads = 4;
  c.seq_length = 13;
  c.vocab_size = 61;
  c.make_vocab_size_divisible_by = 32;
  return c;
}

ModelConfig llama() {
  ModelConfig c = gpt2();
  c.hidden_size = 48;
  c.ffn_hidden_size = 40;
  c.num_query_groups = 2;
  c.position_embedding_type = PositionEmbedding::kRope;
  c.rotary_base = 500000;
  c.normalization = Normalization::kRmsNorm;
  c.swiglu = true;
  c.add_bias_linear = false;
  c.untie_embeddings_and_output_weights = true;
  return c;
}

// With attention_bias, as transformers calls it. The six frequencies are kept, mixed and divided.
ModelConfig llama31() {
  ModelConfig c = llama();
  c.use_rope_scaling = true;
  c.rope_scaling.original_max_position_embeddings = 64;
  c.add_qkv_bias = c.add_attn_proj_bias = true;
  return c;
}

// Divided, mixed and kept frequencies; cos and sin are scaled. With heads of their own width, as in Qwen3.
ModelConfig yarn() {
  ModelConfig c = llama();
  c.kv_channels = 16;
  c.rope_type = RopeType::kYarn;
  c.yarn.factor = 4;
  c.yarn.original_max_position_embeddings = 64;
  c.yarn.beta_fast = 8;
  c.yarn.mscale = 2;
  c.yarn.mscale_all_dim = 0.5;
  return c;
}

ModelConfig interpolated() {
  ModelConfig c = llama();
  c.rotary_seq_len_interpolation_factor = 2.5;
  return c;
}

ModelConfig qwen2() {
  ModelConfig c = llama();
  c.add_qkv_bias = true;
  c.untie_embeddings_and_output_weights = false;
  c.norm_epsilon = 1e-6;
  return c;
}

ModelConfig qwen3() {
  ModelConfig c = llama();
  c.hidden_size = 40;
  c.kv_channels = 16;  // not hidden / heads
  c.qk_layernorm = true;
  return c;
}

ModelConfig neox() {
  ModelConfig c = gpt2();
  c.position_embedding_type = PositionEmbedding::kRope;
  c.rotary_percent = 0.5;
  c.activation_func = ActivationFunction::kGelu;
  c.untie_embeddings_and_output_weights = true;
  return c;
}

// No positions, one key/value head, LayerNorm of q and k.
ModelConfig nope() {
  ModelConfig c = gpt2();
  c.position_embedding_type = PositionEmbedding::kNone;
  c.group_query_attention = true;
  c.qk_layernorm = true;
  return c;
}

// Nemotron-4: squared ReLU, LayerNorm with weights around 0.
ModelConfig nemotron() {
  ModelConfig c = gpt2();
  c.position_embedding_type = PositionEmbedding::kRope;
  c.rotary_percent = 0.5;
  c.squared_relu = c.apply_layernorm_1p = true;
  c.add_bias_linear = false;
  c.untie_embeddings_and_output_weights = true;
  return c;
}

// Weights around 0 in all norms, of queries and keys too.
ModelConfig zero_centered(ModelConfig c) {
  c.apply_layernorm_1p = true;
  return c;
}

// Windows of `keys` keys in every other layer, the first included.
ModelConfig with_windows(ModelConfig c, std::int64_t keys) {
  c.window_size = {keys - 1, 0};
  c.window_attn_skip_freq = "2";
  return c;
}

// Past the tiles of attention and matrix products.
ModelConfig longer(ModelConfig c) {
  c.num_layers = 1;
  c.seq_length = 131;
  return c;
}

ModelConfig with_dropout(ModelConfig c) {
  c.hidden_dropout = 0.1;
  return c;
}

}  // namespace

std::vector<ModelFamily> model_families() {
  std::vector<ModelFamily> families = {
      {"gpt2", gpt2()},   {"gpt2_dropout", with_dropout(gpt2())},   {"llama", llama()},
      {"qwen2", qwen2()}, {"qwen3_dropout", with_dropout(qwen3())}, {"neox", neox()},
      {"nope", nope()},   {"llama_long", longer(llama())},          {"llama31", llama31()},
      {"yarn", yarn()},   {"interpolated", interpolated()}};
  families.push_back({"nemotron", nemotron()});
  families.push_back({"qwen3_1p", zero_centered(qwen3())});
  families.push_back({"windows", with_windows(qwen2(), 4)});
  families.push_back({"windows_long", with_windows(longer(llama()), 70)});
  for (ModelFamily& family : families) {
    resolve(family.config);
    validate(family.config);
  }
  return families;
}

ModelConfig family(const std::string& name, DType dtype, DeviceType device) {
  for (const ModelFamily& family : model_families()) {
    if (family.name != name) continue;
    ModelConfig config = family.config;
    config.params_dtype = dtype;
    if (device == DeviceType::kCuda && dtype == DType::kBf16) config.kv_channels = (config.kv_channels + 7) / 8 * 8;
    return config;
  }
  throw std::logic_error("no family " + name);
}

}  // namespace megalith::test
