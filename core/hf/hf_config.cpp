#include "core/hf/hf_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

#include "core/base/error.h"
#include "core/checkpoint/printable.h"
#include "core/checkpoint/strict_json.h"
#include "core/model/config.h"
#include "core/model/layer_pattern.h"

namespace megalith {

namespace {

using nlohmann::json;

constexpr std::size_t kMaxText = 256;
constexpr std::int64_t kMaxInteger = std::int64_t{1} << 28;  // `validate` checks the bounds of each field
constexpr std::int64_t kMaxLayers = 10'000;                  // larger models are rejected anyway

// Keys that affect neither weights nor arithmetic. Names that begin with '_' are private notes of transformers.
constexpr std::string_view kWithoutMeaning =
    " architectures transformers_version dtype torch_dtype use_cache bos_token_id eos_token_id pad_token_id attn_pdrop "
    "embd_pdrop resid_pdrop attention_dropout summary_activation summary_first_dropout summary_proj_to_labels "
    "summary_type summary_use_proj task_specific_params n_ctx reorder_and_upcast_attn gradient_checkpointing "
    "pretraining_tp max_window_layers output_attentions output_hidden_states return_dict torchscript "
    "chunk_size_feed_forward id2label label2id problem_type finetuning_task auto_map name_or_path "
    "keys_to_ignore_at_inference tokenizer_class prefix n_special predict_special_tokens output_past ";

// Keys that other tools write: settings of sampling, training and serving, which no model reads.
constexpr std::string_view kOfTools =
    " model_max_length unk_token_id sep_token_id mask_token_id decoder_start_token_id max_length min_length do_sample "
    "temperature top_k top_p typical_p num_beams num_beam_groups diversity_penalty repetition_penalty length_penalty "
    "no_repeat_ngram_size encoder_no_repeat_ngram_size early_stopping bad_words_ids num_return_sequences "
    "forced_bos_token_id forced_eos_token_id remove_invalid_values exponential_decay_length_penalty suppress_tokens "
    "begin_suppress_tokens output_scores return_dict_in_generate use_bfloat16 tf_legacy_loss neftune_noise_alpha "
    "axolotl_version llamafactory_version mlx_version peft_version trl_version model_name base_model license ";

bool is_in(std::string_view list, const std::string& key) {
  return key.find(' ') == std::string::npos && list.find(" " + key + " ") != std::string_view::npos;
}

bool is_of_tools(const std::string& key) { return key.starts_with("unsloth_") || is_in(kOfTools, key); }

bool has_no_meaning(const std::string& key) { return key.starts_with('_') || is_in(kWithoutMeaning, key); }

constexpr const char* kNotBuilt = "such a model cannot be converted yet";

std::string shown(const json& value) {
  if (value.is_string()) return printable(value.get_ref<const std::string&>());
  return value.is_structured() ? fmt::format("an {}", value.type_name()) : value.dump();
}

// Reader of an object's members by name; null counts as absent, as in transformers.
class Members {
 public:
  Members(const json& value, std::string subject) : value_(value), subject_(std::move(subject)) {
    if (!value_.is_object()) refuse_content(subject_, "an object", shown(value_));
  }

  std::string subject(const std::string& key) const { return subject_ + ": " + key; }

