#include "core/hf/hf_files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "core/base/counted.h"
#include "core/base/error.h"
#include "core/base/files/file.h"
#include "core/base/log.h"
#include "core/checkpoint/printable.h"
#include "core/checkpoint/safetensors.h"
#include "core/checkpoint/strict_json.h"
#include "core/model/config.h"
#include "core/tensor/bf16.h"
#include "core/tokenizer/tokenizer.h"

namespace megalith {

namespace {

using nlohmann::json;

constexpr std::string_view kWhole = "model.safetensors";
constexpr std::string_view kIndex = "model.safetensors.index.json";
constexpr std::string_view kSuffix = ".safetensors";
constexpr std::size_t kMaxFiles = 10'000;
constexpr std::size_t kMaxFileName = 255;

bool is_file_name(std::string_view name) {
  return name.size() > kSuffix.size() && name.ends_with(kSuffix) && name[0] != '.' &&
         std::ranges::none_of(name, [](char c) { return c == '/' || c == '\x7f' || (c >= 0 && c < ' '); });
}

// Converts half precision (1 + 5 + 10 bits) to fp32; every value is exact.
float half_to_float(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
  const std::uint32_t exponent = (half >> 10) & 0x1Fu, mantissa = half & 0x3FFu;
  if (exponent == 0) {  // zero, or mantissa x 2^-24
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | sign);
  }
  const std::uint32_t wide = exponent == 31 ? 255 : exponent + 112;
  return std::bit_cast<float>(sign | wide << 23 | mantissa << 13);
}

template <class From, class To, class Convert>
std::vector<std::byte> converted(std::span<const std::byte> bytes, Convert convert) {
  std::vector<std::byte> out(bytes.size() / sizeof(From) * sizeof(To));
  for (std::size_t i = 0; i < bytes.size() / sizeof(From); ++i) {
    From value;
    std::memcpy(&value, bytes.data() + i * sizeof(From), sizeof(From));
    const To result = convert(value);
    std::memcpy(out.data() + i * sizeof(To), &result, sizeof(To));
  }
  return out;
}

bool is_weight_dtype(const std::string& dtype) { return dtype == "F32" || dtype == "BF16" || dtype == "F16"; }

// Checks a tied output layer against the word table, which exists.
void check_output_layer(const HfFolder& folder, HfFamily family) {
  const auto output = folder.tensors().find(std::string(kHfOutputLayer));
  if (output == folder.tensors().end()) return;
  const HfStored &a = output->second, &b = folder.tensors().at(hf_word_table(family));
  if (a.dtype == b.dtype && a.shape == b.shape && std::ranges::equal(a.bytes, b.bytes)) return;
  refuse_format(fmt::format("{}: tensor {}", folder.path(), kHfOutputLayer),
                "the same bytes as " + b.name + ", which config.json ties it to", "others",
                "set tie_word_embeddings to false in config.json if the output layer is separate");
}

// Compares an index with model.safetensors if both exist; like transformers, only the latter is read.
void compare_with_index(const HfFolder& folder, const std::string& index, HfFamily family) {
  const std::map<std::string, std::string> files = parse_hf_index(read_whole_file(index, kMaxJsonBytes), index);
  std::vector<std::string> missing, others;
  std::set<std::string> named, parts;
  for (const auto& [tensor, file] : files) {
    named.insert(with_hf_prefix(family, tensor));
    if (!folder.tensors().contains(with_hf_prefix(family, tensor))) missing.push_back(printable(tensor));
    if (file != kWhole) parts.insert(file);
  }
  for (const auto& [name, tensor] : folder.tensors()) {
    if (!named.contains(name)) others.push_back(printable(tensor.name));
  }
  if (!missing.empty() || !others.empty()) {
    refuse_format(
        fmt::format("{}: {} and {}", folder.path(), kWhole, kIndex), "the same tensors in both",
        missing.empty() ? first_names(others) + " in the file alone" : first_names(missing) + " in the index alone",
        "remove the one that does not belong to config.json");
  }
  if (!parts.empty())
    log_warning(fmt::format("{}: {} is read, and not the {} that {} names", folder.path(), kWhole,
                            counted(parts.size(), "file"), kIndex));
}

}  // namespace

