// One forward and backward of a model that was imported from a folder of transformers, on any backend: segment by
// segment, without a plan.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tests/hf/importer.h"

namespace megalith::test {

struct ModelStep {
  std::vector<double> logits;  // [T, V], padding left out
  double loss = 0;             // mean over the tokens
  // Gradients by logical name, in the logical tensor's shape: d loss / d weight.
  std::map<std::string, std::vector<float>> gradients;
  std::map<std::string, Shape> shapes;
};

struct ModelStepCase {
  ModelConfig config;
  DeviceType device = DeviceType::kCpu;
  const HfTensors& weights;
  std::vector<std::int32_t> tokens, labels;  // [B, S]
  std::int64_t sequences = 1;                // B
};
ModelStep run_model_step(const ModelStepCase& test);

}  // namespace megalith::test
