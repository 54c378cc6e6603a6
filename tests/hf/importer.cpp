#include "tests/hf/importer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "core/base/error.h"
#include "core/base/file.h"
#include "core/checkpoint/safetensors.h"
#include "core/layers/host_copy.h"
#include "core/tensor/bf16.h"

namespace megalith::test {

namespace {

constexpr std::uint64_t kMaxConfig = 1 << 20;  // bytes

[[noreturn]] void refuse(std::string subject, std::string expected, std::string got) {
  fail({.code = ExitCode::kFormat,
        .subject = std::move(subject),
        .expected = std::move(expected),
        .got = std::move(got),
        .remedy = {},
        .show_place = false});
}

double element(const std::byte* address, DType type) {
  const auto read = [address](auto value) {
    std::memcpy(&value, address, sizeof(value));
    return value;
  };
  switch (type) {
    case DType::kFp64: return read(double{});
    case DType::kFp32: return read(float{});
    case DType::kBf16: return to_float(read(bf16{}));
    case DType::kInt32: return read(std::int32_t{});
    default: refuse("tensor", "F64, F32, BF16 or I32", std::string(name_of(type)));
  }
}

ModelConfig gpt2_config(const nlohmann::json& json) {
  ModelConfig c;
  c.num_layers = json.at("n_layer");
  c.hidden_size = json.at("n_embd");
  c.num_attention_heads = json.at("n_head");
  if (const auto inner = json.find("n_inner"); inner != json.end() && !inner->is_null()) c.ffn_hidden_size = *inner;
  c.max_position_embeddings = json.at("n_positions");
  c.norm_epsilon = json.at("layer_norm_epsilon");
  if (json.at("activation_function") != "gelu_new")
    refuse("activation_function", "gelu_new", json["activation_function"].dump());
  return c;
}

ModelConfig llama_config(const nlohmann::json& json) {
  ModelConfig c;
  c.num_layers = json.at("num_hidden_layers");
  c.hidden_size = json.at("hidden_size");
  c.num_attention_heads = json.at("num_attention_heads");
  c.num_query_groups = json.at("num_key_value_heads");
  c.kv_channels = json.value("head_dim", std::int64_t{0});
  c.ffn_hidden_size = json.at("intermediate_size");
  c.max_position_embeddings = json.at("max_position_embeddings");
  c.norm_epsilon = json.at("rms_norm_eps");
  const nlohmann::json rope = json.value("rope_parameters", nlohmann::json::object());
  if (rope.value("rope_type", "default") != "default") refuse("rope_type", "default", rope["rope_type"].dump());
  c.rotary_base = rope.contains("rope_theta") ? rope["rope_theta"].get<double>() : json.value("rope_theta", 10000.0);
  c.position_embedding_type = PositionEmbedding::kRope;
  c.normalization = Normalization::kRmsNorm;
  c.swiglu = true;
  c.add_bias_linear = false;
  if (json.value("attention_bias", false) || json.value("mlp_bias", false)) refuse("biases", "none", "some");
  return c;
}

class Places {
 public:
  explicit Places(const ModelConfig& config) : config_(config) {}

  std::map<std::string, HfPlace> gpt2() {
    const std::int64_t h = config_.hidden_size, f = config_.ffn_hidden_size;
    const std::int64_t q = config_.num_attention_heads * config_.kv_channels;
    table("embedding.word_embeddings", "wte");
    places_["embedding.position_embeddings.weight"] = {.name = "wpe.weight", .rows = config_.max_position_embeddings};
    const bool conv = true;
    for (std::int64_t i = 0; i < config_.num_layers; ++i) {
      const std::string layer = fmt::format("decoder.layers.{}.", i), hf = fmt::format("h.{}.", i);
      norm(layer + "input_layernorm", hf + "ln_1");
      linear(layer + "self_attention.linear_q", {.name = hf + "attn.c_attn", .rows = 3 * q, .transposed = conv});
      linear(layer + "self_attention.linear_k",
             {.name = hf + "attn.c_attn", .first_row = q, .rows = 3 * q, .transposed = conv});
      linear(layer + "self_attention.linear_v",
             {.name = hf + "attn.c_attn", .first_row = 2 * q, .rows = 3 * q, .transposed = conv});
      linear(layer + "self_attention.linear_proj", {.name = hf + "attn.c_proj", .rows = h, .transposed = conv});
      norm(layer + "pre_mlp_layernorm", hf + "ln_2");
      linear(layer + "mlp.linear_fc1", {.name = hf + "mlp.c_fc", .rows = f, .transposed = conv});
      linear(layer + "mlp.linear_fc2", {.name = hf + "mlp.c_proj", .rows = h, .transposed = conv});
    }
    norm("decoder.final_layernorm", "ln_f");
    return places_;
  }