  const json* find(const std::string& key) {
    known_.insert(key);
    const auto found = value_.find(key);
    return found == value_.end() || found->is_null() ? nullptr : &*found;
  }
  const json& need(const std::string& key) {
    const json* value = find(key);
    if (value == nullptr) refuse_content(subject_, "key " + key, "none");
    return *value;
  }
  std::int64_t integer(const std::string& key) { return json_integer(need(key), 1, kMaxInteger, subject(key)); }
  std::int64_t integer_or(const std::string& key, std::int64_t absent) {
    return find(key) == nullptr ? absent : integer(key);
  }
  double positive(const std::string& key) {
    const json& value = need(key);
    if (!value.is_number() || !(value.get<double>() > 0))  // finite: parse_strict_json rejects others
      refuse_content(subject(key), "a finite number above 0", shown(value));
    return value.get<double>();
  }
  double at_least_0_or(const std::string& key, double absent) {
    const json* value = find(key);
    if (value == nullptr) return absent;
    if (!value->is_number() || value->get<double>() < 0)
      refuse_content(subject(key), "a finite number of at least 0", shown(*value));
    return value->get<double>();
  }
  double positive_or(const std::string& key, double absent) { return find(key) == nullptr ? absent : positive(key); }
  bool boolean_or(const std::string& key, bool absent) {
    const json* value = find(key);
    if (value == nullptr) return absent;
    if (!value->is_boolean()) refuse_content(subject(key), "true or false", shown(*value));
    return value->get<bool>();
  }
  bool is_null(const std::string& key) {
    known_.insert(key);
    const auto found = value_.find(key);
    return found != value_.end() && found->is_null();
  }
  std::string text(const std::string& key) { return json_text(need(key), kMaxText, subject(key)); }
  // Rejects all values of a setting except `allowed`, the only supported one.
  void only(const std::string& key, const json& allowed, const std::string& why) {
    const json* value = find(key);
    if (value != nullptr && *value != allowed)
      refuse_format(subject(key), fmt::format("{}: {}", allowed.dump(), why), shown(*value), kNotBuilt);
  }

  // Rejects unknown keys. `keys`, for the top of the file, lists keys to ignore and receives the ignored ones.
  void refuse_unknown(HfKeys* keys = nullptr) const {
    if (keys != nullptr) check_ignored(*keys);
    std::vector<std::string> unknown;
    for (const auto& [key, value] : value_.items()) {
      if (known_.contains(key) || has_no_meaning(key)) continue;
      const bool is_ignored = keys != nullptr && std::ranges::find(keys->ignored, key) != keys->ignored.end();
      if (is_ignored || (keys != nullptr && (value.is_null() || is_of_tools(key)))) {
        keys->passed_over.push_back(printable(key));
      } else if (unknown.size() < 12) {
        unknown.push_back(printable(key));
      }
    }
    if (unknown.empty()) return;
    refuse_format(subject_, "known keys only", fmt::format("{}", fmt::join(unknown, ", ")),
                  keys != nullptr ? "a key that changes neither weights nor arithmetic may be named by "
                                    "--ignore-config-keys; a model that needs another cannot be converted yet"
                                  : "a key that changes neither weights nor arithmetic may be removed; a model that "
                                    "needs another cannot be converted yet");
  }

 private:
  void check_ignored(const HfKeys& keys) const {
    for (const std::string& key : keys.ignored) {
      const bool is_there = value_.contains(key);
      if (is_there && !known_.contains(key)) continue;
      refuse_usage("--ignore-config-keys",
                   {.expected = "keys that config.json has and convert does not know",
                    .got = fmt::format("{}, which {}", printable(key),
                                       is_there ? "says what the model is" : subject_ + " does not have"),
                    .remedy = "leave it out"});
    }
  }

