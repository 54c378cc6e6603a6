// Tiny models of every family, with odd sizes if the family allows them.
#pragma once

#include <string>
#include <vector>

#include "core/device/device.h"
#include "core/model/config.h"

namespace megalith::test {

struct ModelFamily {
  std::string name;
  ModelConfig config;  // resolved and valid, fp32
};
std::vector<ModelFamily> model_families();
// For attention in bf16 on CUDA with a head dim that is a multiple of 8.
ModelConfig family(const std::string& name, DType dtype = DType::kFp32, DeviceType device = DeviceType::kCpu);

}  // namespace megalith::test
