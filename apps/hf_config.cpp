#include "apps/hf_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "core/base/error.h"
#include "core/checkpoint/printable.h"
#include "core/checkpoint/strict_json.h"

namespace megalith {

namespace {

using nlohmann::json;

constexpr std::size_t kMaxText = 256;
constexpr std::int64_t kMaxInteger = std::int64_t{1} << 28;  // `validate` has the bounds of each field

// Neither weights nor arithmetic depend on these; names that begin with '_' are the library's own notes.
constexpr std::string_view kWithoutMeaning =
    " architectures transformers_version dtype torch_dtype use_cache bos_token_id eos_token_id pad_token_id attn_pdrop "
    "embd_pdrop resid_pdrop attention_dropout summary_activation summary_first_dropout summary_proj_to_labels "
    "summary_type summary_use_proj task_specific_params n_ctx reorder_and_upcast_attn gradient_checkpointing "
    "pretraining_tp max_window_layers output_attentions output_hidden_states return_dict torchscript "
    "chunk_size_feed_forward id2label label2id problem_type finetuning_task auto_map name_or_path "
    "keys_to_ignore_at_inference tokenizer_class prefix n_special predict_special_tokens output_past ";

bool has_no_meaning(const std::string& key) {
  return key.starts_with('_') ||
         (key.find(' ') == std::string::npos && kWithoutMeaning.find(" " + key + " ") != std::string_view::npos);
}

constexpr const char* kNotBuilt = "such a model cannot be converted yet";

std::string shown(const json& value) {
  if (value.is_string()) return printable(value.get_ref<const std::string&>());
  return value.is_structured() ? fmt::format("an {}", value.type_name()) : value.dump();
}

// An object's members by name; null counts as absent, as transformers has it.
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
  double positive_or(const std::string& key, double absent) {
    const json* value = find(key);
    if (value == nullptr) return absent;
    if (!value->is_number() || !(value->get<double>() > 0))  // finite: parse_strict_json refuses others
      refuse_content(subject(key), "a finite number above 0", shown(*value));
    return value->get<double>();
  }
  bool boolean_or(const std::string& key, bool absent) {
    const json* value = find(key);
    if (value == nullptr) return absent;
    if (!value->is_boolean()) refuse_content(subject(key), "true or false", shown(*value));
    return value->get<bool>();
  }
  std::string text(const std::string& key) { return json_text(need(key), kMaxText, subject(key)); }
  // A setting of which one value alone is built.
  void only(const std::string& key, const json& allowed, const std::string& why) {
    const json* value = find(key);
    if (value != nullptr && *value != allowed)
      refuse_format(subject(key), fmt::format("{}: {}", allowed.dump(), why), shown(*value), kNotBuilt);
  }

  void refuse_unknown() const {
    std::vector<std::string> unknown;
    for (const auto& [key, value] : value_.items()) {
      if (!known_.contains(key) && !has_no_meaning(key) && unknown.size() < 12) unknown.push_back(printable(key));
    }
    if (unknown.empty()) return;
    refuse_format(subject_, "known keys only", fmt::format("{}", fmt::join(unknown, ", ")),
                  "remove those that change neither weights nor arithmetic");
  }

