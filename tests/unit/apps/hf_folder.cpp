#include "tests/unit/apps/hf_folder.h"

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <ostream>

#include "core/model/config.h"
#include "tests/unit/apps/flags_support.h"

namespace megalith::test {

void PrintTo(const HfBytes& tensor, std::ostream* out) { *out << tensor.dtype << ", " << tensor.bytes.size(); }

void write_safetensors(const std::string& path, const HfFile& tensors, const std::string& format) {
  nlohmann::ordered_json header = {{"__metadata__", {{"format", format}}}};
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    header[name] = {{"dtype", tensor.dtype},
                    {"shape", tensor.shape},
                    {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
    data += tensor.bytes;
  }
  const std::string text = header.dump();
  const std::uint64_t length = text.size();
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), sizeof(length));
  file << text << data;
  ASSERT_TRUE(file.flush()) << path;
}

HfFile read_safetensors(const std::string& path) {
  const std::string file = read_file(path);
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof(length));
  HfFile tensors;
  const nlohmann::json header = nlohmann::json::parse(file.substr(8, length));
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const auto& offsets = entry.at("data_offsets");
    const auto begin = offsets.at(0).get<std::size_t>(), end = offsets.at(1).get<std::size_t>();
    tensors[name] = {entry.at("dtype"), entry.at("shape"), file.substr(8 + length + begin, end - begin)};
  }
  return tensors;
}

HfFile tensors_of(const ModelConfig& model, const std::string& dtype, HfFusion fusion) {
  HfFile file;
  std::uint32_t state = 12345;
  for (const HfTensor& tensor : hf_tensors(model, fusion)) {
    HfBytes& out = file[tensor.name];
    out = {.dtype = dtype, .shape = tensor.shape, .bytes = {}};
    const std::int64_t bytes = tensor.rows() * tensor.columns() * (dtype == "F32" ? 4 : 2);
    for (std::int64_t i = 0; i < bytes; ++i) {
      state = state * 1664525u + 1013904223u;
      const auto byte = static_cast<unsigned char>(state >> 24);
      out.bytes += static_cast<char>(i % 2 == 1 ? (byte & 0xBFu) : byte);  // exponents stay below the largest
    }
  }
  return file;
}

}  // namespace megalith::test