std::map<std::string, std::string> parse_hf_index(std::string_view text, const std::string& subject) {
  const json value = parse_strict_json(text, subject);
  JsonObject index(value, subject);
  if (index.has("metadata")) {
    const json& metadata = index.member("metadata");
    if (!metadata.is_object()) refuse_content(subject + ": metadata", "an object", metadata.type_name());
    const auto size = metadata.find("total_size");
    if (size != metadata.end() && (!size->is_number() || *size < 0))
      refuse_content(subject + ": total_size", "a number of bytes",
                     size->is_number() ? size->dump() : size->type_name());
  }
  const json& map = index.member("weight_map");
  index.finish();
  if (!map.is_object()) refuse_content(subject + ": weight_map", "an object", map.type_name());
  if (map.empty() || map.size() > kMaxSafetensorsTensors)
    refuse_content(subject + ": weight_map", fmt::format("1 to {} tensors", kMaxSafetensorsTensors),
                   std::to_string(map.size()));
  std::map<std::string, std::string> files;
  std::set<std::string> names;
  for (const auto& [tensor, file] : map.items()) {
    if (tensor.empty() || tensor.size() > kMaxSafetensorsName)
      refuse_content(subject + ": weight_map", fmt::format("names of 1 to {} bytes", kMaxSafetensorsName),
                     printable(tensor));
    const std::string name = json_text(file, kMaxFileName, subject + ": weight_map: " + printable(tensor));
    if (!is_file_name(name)) {
      refuse_content(subject + ": weight_map: " + printable(tensor),
                     "the name of a .safetensors file next to the index", printable(name));
    }
    names.insert(name);
    files.emplace(tensor, name);
  }
  if (names.size() > kMaxFiles)
    refuse_content(subject + ": weight_map", fmt::format("at most {} files", kMaxFiles), std::to_string(names.size()));
  return files;
}

std::string hf_index_text(const std::map<std::string, std::string>& files, std::uint64_t total_size) {
  const json index = {{"metadata", {{"total_size", total_size}}}, {"weight_map", files}};
  return index.dump(2) + "\n";
}

HfFolder::HfFolder(const std::string& path, HfFamily family) : path_(path) {
  const std::string whole = fmt::format("{}/{}", path, kWhole), index = fmt::format("{}/{}", path, kIndex);
  if (Directory::exists(whole)) {
    add_file(std::string(kWhole), family, nullptr);
    if (Directory::exists(index)) compare_with_index(*this, index, family);
    return;
  }
  if (!Directory::exists(index)) {
    fail({.code = ExitCode::kFileIo,
          .subject = path,
          .expected = fmt::format("{} or {}", kWhole, kIndex),
          .got = "neither",
          .remedy = "pytorch_model.bin is not read: save the model with safe_serialization",
          .show_place = false});
  }
  const std::map<std::string, std::string> files = parse_hf_index(read_whole_file(index, kMaxJsonBytes), index);
  std::set<std::string> names;
  for (const auto& [tensor, file] : files) names.insert(file);
  for (const std::string& name : names) add_file(name, family, &files);
  for (const auto& [tensor, file] : files) {
    if (!tensors_.contains(with_hf_prefix(family, tensor)))
      refuse_content(index, fmt::format("tensor {} in {}", printable(tensor), file), "none");
  }
}

void HfFolder::add_file(const std::string& name, HfFamily family, const std::map<std::string, std::string>* index) {
  const std::string path = path_ + "/" + name;
  const File file = File::open(path);
  const SafetensorsHeader header = read_safetensors_header(file);
  const auto format = header.metadata.find("format");
  if (format != header.metadata.end() && format->second != "pt")
    refuse_content(path + ": format in __metadata__", "pt", printable(format->second));
  const MappedFile& mapped = files_.emplace_back(MappedFile::open(path));
  if (mapped.bytes().size() != file.size()) refuse_content(path, fmt::format("{} bytes", file.size()), "another size");
  const std::span<const std::byte> data = mapped.bytes().subspan(header.data_start);
  for (const SafetensorsEntry& entry : header.entries) {
    if (index != nullptr) {
      const auto place = index->find(entry.name);
      if (place == index->end() || place->second != name)
        refuse_content(path, "the tensors that the index gives it", printable(entry.name));
    }
    const auto [earlier, is_new] = tensors_.try_emplace(
        with_hf_prefix(family, entry.name),
        HfStored{entry.name, entry.dtype, entry.shape, data.subspan(entry.begin, entry.end - entry.begin)});
    if (!is_new)
      refuse_content(path, "each tensor once", printable(earlier->second.name) + " and " + printable(entry.name));
  }
}

