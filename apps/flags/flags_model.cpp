// Rows of the model flags; flags_moe.cpp has the rows of the expert flags.
#include <algorithm>

#include "apps/flags/flags_table.h"
#include "core/model/config.h"

namespace megalith {

using enum FlagGroup;
using enum OnLoad;

namespace {

// Pair of numbers, in Megatron-LM's form LEFT,RIGHT or (LEFT,RIGHT) too.
Binding window_size(std::vector<std::int64_t>* field) {
  Binding pair = integers(field, {-1, kMaxLength}, 2);
  pair.set = [set = pair.set](const std::vector<std::string>& texts) {
    if (texts.size() != 1) return set(texts);
    std::string_view text = texts[0];
    if (text.starts_with('(') && text.ends_with(')')) text = text.substr(1, text.size() - 2);
    const std::size_t comma = std::min(text.find(','), text.size());
    return set({std::string(text.substr(0, comma)), std::string(text.substr(std::min(comma + 1, text.size())))});
  };
  return pair;
}

// Rows of YaRN. Megatron-LM gives them the same meaning with multi-latent attention.
void add_yarn(FlagTable& t, ModelConfig& m) {
  Section rope(t, kModel, kShaped, {.needs = {{"position-embedding-type", "rope"}}});
  Section yarn(t, kModel, kShaped, {.needs = {{"rope-type", "yarn"}}});
  rope.add("rope-type", "NAME", choice(&m.rope_type, {"rope", "yarn"}),
           "yarn: RoPE scaling by YaRN (rope_type yarn of transformers)",
           {.excludes = {{"use-rope-scaling"}, {"rotary-seq-len-interpolation-factor", "above 1"}}, .example = "yarn"});
  yarn.add("rotary-scaling-factor", "X", real(&m.yarn.factor, {1, kInfinity}),
           "YaRN: divisor of the low frequencies, new context / original context", {.example = "40"});
  yarn.add("original-max-position-embeddings", "TOKENS",
           integer(&m.yarn.original_max_position_embeddings, {1, kMaxLength}),
           "YaRN: context length of the original pretraining", {.example = "8192"});
  yarn.add("beta-fast", "X", real(&m.yarn.beta_fast, {0, kInfinity, true}),
           "YaRN: turns in the original context from which a frequency is not scaled", {.example = "16"});
  yarn.add("beta-slow", "X", real(&m.yarn.beta_slow, {0, kInfinity, true}),
           "YaRN: turns in the original context up to which a frequency is low", {.example = "2"});
  yarn.add("no-yarn-correction-range-round-to-int", "", inverted_toggle(&m.yarn.truncate),
           "YaRN: the range between low and high frequencies is not rounded to whole pairs");
  yarn.add("mscale", "X", real(&m.yarn.mscale, {0, kInfinity}),
           "YaRN: cos and sin are multiplied by m(mscale) / m(mscale-all-dim), with m(x) = 0.1 x ln(factor) + 1",
           {.example = "0.7"});
  yarn.add("mscale-all-dim", "X", real(&m.yarn.mscale_all_dim, {0, kInfinity}), "YaRN: see --mscale", {.example = "1"});
  yarn.add("rope-scaling-attention-factor", "X", real(&m.yarn.attention_factor, {0, kInfinity}),
           "YaRN: factor of cos and sin instead of the one by --mscale; 0: by --mscale", {.example = "1.25"});
}

}  // namespace

void add_model(FlagTable& t, ModelConfig& m) {
  Section model(t, kModel, kShaped);
  Section rope(t, kModel, kShaped, {.needs = {{"position-embedding-type", "rope"}}});
  Section scaling(t, kModel, kShaped, {.needs = {{"use-rope-scaling"}}});
  model.add("num-layers", "N", integer(&m.num_layers, {1, 10'000}), "number of transformer layers",
            {.shown = "required", .on_load = kTensors, .example = "3"});
  model.add("hidden-size", "N", integer(&m.hidden_size, {1, kMaxWidth}), "transformer hidden size",
            {.shown = "required", .on_load = kTensors, .example = "96"});
  model.add(
      "ffn-hidden-size", "N", integer(&m.ffn_hidden_size, {0, 4 * kMaxWidth}), "MLP hidden size; 0: derived",
      {.shown = "4 x hidden, with --swiglu 8/3 x hidden rounded down to 64", .on_load = kTensors, .example = "100"});
  model.add("num-attention-heads", "N", integer(&m.num_attention_heads, {1, 65'536}), "number of attention heads",
            {.shown = "required", .on_load = kTensors, .example = "8"});
  model.add("group-query-attention", "", toggle(&m.group_query_attention),
            "grouped-query attention; one key/value group unless --num-query-groups is given", {.on_load = kFree});
  model.add("num-query-groups", "N", integer(&m.num_query_groups, {0, 65'536}), "number of key/value heads; 0: derived",
            {.shown = "num-attention-heads", .on_load = kTensors, .example = "2"});
  model.add("kv-channels", "N", integer(&m.kv_channels, {0, 65'536}), "size of an attention head; 0: derived",
            {.shown = "hidden-size / num-attention-heads", .on_load = kTensors, .example = "24"});
  model.add("seq-length", "TOKENS", integer(&m.seq_length, {1, kMaxLength}), "sequence length of a sample",
            {.apps = kShaped | kTexts,
             .shown = "required",
             .needs = {{"samples", {}, kInspectApp}, {"sft", {}, kPrepareApp}},
             .example = "48"});
  model.add("max-position-embeddings", "TOKENS", integer(&m.max_position_embeddings, {0, kMaxLength}),
            "size of the learned position embedding; 0: derived",
            {.shown = "seq-length", .on_load = kPositions, .example = "64"});
  model.add("vocab-size", "N", integer(&m.vocab_size, {0, kMaxVocab}), "number of token ids; 0: the tokenizer's",
            {.apps = kShaped | kTexts, .shown = "the tokenizer's", .on_load = kTensors, .example = "512"});
  model.add("make-vocab-size-divisible-by", "N", integer(&m.make_vocab_size_divisible_by, {1, kMaxVocab}),
            "multiple that the vocabulary is padded to",
            {.apps = kShaped | kConvertApp,
             .on_load = kComputes,
             .needs = {{.flag = "to", .value = "native", .apps = kConvertApp}},
             .example = "1"});
  model.add("position-embedding-type", "NAME", choice(&m.position_embedding_type, {"learned_absolute", "rope", "none"}),
            "type of position embedding", {.example = "none"});
  rope.add("rotary-base", "X", real(&m.rotary_base, {0, kInfinity, true}), "base of RoPE (theta)", {.example = "5e5"});
  rope.add("rotary-percent", "X", real(&m.rotary_percent, {0, 1, true}), "fraction of a head that RoPE rotates",
           {.example = "0.5"});
  rope.add("use-rope-scaling", "", toggle(&m.use_rope_scaling),
           "RoPE frequency scaling of Llama 3.1 (rope_type llama3 of transformers)",
           {.excludes = {{"rotary-seq-len-interpolation-factor", "above 1"}}});
  scaling.add("rope-scaling-factor", "X", real(&m.rope_scaling.factor, {1, kInfinity}),
              "with --use-rope-scaling: divisor of the low frequencies", {.example = "32"});
  scaling.add("rope-scaling-low-freq-factor", "X", real(&m.rope_scaling.low_freq_factor, {0, kInfinity, true}),
              "with --use-rope-scaling: turns in the original context up to which a frequency is low",
              {.example = "0.3"});
  scaling.add("rope-scaling-high-freq-factor", "X", real(&m.rope_scaling.high_freq_factor, {0, kInfinity, true}),
              "with --use-rope-scaling: turns from which a frequency is not scaled", {.example = "4.1"});
  scaling.add("rope-scaling-original-max-position-embeddings", "TOKENS",
              integer(&m.rope_scaling.original_max_position_embeddings, {1, kMaxLength}),
              "with --use-rope-scaling: context length of the original pretraining", {.example = "8191"});
  rope.add("rotary-seq-len-interpolation-factor", "X", real(&m.rotary_seq_len_interpolation_factor, {1, kInfinity}),
           "linear RoPE scaling: divisor of the positions (rope_type linear of transformers)", {.example = "2"});
  add_yarn(t, m);
  model.add("window-size", "LEFT RIGHT", window_size(&m.window_size),
            "sliding window of attention: keys that a query sees to its left and to its right, without its position. "
            "LEFT -1: all. RIGHT: 0, for causal attention",
            {.shown = "off", .example = "7 0"});
  model.add(
      "window-attn-skip-freq", "TEXT", text(&m.window_attn_skip_freq),
      "layers without --window-size: N for layers N - 1, 2N - 1, ..., or a 0 for each such layer and a 1 for each "
      "other one, such as '([1]*5+[0])*4'",
      {.shown = "none", .needs = {{"window-size"}}, .example = "2"});
  model.add("normalization", "NAME", choice(&m.normalization, {"LayerNorm", "RMSNorm"}), "type of normalization layer",
            {.on_load = kTensors, .example = "RMSNorm"});
  model.add("norm-epsilon", "X", real(&m.norm_epsilon, {0, 1, true, true}), "epsilon of the normalization layers",
            {.example = "1e-6"});
  model.add("apply-layernorm-1p", "", toggle(&m.apply_layernorm_1p),
            "normalization layers multiply by 1 + weight, with initial weights of 0");
  model.add("qk-layernorm", "", toggle(&m.qk_layernorm), "norm of queries and keys per head", {.on_load = kTensors});
  model.add("swiglu", "", toggle(&m.swiglu), "gated MLPs and experts with SiLU", {.on_load = kTensors});
  model.add("activation-func", "NAME", choice(&m.activation_func, {"gelu_tanh", "gelu"}),
            "activation of MLPs and experts without --swiglu", {.example = "gelu"});
  model.add("squared-relu", "", toggle(&m.squared_relu), "squared ReLU as the activation of MLPs and experts");
  model.add("disable-bias-linear", "", inverted_toggle(&m.add_bias_linear), "linear layers without biases",
            {.on_load = kTensors});
  model.add("add-qkv-bias", "", toggle(&m.add_qkv_bias),
            "biases for queries, keys and values despite --disable-bias-linear", {.on_load = kTensors});
  model.add("add-attn-proj-bias", "", toggle(&m.add_attn_proj_bias),
            "bias for the attention output projection despite --disable-bias-linear", {.on_load = kTensors});
  model.add("untie-embeddings-and-output-weights", "", toggle(&m.untie_embeddings_and_output_weights),
            "separate weights for the output layer", {.on_load = kTensors});
  model.add("hidden-dropout", "P", real(&m.hidden_dropout, {0, 1, false, true}),
            "dropout probability of the residual stream", {.example = "0.1"});
  model.add("attention-dropout", "P", real(&m.attention_dropout, {0, 1, false, true}), "only 0 is implemented");
  model.add("init-method-std", "X", real(&m.init_method_std, {0, kInfinity, true}),
            "standard deviation of the initial weights", {.on_load = kFree, .example = "0.006"});
  model.add(
      "hf-model-type", "NAME", choice(&m.hf_model_type, {"auto", "mistral"}),
      "model type that convert --to hf writes if several describe the same arithmetic; auto: Llama, or Mistral with "
      "--window-size; no other effect",
      {.on_load = kNoted,
       .example = "mistral --position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear"});
  model.add("bf16", "", toggle_of(&m.params_dtype, DType::kBf16, DType::kFp32),
            "bfloat16 parameters and activations, fp32 main parameters",
            {.apps = kShaped | kConvertApp,
             .on_load = kTensors,
             .needs = {{.flag = "to", .value = "native", .apps = kConvertApp}}});
  add_moe(t, m.moe);
}

}  // namespace megalith