  std::map<std::string, HfPlace> llama() {
    const std::int64_t h = config_.hidden_size, f = config_.ffn_hidden_size;
    const std::int64_t q = config_.num_attention_heads * config_.kv_channels;
    const std::int64_t kv = config_.num_query_groups * config_.kv_channels;
    table("embedding.word_embeddings", "model.embed_tokens");
    for (std::int64_t i = 0; i < config_.num_layers; ++i) {
      const std::string layer = fmt::format("decoder.layers.{}.", i), hf = fmt::format("model.layers.{}.", i);
      norm(layer + "input_layernorm", hf + "input_layernorm");
      linear(layer + "self_attention.linear_q", {.name = hf + "self_attn.q_proj", .rows = q});
      linear(layer + "self_attention.linear_k", {.name = hf + "self_attn.k_proj", .rows = kv});
      linear(layer + "self_attention.linear_v", {.name = hf + "self_attn.v_proj", .rows = kv});
      linear(layer + "self_attention.linear_proj", {.name = hf + "self_attn.o_proj", .rows = h});
      norm(layer + "pre_mlp_layernorm", hf + "post_attention_layernorm");
      linear(layer + "mlp.linear_gate", {.name = hf + "mlp.gate_proj", .rows = f});
      linear(layer + "mlp.linear_up", {.name = hf + "mlp.up_proj", .rows = f});
      linear(layer + "mlp.linear_fc2", {.name = hf + "mlp.down_proj", .rows = h});
    }
    norm("decoder.final_layernorm", "model.norm");
    if (config_.untie_embeddings_and_output_weights) table("output_layer", "lm_head");
    return places_;
  }

 private:
  void table(const std::string& logical, const std::string& hf) {
    places_[logical + ".weight"] = {.name = hf + ".weight", .rows = config_.vocab_size, .padded = true};
  }

  void norm(const std::string& logical, const std::string& hf) {
    places_[logical + ".weight"] = {.name = hf + ".weight", .rows = config_.hidden_size};
    if (config_.normalization == Normalization::kLayerNorm)
      places_[logical + ".bias"] = {.name = hf + ".bias", .rows = config_.hidden_size};
  }

  void linear(const std::string& logical, HfPlace place) {
    const std::string name = place.name;
    place.name = name + ".weight";
    places_[logical + ".weight"] = place;
    if (!config_.add_bias_linear) return;
    place.name = name + ".bias";
    place.transposed = false;
    places_[logical + ".bias"] = place;
  }

  const ModelConfig& config_;
  std::map<std::string, HfPlace> places_;
};

// Constants that old files of GPT-2 hold, and the output layer where it is the word table.
bool may_be_left_over(const std::string& name, const ModelConfig& config) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
         (name == "lm_head.weight" && !config.untie_embeddings_and_output_weights);
}

}  // namespace

std::string hf_name(std::string_view stored) {
  constexpr std::string_view kPrefix = "transformer.";
  return std::string(stored.starts_with(kPrefix) ? stored.substr(kPrefix.size()) : stored);
}