  const json& value_;
  std::string subject_;
  std::set<std::string> known_;
};

ModelConfig read_gpt2(Members& file) {
  ModelConfig model;
  model.num_layers = file.integer("n_layer");
  model.hidden_size = file.integer("n_embd");
  model.num_attention_heads = file.integer("n_head");
  model.ffn_hidden_size = file.integer_or("n_inner", 0);
  model.max_position_embeddings = file.integer("n_positions");
  model.norm_epsilon = file.positive_or("layer_norm_epsilon", 1e-5);
  const std::string activation =
      file.find("activation_function") == nullptr ? "gelu_new" : file.text("activation_function");
  if (activation == "gelu") {
    model.activation_func = ActivationFunction::kGelu;
  } else if (activation != "gelu_new" && activation != "gelu_pytorch_tanh") {
    refuse_format(file.subject("activation_function"), "gelu_new, gelu_pytorch_tanh or gelu", printable(activation),
                  kNotBuilt);
  }
  file.only("scale_attn_weights", true, "scores are divided by the root of the head's width");
  file.only("scale_attn_by_inverse_layer_idx", false, "other scales are not built");
  file.only("add_cross_attention", false, "the model has a decoder alone");
  return model;
}

constexpr const char* kLlama3 = "llama3";

// RoPE settings: rope_parameters of transformers 5, rope_scaling of 4.
struct HfRope {
  std::optional<double> theta;
  std::optional<RopeScaling> scaling;
};

HfRope read_rope_object(const json& value, const std::string& subject, std::int64_t positions) {
  Members object(value, subject);
  HfRope rope;
  std::string type = "default";
  for (const char* key : {"type", "rope_type"}) {  // rope_type overrides type
    if (object.find(key) == nullptr) continue;
    type = object.text(key);
    if (type != "default" && type != kLlama3)
      refuse_format(object.subject(key), "default or llama3: RoPE scaled in another way is not built", printable(type),
                    kNotBuilt);
  }
  if (object.find("rope_theta") != nullptr) rope.theta = object.positive("rope_theta");
  object.only("partial_rotary_factor", 1.0, "RoPE turns whole heads");
  if (type == kLlama3) {
    rope.scaling = {
        .factor = object.positive("factor"),
        .low_freq_factor = object.positive("low_freq_factor"),
        .high_freq_factor = object.positive("high_freq_factor"),
        .original_max_position_embeddings = object.integer_or("original_max_position_embeddings", positions)};
  }
  object.refuse_unknown();
  return rope;
}

void read_rope(Members& file, ModelConfig& model, double usual_theta) {
  std::optional<HfRope> seen;
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const json* value = file.find(key);
    if (value == nullptr) continue;
    const HfRope rope = read_rope_object(*value, file.subject(key), model.max_position_embeddings);
    if (seen && seen->theta && rope.theta && *seen->theta != *rope.theta) {
      refuse_content(file.subject(key) + ": rope_theta", "the value that rope_scaling has",
                     fmt::format("{} and {}", *rope.theta, *seen->theta));
    }
    if (seen && seen->scaling != rope.scaling) {
      refuse_content(file.subject(key), "the rope_type and factors that rope_scaling has", "others");
    }
    seen = {rope.theta ? rope.theta : seen ? seen->theta : std::nullopt, rope.scaling};
  }
  const std::optional<double> inner = seen ? seen->theta : std::nullopt;
  model.rotary_base = file.positive_or("rope_theta", inner.value_or(usual_theta));
  if (inner && *inner != model.rotary_base) {
    refuse_content(file.subject("rope_theta"), "the value that rope_parameters has",
                   fmt::format("{} and {}", model.rotary_base, *inner));
  }
  file.only("partial_rotary_factor", 1.0, "RoPE turns whole heads");
  model.use_rope_scaling = seen && seen->scaling;
  if (model.use_rope_scaling) model.rope_scaling = *seen->scaling;
}

bool is_mistral_like(HfFamily family) { return family == HfFamily::kMistral || family == HfFamily::kMixtral; }

// Reads `layer_types`; `layers` are those with a window, as the other keys say.
void read_layer_types(Members& file, std::int64_t window, HfFamily family, std::vector<bool>& layers) {
  const json* types = file.find("layer_types");
  if (types == nullptr) return;
  const std::string subject = file.subject("layer_types");
  require_array(*types, subject);
  if (types->size() != layers.size())
    refuse_content(subject, fmt::format("the {} layers of num_hidden_layers", layers.size()),
                   fmt::format("{}", types->size()));
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const json& type = (*types)[i];
    const bool is_full = type == "full_attention", slides = type == "sliding_attention";
    if (window == 0 && !is_full) refuse_format(subject, "full_attention in all layers", shown(type), kNotBuilt);
    if (window > 0 && is_mistral_like(family) && !slides)
      refuse_format(subject, "sliding_attention in all layers with sliding_window", shown(type), kNotBuilt);
    if (!is_full && !slides) refuse_format(subject, "full_attention or sliding_attention", shown(type), kNotBuilt);
    layers[i] = slides;
  }
}

