// Imported models of transformers, for logits, loss and every gradient of one step. Their error against transformers in
// fp64 is at most twice that of transformers at the model's dtype. tests/hf/golden is always there; larger models are
// made if ${PYTHON:-python3} has torch and transformers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "core/base/error.h"
#include "core/model/gpt.h"
#include "tests/hf/model_step.h"
#include "tests/hf/python.h"
#include "tests/support/device_cases.h"
#include "tests/support/download.h"
#include "tests/support/error_of.h"
#include "tests/support/test_folder.h"

namespace megalith::test {
namespace {

struct Case {
  std::string family;
  DType dtype;
  DeviceType device;
};

std::string name_of_case(const testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  return c.family + "_" + std::string(name_of(c.dtype)) + "_" + std::string(name_of(c.device));
}
void PrintTo(const Case& c, std::ostream* out) { *out << c.family; }

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const DeviceType device : devices()) {
    for (const char* family : {"gpt2", "llama", "llama31", "llama_yarn", "llama_linear", "mistral", "qwen2", "qwen3",
                               "qwen3_yarn", "mixtral", "qwen3_moe"}) {
      for (const DType dtype : {DType::kFp32, DType::kBf16}) all.push_back({family, dtype, device});
    }
  }
  return all;
}

double squared_distance(const auto& got, const std::vector<double>& want) {
  double sum = 0;
  for (std::size_t i = 0; i < want.size(); ++i) sum += std::pow(static_cast<double>(got[i]) - want[i], 2);
  return sum;
}

// Files that make_models.py wrote next to a model.
struct Golden {
  std::string folder;
  HfTensors step = read_hf_tensors(folder, "step.safetensors");
  nlohmann::json errors = nlohmann::json::parse(std::ifstream(folder + "/step.json")).at("errors");

  std::vector<std::int32_t> integers(const std::string& name) const {
    const std::vector<double>& values = step.at(name).values;
    return {values.begin(), values.end()};
  }
  // How far transformers is off at `dtype`, L2 over the tensor.
  double error(DType dtype, const std::string& name) const { return errors.at(std::string(name_of(dtype))).at(name); }
};

void expect_agreement(const std::string& folder, DType dtype, DeviceType device) {
  const Golden golden{.folder = folder};
  const HfTensors weights = read_hf_tensors(folder, "model.safetensors");
  const std::vector<std::int64_t>& shape = golden.step.at("tokens").shape;
  ModelStepCase test{.config = read_hf_config(folder, shape.at(1)),
                     .device = device,
                     .weights = weights,
                     .tokens = golden.integers("tokens"),
                     .labels = golden.integers("labels"),
                     .sequences = shape.at(0)};
  test.config.params_dtype = dtype;
  const ModelStep step = run_model_step(test);

  double worst = 0;
  const auto expect = [&](const std::string& name, double error) {
    const double allowed = 2 * golden.error(dtype, name);
    worst = std::max(worst, 2 * error / allowed);
    EXPECT_GT(allowed, 0) << name << ": transformers has no error, so it bounds nothing";
    EXPECT_LE(error, allowed) << name << ": " << 2 * error / allowed << " times the error of transformers";
  };
  const std::vector<double>& logits = golden.step.at("logits").values;
  ASSERT_EQ(step.logits.size(), logits.size());
  expect("logits", std::sqrt(squared_distance(step.logits, logits)));
  if (dtype == DType::kFp32) {
    const double norm = std::sqrt(std::inner_product(logits.begin(), logits.end(), logits.begin(), 0.0));
    const double relative = std::sqrt(squared_distance(step.logits, logits)) / norm;
    EXPECT_LT(relative, 1e-5);
    testing::Test::RecordProperty("logits", std::to_string(relative * 1e9) + "e-9 relative");
  }

  // A token's loss moves by at most twice its logits' largest move; the rounding of sums adds to it.
  const double tokens = static_cast<double>(test.tokens.size());
  const double moved = 2 * 2 * golden.error(dtype, "logits") / std::sqrt(tokens);
  const double rounding = tolerance(DType::kFp32, static_cast<std::int64_t>(tokens) + test.config.vocab_size);
  const double largest = std::abs(
      *std::max_element(logits.begin(), logits.end(), [](double a, double b) { return std::abs(a) < std::abs(b); }));
  const double loss = golden.step.at("loss").values.at(0);
  EXPECT_NEAR(step.loss, loss, moved + rounding * (loss + largest));

  std::map<std::string, double> errors;  // squared, by transformers' tensor
  for (const auto& [name, places] : hf_places(test.config, {.experts = true})) {
    const std::vector<double> want = import_exactly(golden.step, places, step.shapes.at(name));
    ASSERT_EQ(step.gradients.at(name).size(), want.size()) << name;
    errors[places.front().name] += squared_distance(step.gradients.at(name), want);
  }
  EXPECT_EQ(errors.size(), golden.step.size() - 4);  // tokens, labels, logits and loss
  for (const auto& [name, error] : errors) expect(name, std::sqrt(error));
  testing::Test::RecordProperty("worst", std::to_string(worst) + " times the error of transformers");
}

