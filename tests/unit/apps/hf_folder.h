// Folders of transformers for tests: tensors of F32, BF16 or F16 as their bytes, written and read without convert.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <map>
#include <string>
#include <vector>

#include "core/hf/hf_names.h"
#include "core/model/config.h"

namespace megalith::test {

struct HfBytes {
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::string bytes;
  friend bool operator==(const HfBytes&, const HfBytes&) = default;
};
void PrintTo(const HfBytes& tensor, std::ostream* out);
using HfFile = std::map<std::string, HfBytes>;

void write_safetensors(const std::string& path, const HfFile& tensors, const std::string& format = "pt");
HfFile read_safetensors(const std::string& path);

// Every tensor of the model with bytes of no pattern that are finite numbers in any dtype.
HfFile tensors_of(const ModelConfig& model, const std::string& dtype, HfFusion fusion = {});

}  // namespace megalith::test