HfTensors read_hf_tensors(const std::string& folder, const std::string& file_name) {
  const File file = Directory::open(folder).open_file(file_name);
  const SafetensorsHeader header = read_safetensors_header(file);
  HfTensors tensors;
  for (const SafetensorsEntry& entry : header.entries) {
    const DType type = dtype_of(entry, file.path());
    std::vector<std::byte> bytes(entry.end - entry.begin);
    file.read_at(header.data_start + entry.begin, bytes);
    HfTensor& tensor = tensors[hf_name(entry.name)];
    tensor.shape = entry.shape;
    tensor.values.reserve(bytes.size() / size_of(type));
    for (std::size_t at = 0; at < bytes.size(); at += size_of(type))
      tensor.values.push_back(element(bytes.data() + at, type));
  }
  return tensors;
}

ModelConfig read_hf_config(const std::string& folder, std::int64_t seq_length) {
  const std::string text = Directory::open(folder).read_text("config.json", kMaxConfig);
  try {
    const nlohmann::json json = nlohmann::json::parse(text);
    const std::string type = json.at("model_type");
    if (type != "gpt2" && type != "llama") refuse(folder + "/config.json: model_type", "gpt2 or llama", type);
    ModelConfig config = type == "gpt2" ? gpt2_config(json) : llama_config(json);
    config.vocab_size = json.at("vocab_size");
    config.untie_embeddings_and_output_weights = !json.value("tie_word_embeddings", type == "gpt2");
    config.seq_length = seq_length;
    resolve(config);
    validate(config);
    return config;
  } catch (const nlohmann::json::exception& error) {
    refuse(folder + "/config.json", "a configuration of transformers", error.what());
  }
}

std::map<std::string, HfPlace> hf_places(const ModelConfig& config) {
  return config.swiglu ? Places(config).llama() : Places(config).gpt2();
}

std::vector<double> import_exactly(const HfTensors& tensors, const HfPlace& place, const Shape& shape) {
  const auto found = tensors.find(place.name);
  if (found == tensors.end()) refuse(place.name, "a tensor of the file", "none");
  const HfTensor& tensor = found->second;
  std::vector<std::int64_t> want = {place.rows};
  if (shape.rank() == 2) want.push_back(shape[1]);
  if (place.transposed) std::swap(want.front(), want.back());
  if (tensor.shape != want)
    refuse(place.name, fmt::format("shape [{}]", fmt::join(want, ", ")),
           fmt::format("[{}]", fmt::join(tensor.shape, ", ")));
  const std::int64_t columns = shape.rank() == 2 ? shape[1] : 1;
  const std::int64_t rows = place.padded ? std::min(shape[0], place.rows) : shape[0];
  require(place.first_row + rows <= place.rows, place.name);
  std::vector<double> values(static_cast<std::size_t>(shape.numel()));
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c) {
      const std::int64_t row = place.first_row + r;
      const std::int64_t from = place.transposed ? c * place.rows + row : row * columns + c;
      values[static_cast<std::size_t>(r * columns + c)] = tensor.values[static_cast<std::size_t>(from)];
    }
  }
  return values;
}

std::vector<float> import_tensor(const HfTensors& tensors, const HfPlace& place, const Shape& shape) {
  const std::vector<double> exact = import_exactly(tensors, place, shape);
  std::vector<float> values(exact.size());
  std::transform(exact.begin(), exact.end(), values.begin(), [](double x) { return static_cast<float>(x); });
  return values;
}

void import_weights(Stream& stream, ParameterStore& store, const ModelConfig& config, const HfTensors& tensors) {
  const std::map<std::string, HfPlace> places = hf_places(config);
  std::set<std::string> used;
  for (const ParameterUnit& unit : store.units()) {
    for (const Parameter* parameter : unit.parameters) {
      for (std::size_t i = 0; i < parameter->parts.size(); ++i) {
        const LogicalTensor& part = parameter->parts[i];
        const auto place = places.find(part.name);
        require(place != places.end(), "no tensor of transformers for " + part.name);
        upload(stream, import_tensor(tensors, place->second, part.global_shape),
               parameter->part_of(parameter->weight, i));
        used.insert(place->second.name);
      }
    }
  }
  for (const auto& [name, tensor] : tensors) {
    if (!used.contains(name) && !may_be_left_over(name, config))
      refuse(name, "a tensor of the model", "an unknown one");
  }
}

}  // namespace megalith::test
