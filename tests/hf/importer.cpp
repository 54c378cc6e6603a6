#include "tests/hf/importer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>
#include <set>

#include "core/base/error.h"
#include "core/base/files/file.h"
#include "core/checkpoint/safetensors.h"
#include "core/layers/parameter.h"
#include "core/tensor/bf16.h"

namespace megalith::test {

namespace {

constexpr std::uint64_t kMaxConfig = 1 << 20;  // bytes

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
    default: refuse_format("tensor", "F64, F32, BF16 or I32", std::string(name_of(type)));
  }
}

}  // namespace

HfTensors read_hf_tensors(const std::string& folder, const std::string& file_name) {
  const File file = Directory::open(folder).open_file(file_name);
  const SafetensorsHeader header = read_safetensors_header(file);
  HfTensors tensors;
  for (const SafetensorsEntry& entry : header.entries) {
    const DType type = dtype_from_safetensors(entry.dtype).value();
    std::vector<std::byte> bytes(entry.end - entry.begin);
    file.read_at(header.data_start + entry.begin, bytes);
    HfValues& tensor = tensors[entry.name];
    tensor.shape = entry.shape;
    tensor.values.reserve(bytes.size() / size_of(type));
    for (std::size_t at = 0; at < bytes.size(); at += size_of(type))
      tensor.values.push_back(element(bytes.data() + at, type));
  }
  return tensors;
}

ModelConfig read_hf_config(const std::string& folder, std::int64_t seq_length) {
  const std::string text = Directory::open(folder).read_text("config.json", kMaxConfig);
  ModelConfig config = parse_hf_config(text, folder + "/config.json");
  config.seq_length = seq_length;
  config.moe.aux_loss_coeff.clear();  // transformers' own step has no such loss
  return config;
}

std::map<std::string, HfPlaces> hf_places(const ModelConfig& config, HfFusion fusion) {
  std::map<std::string, HfPlaces> places;
  for (const HfTensor& tensor : hf_tensors(config, fusion)) {
    for (const HfPart& part : tensor.parts) {
      places[part.name].push_back({.name = tensor.name,
                                   .shape = tensor.shape,
                                   .first_row = part.first,
                                   .rows = tensor.rows(),
                                   .our_row = part.begin,
                                   .count = part.rows,
                                   .transposed = tensor.transposed});
    }
  }
  return places;
}

std::vector<double> import_exactly(const HfTensors& tensors, const HfPlaces& places, const Shape& shape) {
  const std::int64_t columns = shape.rank() == 2 ? shape[1] : 1;
  std::vector<double> values(static_cast<std::size_t>(shape.numel()));
  for (const HfPlace& place : places) {
    const auto found = tensors.find(place.name);
    if (found == tensors.end()) refuse_format(place.name, "a tensor of the file", "none");
    const HfValues& tensor = found->second;
    if (tensor.shape != place.shape)
      refuse_format(place.name, fmt::format("shape [{}]", fmt::join(place.shape, ", ")),
                    fmt::format("[{}]", fmt::join(tensor.shape, ", ")));
    const bool fits = place.our_row + place.count <= shape[0] && place.first_row + place.count <= place.rows;
    require(fits && static_cast<std::int64_t>(tensor.values.size()) == place.rows * columns, place.name);
    for (std::int64_t r = 0; r < place.count; ++r) {
      for (std::int64_t c = 0; c < columns; ++c) {
        const std::int64_t row = place.first_row + r;
        const std::int64_t from = place.transposed ? c * place.rows + row : row * columns + c;
        values[static_cast<std::size_t>((place.our_row + r) * columns + c)] =
            tensor.values[static_cast<std::size_t>(from)];
      }
    }
  }
  return values;
}

void import_weights(Stream& stream, ParameterStore& store, const ModelConfig& config, const HfTensors& tensors) {
  const std::map<std::string, HfPlaces> places = hf_places(config);
  std::set<std::string> used;
  for (const ParameterUnit& unit : store.units()) {
    for (const Parameter* parameter : unit.parameters) {
      for (std::size_t i = 0; i < parameter->parts.size(); ++i) {
        const LogicalTensor& part = parameter->parts[i];
        const auto place = places.find(part.name);
        require(place != places.end(), "no tensor of transformers for " + part.name);
        const std::vector<double> exact = import_exactly(tensors, place->second, part.global_shape);
        upload(stream, std::vector<float>(exact.begin(), exact.end()), parameter->part_of(parameter->weight, i));
        for (const HfPlace& from : place->second) used.insert(from.name);
      }
    }
  }
  for (const auto& [name, tensor] : tensors) {
    const bool is_tied = name == kHfOutputLayer && !config.untie_embeddings_and_output_weights;
    if (!used.contains(name) && !is_tied && !is_hf_buffer(hf_family(config), name))
      refuse_format(name, "a tensor of the model", "an unknown one");
  }
}

}  // namespace megalith::test