// Reads the sliding window: tokens that a token sees, itself included; null: all. Mistral and Mixtral have it in all
// layers. Qwen2 and Qwen3 have it in the layers of `layer_types`, otherwise from layer `max_window_layers` on.
void read_windows(Members& file, ModelConfig& model, HfFamily family) {
  constexpr std::int64_t kUsualWindow = 4096, kUsualFirst = 28;  // of absent keys in transformers
  const bool has_switch = !is_mistral_like(family), is_null = file.is_null("sliding_window");
  if (family == HfFamily::kQwen3Moe)
    file.only("use_sliding_window", false, "versions of transformers differ in its layers");
  const bool is_on = !has_switch || file.boolean_or("use_sliding_window", false);
  const std::int64_t absent = family == HfFamily::kMixtral ? 0 : kUsualWindow;
  const std::int64_t window = is_on && !is_null ? file.integer_or("sliding_window", absent) : 0;
  std::vector<bool> layers(static_cast<std::size_t>(std::min(model.num_layers, kMaxLayers)), window > 0);
  if (window > 0 && has_switch) {
    const json* value = file.find("max_window_layers");
    const std::int64_t first =
        value == nullptr ? kUsualFirst : json_integer(*value, 0, kMaxInteger, file.subject("max_window_layers"));
    std::fill_n(layers.begin(), std::min(first, std::ssize(layers)), false);
  }
  read_layer_types(file, window, family, layers);
  if (std::ranges::find(layers, true) == layers.end()) return;
  model.window_size = {window - 1, 0};
  const bool all = std::ranges::find(layers, false) == layers.end();
  if (!all) model.window_attn_skip_freq = layer_pattern(layers);
}

void read_biases(Members& file, ModelConfig& model, HfFamily family) {
  const bool attention = file.boolean_or("attention_bias", false);
  if (family == HfFamily::kLlama && file.boolean_or("mlp_bias", false)) {
    if (!attention)
      refuse_format(file.subject("mlp_bias"), "false: biases of the MLP alone are not built", "true", kNotBuilt);
    model.add_bias_linear = true;
  } else {
    model.add_qkv_bias = model.add_attn_proj_bias = attention;
  }
}

// Reads Qwen3-MoE's layers with experts: every `step`-th layer without the file's exceptions.
std::string read_layers(Members& file, std::int64_t num_layers) {
  const std::int64_t step = file.integer_or("decoder_sparse_step", 1);
  std::vector<bool> has_experts(static_cast<std::size_t>(std::min(num_layers, kMaxLayers)));
  for (std::size_t i = 0; i < has_experts.size(); ++i) has_experts[i] = (static_cast<std::int64_t>(i) + 1) % step == 0;
  if (const json* dense = file.find("mlp_only_layers"); dense != nullptr) {
    require_array(*dense, file.subject("mlp_only_layers"));
    const auto last = static_cast<std::int64_t>(has_experts.size()) - 1;
    for (const json& layer : *dense)
      has_experts[static_cast<std::size_t>(json_integer(layer, 0, last, file.subject("mlp_only_layers")))] = false;
  }
  const bool all = std::ranges::find(has_experts, false) == has_experts.end();
  return all ? MoeConfig().layer_freq : layer_pattern(has_experts);
}

void read_experts(Members& file, ModelConfig& model, HfFamily family) {
  MoeConfig& moe = model.moe;
  // transformers 4 and published files of Qwen3-MoE have num_experts; 5 writes num_local_experts for both families.
  moe.num_experts = file.integer(file.find("num_experts") == nullptr ? "num_local_experts" : "num_experts");
  if (const std::int64_t other = file.integer_or("num_local_experts", moe.num_experts); other != moe.num_experts)
    refuse_content(file.subject("num_local_experts"), "the value that num_experts has",
                   fmt::format("{} and {}", other, moe.num_experts));
  moe.router_topk = file.integer("num_experts_per_tok");
  if (const double coeff = file.at_least_0_or("router_aux_loss_coef", 0); coeff > 0) {
    moe.router_load_balancing_type = {"aux_loss"};
    moe.aux_loss_coeff = {coeff};
  }
  if (file.boolean_or("output_router_logits", false))
    refuse_format(file.subject("output_router_logits"), "false", "true",
                  "set it to false, the model's logits are the same; training has --moe-aux-loss-coeff");
  if (family == HfFamily::kMixtral) {
    file.only("router_jitter_noise", 0, "a router without noise");
    return;
  }
  moe.ffn_hidden_size = file.integer("moe_intermediate_size");
  moe.router_pre_softmax = !file.boolean_or("norm_topk_prob", false);
  moe.layer_freq = read_layers(file, model.num_layers);
}

