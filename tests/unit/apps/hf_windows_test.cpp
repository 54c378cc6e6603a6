// Sliding windows in config.json of transformers: where they are, what is written, what is refused.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/hf/hf_config.h"
#include "core/model/config.h"
#include "tests/unit/apps/flags_support.h"
#include "tests/unit/checkpoint/expect_error.h"

namespace megalith {
namespace {

using nlohmann::json;
using Windows = std::vector<std::int64_t>;

// A file of the family, of four layers.
json file_of(const std::string& family) {
  json file = json::parse(test::read_file(MEGALITH_SOURCE_DIR "/tests/hf/golden/" + family + "/config.json"));
  file["num_hidden_layers"] = 4;
  for (const char* key : {"sliding_window", "use_sliding_window", "max_window_layers", "layer_types"}) file.erase(key);
  return file;
}
json with(json file, const json& values) {
  file.update(values);
  return file;
}
ModelConfig model_of(const json& file) { return parse_hf_config(file.dump(), "config.json"); }
Windows windows_of(const json& file) { return attention_windows(model_of(file)); }

// Masks of transformers hide keys at a distance of sliding_window or more, which leaves as many, its own included.
TEST(HfWindows, OfMistralAndMixtralAreInAllLayers) {
  for (const char* family : {"mistral", "mixtral"}) {
    SCOPED_TRACE(family);
    const json file = file_of(family);
    EXPECT_EQ(model_of(with(file, {{"sliding_window", 5}})).window_size, (Windows{4, 0}));
    EXPECT_EQ(windows_of(with(file, {{"sliding_window", 5}})), (Windows{5, 5, 5, 5}));
    EXPECT_EQ(windows_of(with(file, {{"sliding_window", 4096}})), Windows(4, 4096));  // of 16 positions
    EXPECT_EQ(windows_of(with(file, {{"sliding_window", nullptr}})), Windows(4, 0));
  }
  EXPECT_EQ(windows_of(file_of("mistral")), Windows(4, 4096));
  EXPECT_EQ(windows_of(file_of("mixtral")), Windows(4, 0));
}

TEST(HfWindows, OfQwenHaveASwitchAndAFirstLayer) {
  for (const char* family : {"qwen2", "qwen3"}) {
    SCOPED_TRACE(family);
    const json off = file_of(family), on = with(off, {{"use_sliding_window", true}, {"sliding_window", 5}});
    EXPECT_EQ(windows_of(with(off, {{"sliding_window", 5}, {"max_window_layers", 1}})), Windows(4, 0));
    EXPECT_EQ(windows_of(on), Windows(4, 0));  // from layer 28 on
    EXPECT_EQ(windows_of(with(on, {{"max_window_layers", 4}})), Windows(4, 0));
    EXPECT_EQ(windows_of(with(on, {{"max_window_layers", 1}})), (Windows{0, 5, 5, 5}));
    EXPECT_EQ(model_of(with(on, {{"max_window_layers", 1}})).window_attn_skip_freq, "[0]+[1]*3");
    EXPECT_EQ(model_of(with(on, {{"max_window_layers", 0}})).window_attn_skip_freq, "");
    EXPECT_EQ(windows_of(with(on, {{"max_window_layers", 0}, {"sliding_window", nullptr}})), Windows(4, 0));
    const json types = {"sliding_attention", "full_attention", "sliding_attention", "full_attention"};
    EXPECT_EQ(windows_of(with(on, {{"layer_types", types}})), (Windows{5, 0, 5, 0}));
  }
}

TEST(HfWindows, WhatIsWrittenReadsBack) {
  const auto written = [](const json& file) {
    const ModelConfig model = model_of(file);
    const json text = json::parse(hf_config_text(model, {}));
    EXPECT_EQ(attention_windows(model_of(text)), attention_windows(model));
    EXPECT_EQ(text.at("model_type"), file.at("model_type"));
    return text;
  };
  for (const char* family : {"mistral", "mixtral"})
    EXPECT_EQ(written(with(file_of(family), {{"sliding_window", 5}})).at("sliding_window"), 5);
  for (const char* family : {"qwen2", "qwen3"}) {
    const json on = with(file_of(family), {{"use_sliding_window", true}, {"sliding_window", 5}});
    const json text = written(with(on, {{"max_window_layers", 2}}));
    EXPECT_EQ(text.at("sliding_window"), 5);
    EXPECT_EQ(text.at("max_window_layers"), 2);
    EXPECT_EQ(text.at("layer_types"),
              json({"full_attention", "full_attention", "sliding_attention", "sliding_attention"}));
    written(with(on, {{"layer_types", {"full_attention", "sliding_attention", "full_attention", "full_attention"}}}));
    EXPECT_FALSE(written(on).at("use_sliding_window"));
  }
  // A Llama with windows is a Mistral.
  ModelConfig llama = model_of(file_of("llama"));
  llama.window_size = {4, 0};
  EXPECT_EQ(hf_family(llama), HfFamily::kMistral);
  EXPECT_EQ(json::parse(hf_config_text(llama, {})).at("sliding_window"), 5);
  llama.window_size = {-1, 0};
  EXPECT_EQ(hf_family(llama), HfFamily::kLlama);
}

TEST(HfWindows, RefusesFilesThatContradictThemselves) {
  const auto expect = [](const json& file, const std::string& message) {
    EXPECT_ERROR(ExitCode::kFormat, "config.json: " + message, model_of(file));
  };
  const json on = with(file_of("qwen2"), {{"use_sliding_window", true}, {"sliding_window", 5}});
  const json slides = {"sliding_attention", "sliding_attention", "sliding_attention", "sliding_attention"};
  expect(with(file_of("qwen2"), {{"layer_types", slides}}),
         "layer_types: expected full_attention in all layers, got 'sliding_attention'");
  expect(with(on, {{"layer_types", {"full_attention"}}}),
         "layer_types: expected the 4 layers of num_hidden_layers, got 1");
  expect(with(on, {{"layer_types", {"full_attention", 1, 2, 3}}}),
         "layer_types: expected full_attention or sliding_attention, got 1");
  expect(with(on, {{"max_window_layers", -1}}), "max_window_layers: expected an integer from 0");
  expect(with(on, {{"sliding_window", 0}}), "sliding_window: expected an integer from 1");
  expect(with(file_of("mistral"), {{"sliding_window", 5}, {"layer_types", json(4, "full_attention")}}),
         "layer_types: expected ");
  expect(with(file_of("qwen3_moe"), {{"use_sliding_window", true}}), "use_sliding_window: expected false: versions of");
}

TEST(HfWindows, NamesTheFlagsThatNoFamilyHas) {
  const auto expect = [](const std::string& family, const std::string& skips, const std::string& message) {
    ModelConfig model = model_of(file_of(family));
    model.window_size = {4, 0};
    model.window_attn_skip_freq = skips;
    EXPECT_ERROR(ExitCode::kUsage, message, hf_family(model));
  };
  ModelConfig gpt2 = parse_hf_config(test::read_file(MEGALITH_SOURCE_DIR "/tests/hf/golden/gpt2/config.json"), "");
  gpt2.window_size = {4, 0};
  EXPECT_ERROR(ExitCode::kUsage, "got --window-size; transformers has no such", hf_family(gpt2));
  expect("llama", "2", "got --window-attn-skip-freq with neither --qk-layernorm nor --add-qkv-bias; transformers");
  expect("llama31", "", "got --window-size with biases of the projection; transformers");
  expect("mistral", "2", "--hf-model-type mistral: expected a Mistral, got --window-attn-skip-freq; leave");
  expect("mixtral", "2", "got --window-attn-skip-freq; transformers");
  expect("qwen3_moe", "", "got --window-size with --qk-layernorm; transformers");
}

}  // namespace
}  // namespace megalith
