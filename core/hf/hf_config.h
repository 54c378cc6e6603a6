// config.json of Hugging Face transformers for GPT-2, Llama, Mistral, Qwen2, Qwen3, Mixtral and Qwen3-MoE. Files of
// transformers 4 and 5 can be read, and both versions can read written files.
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

// Returns the family with the arithmetic of a resolved model. Mistral's arithmetic is Llama's, except for windows;
// model.hf_model_type selects one. Error (kUsage) with the flags that no family supports.
HfFamily hf_family(const ModelConfig& model);

// Unknown keys at the top of a config.json.
struct HfKeys {
  std::vector<std::string> ignored = {};      // --ignore-config-keys
  std::vector<std::string> passed_over = {};  // found and ignored: the keys above, keys of other tools, and null keys
};

// Parses a config.json to a resolved, valid model. seq_length and max_position_embeddings are its number of positions;
// parameters are fp32, since tensors carry their dtypes. Error (kFormat) for other architectures and for features that
// a ModelConfig cannot represent: dynamic and longrope scaling of RoPE, router noise, quantization. Unknown keys are
// errors too, unless `keys` ignores them. Keys of transformers without effect on weights or arithmetic are skipped.
// Error (kUsage) for an ignored key that is read or absent. `subject` is the file.
ModelConfig parse_hf_config(std::string_view text, const std::string& subject, HfKeys* keys = nullptr);

// Token ids that begin and end documents, if known.
struct HfTokenIds {
  std::optional<std::int64_t> bos = {}, eos = {};
};
// Formats a model as config.json for weights of model.params_dtype.
std::string hf_config_text(const ModelConfig& model, const HfTokenIds& ids);

// Formats generation_config.json as transformers derives it from config.json.
std::string hf_generation_config_text(const HfTokenIds& ids);

}  // namespace megalith
