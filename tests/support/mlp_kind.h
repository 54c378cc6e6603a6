// Kinds of MLPs and experts, for tests over all of them.
#pragma once

#include <string>

#include "core/model/config.h"

namespace megalith::test {

struct MlpKind {
  std::string activation = "swiglu";  // or gelu_tanh, gelu, squared_relu
  bool bias = false;

  std::string name() const { return activation + (bias ? "_bias" : ""); }
  void apply(ModelConfig& config) const {
    config.swiglu = activation == "swiglu";
    config.squared_relu = activation == "squared_relu";
    config.activation_func = activation == "gelu" ? ActivationFunction::kGelu : ActivationFunction::kGeluTanh;
    config.add_bias_linear = bias;
  }
};

}  // namespace megalith::test
