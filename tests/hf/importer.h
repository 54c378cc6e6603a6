// Reads a model saved by transformers (config.json, model.safetensors) into a model of core/model, by the names of
// core/hf/hf_names.h. The mapping under test is the one that convert uses.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/device/stream.h"
#include "core/hf/hf_names.h"
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

// Place of rows of a logical tensor. `count` of them from `our_row` on are rows [first_row, ...) of a matrix of `rows`
// rows, one per output or token.
struct HfPlace {
  std::string name;
  std::vector<std::int64_t> shape;  // stored shape
  std::int64_t first_row = 0;
  std::int64_t rows = 0;
  std::int64_t our_row = 0;
  std::int64_t count = 0;   // our table may have more rows after them, which are zeros
  bool transposed = false;  // GPT-2's Conv1D stores [inputs, outputs]
};
using HfPlaces = std::vector<HfPlace>;  // for one logical tensor: several if experts are split
std::map<std::string, HfPlaces> hf_places(const ModelConfig& config, HfFusion fusion = {});  // key: logical name

// The values of a logical tensor of this shape, [rows, columns] or [rows]; zeros for rows without a source. Not
// rounded, for gradients. Fails (kFormat) if a tensor is missing or has another shape.
std::vector<double> import_exactly(const HfTensors& tensors, const HfPlaces& places, const Shape& shape);

// Fills all parameters. Fails (kFormat) also when a tensor of the file is not part of the model.
void import_weights(Stream& stream, ParameterStore& store, const ModelConfig& config, const HfTensors& tensors);

}  // namespace megalith::test