 private:
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

// rope_parameters of transformers 5, rope_scaling of 4: nothing but the plain form is built.
void read_rope_object(Members& file, const std::string& key, std::optional<double>& theta) {
  const json* value = file.find(key);
  if (value == nullptr) return;
  Members rope(*value, file.subject(key));
  for (const char* type : {"rope_type", "type"}) rope.only(type, "default", "scaled RoPE is not built");
  rope.only("partial_rotary_factor", 1.0, "RoPE turns whole heads");
  if (rope.find("rope_theta") != nullptr) {
    const double own = rope.positive_or("rope_theta", 0);
    if (theta && *theta != own)
      refuse_content(rope.subject("rope_theta"), "the value that rope_scaling has",
                     fmt::format("{} and {}", own, *theta));
    theta = own;
  }
  rope.refuse_unknown();
}

double read_rope_theta(Members& file) {
  std::optional<double> theta, inner;
  if (file.find("rope_theta") != nullptr) theta = file.positive_or("rope_theta", 0);
  for (const char* key : {"rope_scaling", "rope_parameters"}) read_rope_object(file, key, inner);
  if (theta && inner && *theta != *inner) {
    refuse_content(file.subject("rope_theta"), "the value that rope_parameters has",
                   fmt::format("{} and {}", *theta, *inner));
  }
  file.only("partial_rotary_factor", 1.0, "RoPE turns whole heads");
  return inner.value_or(theta.value_or(10000.0));
}

void read_windows(Members& file) {
  file.only("use_sliding_window", false, "every layer attends to all positions before");
  file.find("sliding_window");  // counts with use_sliding_window alone
  const json* types = file.find("layer_types");
  if (types == nullptr) return;
  require_array(*types, file.subject("layer_types"));
  for (const json& type : *types) {
    if (type != "full_attention")
      refuse_format(file.subject("layer_types"), "full_attention in all layers", shown(type), kNotBuilt);
  }
}

ModelConfig read_llama_like(Members& file, HfFamily family) {
  ModelConfig model;
  model.num_layers = file.integer("num_hidden_layers");
  model.hidden_size = file.integer("hidden_size");
  model.num_attention_heads = file.integer("num_attention_heads");
  model.num_query_groups = file.integer_or("num_key_value_heads", model.num_attention_heads);
  model.kv_channels = file.integer_or("head_dim", family == HfFamily::kQwen3 ? 128 : 0);
  model.ffn_hidden_size = file.integer("intermediate_size");
  model.max_position_embeddings = file.integer("max_position_embeddings");
  model.norm_epsilon = file.positive_or("rms_norm_eps", 1e-6);
  model.rotary_base = read_rope_theta(file);
  model.position_embedding_type = PositionEmbedding::kRope;
  model.normalization = Normalization::kRmsNorm;
  model.swiglu = true;
  file.only("hidden_act", "silu", "the MLP is SwiGLU");
  file.only("use_mrope", false, "a position is one number");
  model.qk_layernorm = family == HfFamily::kQwen3;
  model.add_qkv_bias = family == HfFamily::kQwen2;
  model.add_bias_linear = false;
  if (family == HfFamily::kLlama) {
    model.add_bias_linear = file.boolean_or("attention_bias", false);
    if (file.boolean_or("mlp_bias", false) != model.add_bias_linear)
      refuse_format(file.subject("attention_bias and mlp_bias"), "both or neither", "one of them", kNotBuilt);
  } else {
    read_windows(file);
    if (family == HfFamily::kQwen3) file.only("attention_bias", false, "biases beside QK-norm are not built");
  }
  return model;
}

json common_keys(const ModelConfig& model, HfFamily family, std::optional<std::int64_t> eos_token) {
  const std::string dtype = model.params_dtype == DType::kBf16 ? "bfloat16" : "float32";
  json text = {{"model_type", std::string(name_of(family))},
               {"vocab_size", model.vocab_size},
               {"tie_word_embeddings", !model.untie_embeddings_and_output_weights},
               {"initializer_range", model.init_method_std},
               {"bos_token_id", nullptr},
               {"eos_token_id", nullptr},
               {"dtype", dtype},
               {"torch_dtype", dtype},
               {"use_cache", true}};
  if (eos_token) text["eos_token_id"] = *eos_token;
  return text;
}

void add_gpt2_keys(json& text, const ModelConfig& model) {
  text["architectures"] = {"GPT2LMHeadModel"};
  text["activation_function"] = model.activation_func == ActivationFunction::kGelu ? "gelu" : "gelu_new";
  text["n_layer"] = model.num_layers;
  text["n_embd"] = model.hidden_size;
  text["n_head"] = model.num_attention_heads;
  text["n_inner"] = model.ffn_hidden_size;
  text["n_positions"] = text["n_ctx"] = model.max_position_embeddings;
  text["layer_norm_epsilon"] = model.norm_epsilon;
  text["embd_pdrop"] = text["resid_pdrop"] = model.hidden_dropout;
  text["attn_pdrop"] = model.attention_dropout;
  text["scale_attn_weights"] = true;
}

void add_llama_keys(json& text, const ModelConfig& model, HfFamily family) {
  text["num_hidden_layers"] = model.num_layers;
  text["hidden_size"] = model.hidden_size;
  text["num_attention_heads"] = model.num_attention_heads;
  text["num_key_value_heads"] = model.num_query_groups;
  text["head_dim"] = model.kv_channels;
  text["intermediate_size"] = model.ffn_hidden_size;
  text["max_position_embeddings"] = model.max_position_embeddings;
  text["rms_norm_eps"] = model.norm_epsilon;
  text["hidden_act"] = "silu";
  text["attention_dropout"] = model.attention_dropout;
  text["rope_theta"] = model.rotary_base;
  text["rope_parameters"] = {{"rope_theta", model.rotary_base}, {"rope_type", "default"}};
  if (family == HfFamily::kLlama) {
    text["architectures"] = {"LlamaForCausalLM"};
    text["attention_bias"] = text["mlp_bias"] = model.add_bias_linear;
  } else {
    text["architectures"] = {family == HfFamily::kQwen2 ? "Qwen2ForCausalLM" : "Qwen3ForCausalLM"};
    text["use_sliding_window"] = false;
    if (family == HfFamily::kQwen3) text["attention_bias"] = false;
  }
}

}  // namespace

std::string_view name_of(HfFamily family) {
  switch (family) {
    case HfFamily::kGpt2: return "gpt2";
    case HfFamily::kLlama: return "llama";
    case HfFamily::kQwen2: return "qwen2";
    case HfFamily::kQwen3: return "qwen3";
  }
  return "?";
}

HfFamily hf_family(const ModelConfig& model) {
  const auto refuse_model = [](const std::string& family, const std::string& got) {
    refuse_usage("--to hf", family, got, "transformers has no such model among GPT-2, Llama, Qwen2 and Qwen3");
  };
  std::string got;
  const auto no = [&](bool is_other, const std::string& what) {
    if (is_other) got += (got.empty() ? "" : ", ") + what;
  };
  const bool is_gpt2 = model.position_embedding_type == PositionEmbedding::kLearnedAbsolute;
  if (is_gpt2) {
    no(model.normalization != Normalization::kLayerNorm, "--normalization RMSNorm");
    no(model.swiglu, "--swiglu");
    no(!model.add_bias_linear, "--disable-bias-linear");
    no(model.qk_layernorm, "--qk-layernorm");
    no(model.num_query_groups != model.num_attention_heads, "--num-query-groups");
    no(model.kv_channels * model.num_attention_heads != model.hidden_size, "--kv-channels");
    if (!got.empty()) refuse_model("with learned positions a GPT-2", got);
    return HfFamily::kGpt2;
  }
  no(model.position_embedding_type == PositionEmbedding::kNone, "--position-embedding-type none");
  no(model.rotary_percent != 1.0, "--rotary-percent");
  no(model.normalization != Normalization::kRmsNorm, "--normalization LayerNorm");
  no(!model.swiglu, "no --swiglu");
  no(model.qk_layernorm && model.has_qkv_bias(), "--qk-layernorm with biases");
  if (!got.empty()) refuse_model("without learned positions a Llama, Qwen2 or Qwen3", got);
  if (model.qk_layernorm) return HfFamily::kQwen3;
  return model.add_qkv_bias && !model.add_bias_linear ? HfFamily::kQwen2 : HfFamily::kLlama;
}

ModelConfig parse_hf_config(std::string_view text, const std::string& subject) {
  const json value = parse_strict_json(text, subject);
  Members file(value, subject);
  const std::string type = file.text("model_type");
  constexpr std::array kFamilies = {HfFamily::kGpt2, HfFamily::kLlama, HfFamily::kQwen2, HfFamily::kQwen3};
  const auto* family = std::find_if(kFamilies.begin(), kFamilies.end(), [&](HfFamily f) { return name_of(f) == type; });
  if (family == kFamilies.end())
    refuse_format(file.subject("model_type"), "gpt2, llama, qwen2 or qwen3", printable(type), kNotBuilt);
  ModelConfig model = *family == HfFamily::kGpt2 ? read_gpt2(file) : read_llama_like(file, *family);
  model.vocab_size = file.integer("vocab_size");
  model.untie_embeddings_and_output_weights = !file.boolean_or("tie_word_embeddings", *family == HfFamily::kGpt2);
  model.init_method_std = file.positive_or("initializer_range", model.init_method_std);
  model.seq_length = model.max_position_embeddings;
  file.only("quantization_config", nullptr, "quantised weights are not read");
  file.only("is_encoder_decoder", false, "the model has a decoder alone");
  file.only("pruned_heads", json::object(), "all heads are there");
  file.refuse_unknown();
  try {
    resolve(model);
    validate(model);
  } catch (const Error& error) {
    throw Error(ExitCode::kFormat, fmt::format("{}: as flags: {}", subject, error.what()));
  }
  return model;
}

std::string hf_config_text(const ModelConfig& model, std::optional<std::int64_t> eos_token) {
  const HfFamily family = hf_family(model);
  json text = common_keys(model, family, eos_token);
  if (family == HfFamily::kGpt2) {
    add_gpt2_keys(text, model);
  } else {
    add_llama_keys(text, model, family);
  }
  return text.dump(2) + "\n";
}

}  // namespace megalith
