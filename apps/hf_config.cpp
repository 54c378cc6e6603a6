#include "apps/hf_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
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

constexpr std::string_view kFamilyNames[] = {"gpt2", "llama", "mistral", "qwen2", "qwen3"};

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
  double positive(const std::string& key) {
    const json& value = need(key);
    if (!value.is_number() || !(value.get<double>() > 0))  // finite: parse_strict_json refuses others
      refuse_content(subject(key), "a finite number above 0", shown(value));
    return value.get<double>();
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
                  "a key that changes neither weights nor arithmetic may be removed; a model that needs another cannot "
                  "be converted yet");
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

constexpr const char* kLlama3 = "llama3";

// rope_parameters of transformers 5, rope_scaling of 4.
struct HfRope {
  std::optional<double> theta;
  std::optional<RopeScaling> scaling;
};

HfRope read_rope_object(const json& value, const std::string& subject, std::int64_t positions) {
  Members object(value, subject);
  HfRope rope;
  std::string type = "default";
  for (const char* key : {"type", "rope_type"}) {  // the latter wins
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

void read_rope(Members& file, ModelConfig& model) {
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
  model.rotary_base = file.positive_or("rope_theta", inner.value_or(10000.0));
  if (inner && *inner != model.rotary_base) {
    refuse_content(file.subject("rope_theta"), "the value that rope_parameters has",
                   fmt::format("{} and {}", model.rotary_base, *inner));
  }
  file.only("partial_rotary_factor", 1.0, "RoPE turns whole heads");
  model.use_rope_scaling = seen && seen->scaling;
  if (model.use_rope_scaling) model.rope_scaling = *seen->scaling;
}

// A token of Mistral sees so many, itself included: where the key lacks transformers takes 4096, where it is null all.
void read_mistral_window(Members& file, std::int64_t positions) {
  if (file.is_null("sliding_window")) return;
  const std::int64_t window = file.integer_or("sliding_window", 4096);
  if (window >= positions) return;
  refuse_format(file.subject("sliding_window"),
                fmt::format("null, or at least the {} of max_position_embeddings: windows are not built", positions),
                file.find("sliding_window") == nullptr ? "none, which means 4096" : std::to_string(window),
                fmt::format("with max_position_embeddings {} no sequence reaches the window", window));
}

void read_windows(Members& file, const ModelConfig& model, HfFamily family) {
  if (family == HfFamily::kMistral) {
    read_mistral_window(file, model.max_position_embeddings);
  } else {
    file.only("use_sliding_window", false, "every layer attends to all positions before");
    file.find("sliding_window");  // counts with use_sliding_window alone
  }
  const json* types = file.find("layer_types");
  if (types == nullptr) return;
  require_array(*types, file.subject("layer_types"));
  for (const json& type : *types) {
    if (type != "full_attention")
      refuse_format(file.subject("layer_types"), "full_attention in all layers", shown(type), kNotBuilt);
  }
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

ModelConfig read_llama_like(Members& file, HfFamily family) {
  ModelConfig model;
  model.num_layers = file.integer("num_hidden_layers");
  model.hidden_size = file.integer("hidden_size");
  model.num_attention_heads = file.integer("num_attention_heads");
  model.num_query_groups =
      file.integer_or("num_key_value_heads", family == HfFamily::kMistral ? 8 : model.num_attention_heads);
  model.kv_channels = file.integer_or("head_dim", family == HfFamily::kQwen3 ? 128 : 0);
  model.ffn_hidden_size = file.integer("intermediate_size");
  model.max_position_embeddings = file.integer("max_position_embeddings");
  model.norm_epsilon = file.positive_or("rms_norm_eps", 1e-6);
  read_rope(file, model);
  model.position_embedding_type = PositionEmbedding::kRope;
  model.normalization = Normalization::kRmsNorm;
  model.swiglu = true;
  file.only("hidden_act", "silu", "the MLP is SwiGLU");
  file.only("use_mrope", false, "a position is one number");
  model.qk_layernorm = family == HfFamily::kQwen3;
  model.add_qkv_bias = family == HfFamily::kQwen2;
  model.add_bias_linear = false;
  if (family == HfFamily::kMistral) model.hf_model_type = HfModelType::kMistral;
  if (family != HfFamily::kLlama) read_windows(file, model, family);
  if (family == HfFamily::kLlama || family == HfFamily::kQwen3) read_biases(file, model, family);
  return model;
}

}  // namespace

std::string_view name_of(HfFamily family) { return kFamilyNames[static_cast<std::size_t>(family)]; }

HfFamily hf_family(const ModelConfig& model) {
  const bool is_mistral = model.hf_model_type == HfModelType::kMistral;
  const auto refuse_model = [is_mistral](const std::string& family, const std::string& got) {
    if (is_mistral)
      refuse_usage("--hf-model-type mistral", {.expected = family, .got = got, .remedy = "leave --hf-model-type out"});
    refuse_usage("--to hf", {.expected = family,
                             .got = got,
                             .remedy = "transformers has no such model among GPT-2, Llama, Mistral, Qwen2 and Qwen3"});
  };
  std::string got;
  const auto no = [&](bool is_other, const std::string& what) {
    if (is_other) got += (got.empty() ? "" : ", ") + what;
  };
  if (model.moe.num_experts > 0)
    refuse_model("a model without experts, others are not built yet",
                 fmt::format("--num-experts {}", model.moe.num_experts));
  const bool has_learned_positions = model.position_embedding_type == PositionEmbedding::kLearnedAbsolute;
  if (has_learned_positions && !is_mistral) {
    no(model.normalization != Normalization::kLayerNorm, "--normalization RMSNorm");
    no(model.swiglu, "--swiglu");
    no(!model.add_bias_linear, "--disable-bias-linear");
    no(model.qk_layernorm, "--qk-layernorm");
    no(model.num_query_groups != model.num_attention_heads, "--num-query-groups");
    no(model.kv_channels * model.num_attention_heads != model.hidden_size, "--kv-channels");
    if (!got.empty()) refuse_model("with learned positions a GPT-2", got);
    return HfFamily::kGpt2;
  }
  no(has_learned_positions, "--position-embedding-type learned_absolute");
  no(model.position_embedding_type == PositionEmbedding::kNone, "--position-embedding-type none");
  no(model.rotary_percent != 1.0, "--rotary-percent");
  no(model.normalization != Normalization::kRmsNorm, "--normalization LayerNorm");
  no(!model.swiglu, "no --swiglu");
  const bool attention_bias = model.has_qkv_bias() && model.has_attn_proj_bias();
  if (is_mistral) {
    no(model.qk_layernorm, "--qk-layernorm");
    no(model.has_qkv_bias() || model.has_attn_proj_bias(), "biases");
    if (!got.empty()) refuse_model("a Mistral", got);
    return HfFamily::kMistral;
  }
  no(model.qk_layernorm && model.add_bias_linear, "--qk-layernorm with biases of the MLP");
  no(model.qk_layernorm && model.has_qkv_bias() && !attention_bias, "--qk-layernorm with --add-qkv-bias alone");
  no(model.has_attn_proj_bias() && !attention_bias, "--add-attn-proj-bias without --add-qkv-bias");
  if (!got.empty()) refuse_model("without learned positions a Llama, Qwen2 or Qwen3", got);
  if (model.qk_layernorm) return HfFamily::kQwen3;
  return model.has_qkv_bias() && !attention_bias ? HfFamily::kQwen2 : HfFamily::kLlama;
}

ModelConfig parse_hf_config(std::string_view text, const std::string& subject) {
  const json value = parse_strict_json(text, subject);
  Members file(value, subject);
  const std::string type = file.text("model_type");
  const auto* found = std::ranges::find(kFamilyNames, type);
  if (found == std::end(kFamilyNames))
    refuse_format(file.subject("model_type"), "gpt2, llama, mistral, qwen2 or qwen3", printable(type), kNotBuilt);
  const auto family = static_cast<HfFamily>(found - std::begin(kFamilyNames));
  ModelConfig model = family == HfFamily::kGpt2 ? read_gpt2(file) : read_llama_like(file, family);
  model.vocab_size = file.integer("vocab_size");
  model.untie_embeddings_and_output_weights = !file.boolean_or("tie_word_embeddings", family == HfFamily::kGpt2);
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

}  // namespace megalith