std::vector<HfTensor> match_hf_tensors(const HfFolder& folder, const ModelConfig& model) {
  const HfFamily family = hf_family(model);
  const std::map<std::string, HfStored>& stored = folder.tensors();
  const auto has = [&stored](std::string_view suffix) {
    return std::ranges::any_of(stored, [suffix](const auto& tensor) { return tensor.first.ends_with(suffix); });
  };
  std::vector<HfTensor> wanted = hf_tensors(model, {.qkv = has(".self_attn.qkv_proj.weight"),
                                                    .gate_up = has(".mlp.gate_up_proj.weight"),
                                                    .experts = has(".mlp.experts.gate_up_proj")});
  std::vector<std::string> missing, unknown, different;
  std::set<std::string_view> names;
  for (const HfTensor& tensor : wanted) {
    names.insert(tensor.name);
    const auto found = stored.find(tensor.name);
    if (found == stored.end()) {
      missing.push_back(tensor.name);
      continue;
    }
    const HfStored& have = found->second;
    if (have.shape == tensor.shape && is_weight_dtype(have.dtype)) continue;
    different.push_back(fmt::format("{} (expected F32, BF16 or F16 [{}], got {} [{}])", printable(have.name),
                                    fmt::join(tensor.shape, ", "), have.dtype, fmt::join(have.shape, ", ")));
  }
  const bool is_tied = !model.untie_embeddings_and_output_weights;
  for (const auto& [name, tensor] : stored) {
    const bool may_be_there = is_hf_buffer(family, name) || (is_tied && name == kHfOutputLayer);
    if (!names.contains(name) && !may_be_there) unknown.push_back(printable(tensor.name));
  }
  std::string problem;
  const auto add = [&](std::string_view title, const std::vector<std::string>& list) {
    if (!list.empty()) problem += fmt::format("{}{}: {}", problem.empty() ? "" : "; ", title, first_names(list));
  };
  add("missing", missing);
  add("unknown", unknown);
  add("of another shape or dtype", different);
  if (!problem.empty()) {
    refuse_format(fmt::format("{}: the tensors are not those of config.json: {}", folder.path(), problem), {}, {},
                  "complete the folder, or take the config.json that belongs to it");
  }
  if (is_tied) check_output_layer(folder, family);
  return wanted;
}

DType hf_params_dtype(const HfFolder& folder, std::span<const HfTensor> tensors) {
  const bool is_bf16 = std::all_of(tensors.begin(), tensors.end(), [&](const HfTensor& tensor) {
    return folder.tensors().at(tensor.name).dtype == "BF16";
  });
  return is_bf16 ? DType::kBf16 : DType::kFp32;
}

std::vector<std::byte> hf_elements_as(const HfStored& stored, DType dtype) {
  if (stored.dtype == (dtype == DType::kBf16 ? "BF16" : "F32")) return {};
  if (stored.dtype == "F32") return converted<float, bf16>(stored.bytes, to_bf16);
  if (stored.dtype == "BF16") return converted<bf16, float>(stored.bytes, [](bf16 value) { return to_float(value); });
  if (dtype == DType::kFp32) return converted<std::uint16_t, float>(stored.bytes, half_to_float);
  return converted<std::uint16_t, bf16>(stored.bytes, [](std::uint16_t half) { return to_bf16(half_to_float(half)); });
}

std::map<std::string, std::string> read_hf_tokenizer(const std::string& path, std::uint64_t max_bytes) {
  constexpr std::array kNames = {"added_tokens.json", "chat_template.jinja",     "generation_config.json",
                                 "merges.txt",        "special_tokens_map.json", "tokenizer.json",
                                 "tokenizer.model",   "tokenizer_config.json",   "vocab.json"};
  std::map<std::string, std::string> texts;
  for (const char* name : kNames) {
    if (!look_at(fmt::format("{}/{}", path, name))) continue;
    texts[name] = read_model_file(path, name, max_bytes);
  }
  return texts;
}

}  // namespace megalith
