// Reads a model as transformers saves it (config.json, model.safetensors) into a model of core/model, by the names of
// apps/hf_names.h: what is compared with transformers here is what convert converts.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/device/stream.h"
#include "core/layers/parameter.h"
#include "core/model/config.h"

namespace megalith::test {

struct HfValues {
  std::vector<std::int64_t> shape;
  std::vector<double> values;  // row-major
};
using HfTensors = std::map<std::string, HfValues>;

// All tensors of a safetensors file of F64, F32, BF16 or I32.
HfTensors read_hf_tensors(const std::string& folder, const std::string& file);

// From FOLDER/config.json, resolved and valid.
ModelConfig read_hf_config(const std::string& folder, std::int64_t seq_length);

// Where a logical tensor lies: rows [first_row, ...) of a matrix of `rows` rows, one per output or token.
struct HfPlace {
  std::string name;
  std::int64_t first_row = 0;
  std::int64_t rows = 0;
  bool transposed = false;  // GPT-2's Conv1D stores [inputs, outputs]
  bool padded = false;      // our table may have more rows, which are zeros
};
std::map<std::string, HfPlace> hf_places(const ModelConfig& config);  // by logical name

// The values of a logical tensor of this shape, [rows, columns] or [rows]. Fails (kFormat) when the tensor is missing
// or has another shape.
std::vector<float> import_tensor(const HfTensors& tensors, const HfPlace& place, const Shape& shape);
// The same, not rounded: for gradients.
std::vector<double> import_exactly(const HfTensors& tensors, const HfPlace& place, const Shape& shape);

// Fills all parameters. Fails (kFormat) also when a tensor of the file is not part of the model.
void import_weights(Stream& stream, ParameterStore& store, const ModelConfig& config, const HfTensors& tensors);

}  // namespace megalith::test