ModelConfig read_llama_like(Members& file, HfFamily family) {
  const bool is_qwen3 = family == HfFamily::kQwen3 || family == HfFamily::kQwen3Moe;
  const bool is_mixtral = family == HfFamily::kMixtral;
  ModelConfig model;
  model.num_layers = file.integer("num_hidden_layers");
  model.hidden_size = file.integer("hidden_size");
  model.num_attention_heads = file.integer("num_attention_heads");
  const bool has_eight_groups = is_mistral_like(family) && !file.is_null("num_key_value_heads");
  model.num_query_groups = file.integer_or("num_key_value_heads", has_eight_groups ? 8 : model.num_attention_heads);
  model.kv_channels = file.integer_or("head_dim", family == HfFamily::kQwen3 ? 128 : 0);
  model.ffn_hidden_size = file.integer("intermediate_size");
  model.max_position_embeddings = file.integer("max_position_embeddings");
  model.norm_epsilon = file.positive_or("rms_norm_eps", is_mixtral ? 1e-5 : 1e-6);
  read_rope(file, model, is_mixtral ? 1e6 : 1e4);
  model.position_embedding_type = PositionEmbedding::kRope;
  model.normalization = Normalization::kRmsNorm;
  model.swiglu = true;
  file.only("hidden_act", "silu", "the MLP is SwiGLU");
  file.only("use_mrope", false, "a position is one number");
  model.qk_layernorm = is_qwen3;
  model.add_qkv_bias = family == HfFamily::kQwen2;
  model.add_bias_linear = false;
  if (family == HfFamily::kMistral) model.hf_model_type = HfModelType::kMistral;
  if (family != HfFamily::kLlama) read_windows(file, model, family);
  if (family == HfFamily::kLlama || is_qwen3) read_biases(file, model, family);
  if (is_mixtral || family == HfFamily::kQwen3Moe) read_experts(file, model, family);
  return model;
}

}  // namespace

ModelConfig parse_hf_config(std::string_view text, const std::string& subject, HfKeys* keys) {
  HfKeys none;
  const json value = parse_strict_json(text, subject);
  Members file(value, subject);
  const std::string type = file.text("model_type");
  const auto* found = std::ranges::find(kHfFamilyNames, type);
  if (found == std::end(kHfFamilyNames))
    refuse_format(file.subject("model_type"), "gpt2, llama, mistral, qwen2, qwen3, mixtral or qwen3_moe",
                  printable(type), kNotBuilt);
  const auto family = static_cast<HfFamily>(found - std::begin(kHfFamilyNames));
  ModelConfig model = family == HfFamily::kGpt2 ? read_gpt2(file) : read_llama_like(file, family);
  model.vocab_size = file.integer("vocab_size");
  model.untie_embeddings_and_output_weights = !file.boolean_or("tie_word_embeddings", family == HfFamily::kGpt2);
  model.init_method_std = file.positive_or("initializer_range", model.init_method_std);
  model.seq_length = model.max_position_embeddings;
  file.only("quantization_config", nullptr, "quantized weights are not read");
  file.only("is_encoder_decoder", false, "the model has a decoder alone");
  file.only("pruned_heads", json::object(), "all heads are there");
  file.refuse_unknown(keys == nullptr ? &none : keys);
  try {
    resolve(model);
    validate(model);
  } catch (const Error& error) {
    throw Error(ExitCode::kFormat, fmt::format("{}: as flags: {}", subject, error.what()));
  }
  return model;
}

}  // namespace megalith
