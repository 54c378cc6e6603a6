// Tiny models of every family, with odd sizes where the family allows them.
#pragma once

#include <string>
#include <vector>

#include "core/model/config.h"

namespace megalith::test {

struct ModelFamily {
  std::string name;
  ModelConfig config;  // resolved and valid, fp32
};
std::vector<ModelFamily> model_families();
ModelConfig family(const std::string& name, DType dtype = DType::kFp32);

}  // namespace megalith::test
