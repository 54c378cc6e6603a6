// Frequencies of RoPE and the factor of cosines and sines, from config.json on, compared with ROPE_INIT_FUNCTIONS of
// transformers. tests/hf/make_rope.py wrote the file.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "core/hf/hf_config.h"
#include "core/model/config.h"

namespace megalith::test {
namespace {

using nlohmann::json;

std::vector<json> rope_cases() {
  return json::parse(std::ifstream(MEGALITH_SOURCE_DIR "/tests/hf/rope_frequencies.json")).at("cases");
}

json golden_text(const std::string& family) {
  return json::parse(std::ifstream(MEGALITH_SOURCE_DIR "/tests/hf/golden/" + family + "/config.json"));
}

TEST(HfRope, HasTheFrequenciesOfTransformers) {
  const std::vector<json> cases = rope_cases();
  EXPECT_EQ(cases.size(), 40u);
  double worst_fp32 = 0, worst_fp64 = 0, worst_factor = 0;
  for (const json& one : cases) {
    SCOPED_TRACE(one.at("config").at("rope_parameters").dump());
    const ModelConfig model = parse_hf_config(one.at("config").dump(), "config.json");
    const std::int64_t pairs = model.rotary_dim() / 2;
    const RopeFrequencies ours = rope_frequencies(model.rotary_base, pairs, model.rotary_scaling());
    ASSERT_EQ(one.at("fp64").size(), static_cast<std::size_t>(pairs));
    for (int i = 0; i < pairs; ++i) {
      const double fp32 = one.at("fp32")[static_cast<std::size_t>(i)];
      const double fp64 = one.at("fp64")[static_cast<std::size_t>(i)];
      worst_fp32 = std::max(worst_fp32, std::abs(ours[i] - fp32));
      worst_fp64 = std::max(worst_fp64, std::abs(ours[i] / fp64 - 1));
      EXPECT_NEAR(ours[i], fp32, 1e-7) << i;
      EXPECT_NEAR(ours[i] / fp64, 1, 1e-13) << i;
    }
    const double factor = one.at("attention_factor");
    worst_factor = std::max(worst_factor, std::abs(ours.attention_factor / factor - 1));
    EXPECT_NEAR(ours.attention_factor / factor, 1, 1e-15);
  }
  RecordProperty("fp32", std::to_string(worst_fp32 * 1e9) + "e-9");
  RecordProperty("fp64", std::to_string(worst_fp64 * 1e15) + "e-15");
  RecordProperty("factor", std::to_string(worst_factor * 1e15) + "e-15");
}

// What convert writes gives the same frequencies again, in both objects.
TEST(HfRope, ComeBackByConfigJson) {
  std::set<std::string> types;
  for (const json& one : rope_cases()) {
    const ModelConfig model = parse_hf_config(one.at("config").dump(), "config.json");
    const json written = json::parse(hf_config_text(model, {}));
    SCOPED_TRACE(written.at("rope_parameters").dump());
    types.insert(written.at("rope_parameters").at("rope_type"));
    const ModelConfig back = parse_hf_config(written.dump(), "config.json");
    EXPECT_EQ(back.rotary_scaling(), model.rotary_scaling());
    EXPECT_EQ(back.rotary_base, model.rotary_base);
  }
  EXPECT_EQ(types, (std::set<std::string>{"default", "linear", "llama3", "yarn"}));  // linear by 1 is default
}

// As Qwen2.5 and Qwen3 publish YaRN for longer texts.
TEST(HfRope, ReadsYarn) {
  const json published = {{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32768}};
  json text = golden_text("qwen3");
  text.erase("rope_parameters");
  text.update({{"rope_theta", 1e6}, {"rope_scaling", published}});
  const ModelConfig model = parse_hf_config(text.dump(), "config.json");
  EXPECT_EQ(model.rotary_scaling(),
            (RopeScaling{.kind = RopeScalingKind::kYarn, .factor = 4, .original_max_position_embeddings = 32768}));
  EXPECT_EQ(model.rotary_base, 1e6);
  EXPECT_FALSE(model.use_rope_scaling);
  const json written = json::parse(hf_config_text(model, {}));
  EXPECT_EQ(written.at("rope_parameters"), json::parse(R"({"rope_type": "yarn", "rope_theta": 1000000.0, "factor": 4.0,
      "original_max_position_embeddings": 32768, "beta_fast": 32.0, "beta_slow": 1.0})"));
}

// Transformers takes mscale only together with mscale_all_dim, Megatron-LM each.
TEST(HfRope, WritesYarnsFactorWhereTransformersHasAnother) {
  ModelConfig model = parse_hf_config(golden_text("llama_yarn").dump(), "config.json");
  model.yarn.mscale = 2;
  json written = json::parse(hf_config_text(model, {})).at("rope_parameters");
  EXPECT_NEAR(written.at("attention_factor"), 1 + 0.2 * std::log(4.0), 1e-15);
  EXPECT_FALSE(written.contains("mscale"));
  model.yarn.mscale_all_dim = 0.5;
  written = json::parse(hf_config_text(model, {})).at("rope_parameters");
  EXPECT_FALSE(written.contains("attention_factor"));
  EXPECT_EQ(written.at("mscale"), 2.0);
  EXPECT_EQ(written.at("mscale_all_dim"), 0.5);
}

}  // namespace
}  // namespace megalith::test