class HfModels : public OnDevice<Case> {};
INSTANTIATE_TEST_SUITE_P(Golden, HfModels, testing::ValuesIn(cases()), name_of_case);

TEST_P(HfModels, StepAgreesWithTransformers) {
  const Case& c = GetParam();
  expect_agreement(MEGALITH_SOURCE_DIR "/tests/hf/golden/" + c.family, c.dtype, c.device);
}

class HfFreshModels : public OnDevice<DeviceType> {};
INSTANTIATE_TEST_SUITE_P(Devices, HfFreshModels, testing::ValuesIn(devices()), name_of_device_case);

// One test for all, because making the models is slower than running them.
TEST_P(HfFreshModels, StepAgreesWithTransformers) {
  if (const std::string reason = missing_transformers(); !reason.empty()) GTEST_SKIP() << reason;
  const TestFolder models;
  const std::string folder = models.path(std::string(name_of(GetParam())));
  const std::string command = python() + " " MEGALITH_SOURCE_DIR "/tests/hf/make_models.py '" + folder + "'";
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
  for (const Case& c : cases()) {
    if (c.device != GetParam()) continue;
    SCOPED_TRACE(c.family + " " + std::string(name_of(c.dtype)));
    expect_agreement(folder + "/" + c.family, c.dtype, c.device);
  }
}

class HfImporter : public testing::Test {
 protected:
  static constexpr const char* kFolder = MEGALITH_SOURCE_DIR "/tests/hf/golden/gpt2";

  using Weights = std::map<std::string, std::vector<float>>;  // key: logical name

  Weights import(const HfTensors& tensors) {
    const GptModel model = build_gpt(config_);
    MemoryPool pool(DeviceType::kCpu);
    Stream stream(DeviceType::kCpu, "test");
    model.parameters->allocate(pool, DType::kFp32);
    import_weights(stream, *model.parameters, config_, tensors);
    Weights weights;
    for (const ParameterUnit& unit : model.parameters->units()) {
      for (const Parameter* parameter : unit.parameters) {
        for (std::size_t i = 0; i < parameter->parts.size(); ++i)
          weights[parameter->parts[i].name] = download(stream, parameter->part_of(parameter->weight, i));
      }
    }
    return weights;
  }
  void expect_refused(const HfTensors& tensors, const std::string& part) {
    EXPECT_THAT(error_of(ExitCode::kFormat, [&] { import(tensors); }), testing::HasSubstr(part));
  }

  ModelConfig config_ = read_hf_config(kFolder, 12);
  HfTensors tensors_ = read_hf_tensors(kFolder, "model.safetensors");
};

TEST_F(HfImporter, TheOldBuffersAndTheTiedOutputLayerMayBeThere) {
  const Weights plain = import(tensors_);
  tensors_["transformer.h.0.attn.bias"] = tensors_["transformer.h.1.attn.masked_bias"] = {.shape = {1}, .values = {1}};
  tensors_["lm_head.weight"] = tensors_["transformer.wte.weight"];
  const Weights weights = import(tensors_);
  EXPECT_EQ(weights, plain);
  for (const auto& [ours, theirs] : {std::pair{"embedding.word_embeddings.weight", "transformer.wte.weight"},
                                     {"decoder.final_layernorm.weight", "transformer.ln_f.weight"}}) {
    std::vector<float> want(tensors_.at(theirs).values.begin(), tensors_.at(theirs).values.end());
    want.resize(weights.at(ours).size());  // the table ends with rows of padding
    EXPECT_EQ(weights.at(ours), want);
  }
}

TEST_F(HfImporter, AMissingAnUnknownAndAMisshapenTensorAreNamed) {
  HfTensors other = tensors_;
  const std::string layers = "transformer.h.";
  other.erase(layers + "1.mlp.c_proj.bias");
  expect_refused(other, layers + "1.mlp.c_proj.bias");
  other = tensors_;
  other[layers + "2.ln_1.weight"] = other[layers + "1.ln_1.weight"];
  expect_refused(other, layers + "2.ln_1.weight");
  other = tensors_;
  std::vector<std::int64_t>& shape = other[layers + "0.mlp.c_fc.weight"].shape;
  std::swap(shape[0], shape[1]);
  expect_refused(other, layers + "0.mlp.c_fc.weight: expected shape [32, 16], got [16, 32]");
}

}  // namespace
}  // namespace megalith::test
