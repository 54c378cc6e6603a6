// config.json of Hugging Face transformers for the families that a ModelConfig can be: GPT-2, Llama, Mistral, Qwen2,
// Qwen3, and with experts Mixtral and Qwen3-MoE. Written so that transformers 4 and 5 read it; read from either.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace megalith {

struct ModelConfig;

enum class HfFamily { kGpt2, kLlama, kMistral, kQwen2, kQwen3, kMixtral, kQwen3Moe };
inline constexpr std::string_view kHfFamilyNames[] = {"gpt2",  "llama",   "mistral",  "qwen2",
                                                      "qwen3", "mixtral", "qwen3_moe"};
std::string_view name_of(HfFamily family);  // model_type of config.json: "gpt2", ...

// The family whose arithmetic a resolved model's is; Mistral's is Llama's, and model.hf_model_type says which of the
// two. Error (kUsage) that names the flags which none of them has.
HfFamily hf_family(const ModelConfig& model);

// Keys at the top of a config.json that this program does not know.
struct HfKeys {
  std::vector<std::string> ignored = {};      // --ignore-config-keys
  std::vector<std::string> passed_over = {};  // found: these, keys of other tools, and keys that are null
};

// The model that a config.json describes, resolved and valid, with seq_length and max_position_embeddings at its number
// of positions; parameters fp32, since the tensors say their own dtype. Error (kFormat) for another architecture, for
// anything that a ModelConfig cannot say (RoPE scaled in another way than Llama 3.1's, sliding windows that a sequence
// can reach, noise in a router, quantisation), and for unknown keys, which may mean such things, unless `keys` says or
// then lists otherwise; keys of transformers that change neither weights nor arithmetic are not looked at. Error
// (kUsage) for a key to ignore that is read or is not there. `subject` names the file.
ModelConfig parse_hf_config(std::string_view text, const std::string& subject, HfKeys* keys = nullptr);

// The ids that begin and end documents, if they are known.
struct HfTokenIds {
  std::optional<std::int64_t> bos = {}, eos = {};
};
// The other way, for weights of model.params_dtype.
std::string hf_config_text(const ModelConfig& model, const HfTokenIds& ids);

}  // namespace megalith
