#include "core/hf/hf_members.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/checkpoint/printable.h"
#include "core/checkpoint/strict_json.h"
#include "core/hf/hf_config.h"

namespace megalith {

using nlohmann::json;

namespace {

constexpr std::size_t kMaxText = 256;

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

}  // namespace

std::string show_json(const json& value) {
  if (value.is_string()) return printable(value.get_ref<const std::string&>());
  return value.is_structured() ? fmt::format("an {}", value.type_name()) : value.dump();
}

HfMembers::HfMembers(const json& value, std::string subject) : value_(value), subject_(std::move(subject)) {
  if (!value_.is_object()) refuse_content(subject_, "an object", show_json(value_));
}

const json* HfMembers::find(const std::string& key) {
  known_.insert(key);
  const auto found = value_.find(key);
  return found == value_.end() || found->is_null() ? nullptr : &*found;
}

const json& HfMembers::need(const std::string& key) {
  const json* value = find(key);
  if (value == nullptr) refuse_content(subject_, "key " + key, "none");
  return *value;
}

std::int64_t HfMembers::integer(const std::string& key) {
  return json_integer(need(key), 1, kMaxHfInteger, subject(key));
}

std::int64_t HfMembers::integer_or(const std::string& key, std::int64_t absent) {
  return find(key) == nullptr ? absent : integer(key);
}

double HfMembers::positive(const std::string& key) {
  const json& value = need(key);
  if (!value.is_number() || !(value.get<double>() > 0))  // finite: parse_strict_json rejects others
    refuse_content(subject(key), "a finite number above 0", show_json(value));
  return value.get<double>();
}

double HfMembers::at_least_0_or(const std::string& key, double absent) {
  const json* value = find(key);
  if (value == nullptr) return absent;
  if (!value->is_number() || value->get<double>() < 0)
    refuse_content(subject(key), "a finite number of at least 0", show_json(*value));
  return value->get<double>();
}

double HfMembers::positive_or(const std::string& key, double absent) {
  return find(key) == nullptr ? absent : positive(key);
}

bool HfMembers::boolean_or(const std::string& key, bool absent) {
  const json* value = find(key);
  if (value == nullptr) return absent;
  if (!value->is_boolean()) refuse_content(subject(key), "true or false", show_json(*value));
  return value->get<bool>();
}

bool HfMembers::is_null(const std::string& key) {
  known_.insert(key);
  const auto found = value_.find(key);
  return found != value_.end() && found->is_null();
}

std::string HfMembers::text(const std::string& key) { return json_text(need(key), kMaxText, subject(key)); }
void HfMembers::only(const std::string& key, const json& allowed, const std::string& why) {
  const json* value = find(key);
  if (value != nullptr && *value != allowed)
    refuse_format(subject(key), fmt::format("{}: {}", allowed.dump(), why), show_json(*value), kHfNotBuilt);
}

void HfMembers::refuse_unknown(HfKeys* keys) const {
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

void HfMembers::check_ignored(const HfKeys& keys) const {
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

}  // namespace megalith
