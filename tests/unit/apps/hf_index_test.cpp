// The index of transformers: what it says, what is refused.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/hf/hf_files.h"
#include "tests/unit/checkpoint/expect_error.h"

namespace megalith {
namespace {

using nlohmann::json;

TEST(HfIndex, ReadsAndWrites) {
  const std::map<std::string, std::string> files = {{"a.weight", "model-00001-of-00002.safetensors"},
                                                    {"b.weight", "model-00002-of-00002.safetensors"}};
  EXPECT_EQ(parse_hf_index(hf_index_text(files, 24), "index"), files);
  EXPECT_EQ(json::parse(hf_index_text(files, 24)).at("metadata").at("total_size"), 24);
  EXPECT_EQ(parse_hf_index(R"({"weight_map": {"a": "b.safetensors"}})", "index").at("a"), "b.safetensors");
}

TEST(HfIndex, RefusesHostileText) {
  const auto expect = [](const std::string& text, const std::string& message) {
    EXPECT_ERROR(ExitCode::kFormat, message, parse_hf_index(text, "index"));
  };
  const auto file = [](const json& name) { return json{{"weight_map", {{"a", name}}}}.dump(); };
  const std::string place = "index: weight_map: 'a': expected the name of a .safetensors file next to the index, got ";
  expect(file("../secret.safetensors"), place + "'../secret.safetensors'");
  expect(file("/etc/x.safetensors"), place);
  expect(file(".safetensors"), place);
  expect(file(".hidden.safetensors"), place);
  expect(file("pytorch_model.bin"), place + "'pytorch_model.bin'");
  expect(file(""), place);
  expect(file(std::string("model\0.safetensors", 18)), place + "'model\\x00.safetensors'");
  expect(file("a\nb.safetensors"), place + "'a\\x0ab.safetensors'");
  expect(file(3), "index: weight_map: 'a': expected a text, got 3");
  expect(file(std::string(300, 'x')), "index: weight_map: 'a': expected a text of at most 255 bytes");
  expect("{}", "index: expected key weight_map, got none");
  expect(R"({"weight_map": []})", "index: weight_map: expected an object, got array");
  expect(R"({"weight_map": {}})", "index: weight_map: expected 1 to 1000000 tensors, got 0");
  expect(R"({"weight_map": {"": "a.safetensors"}})", "index: weight_map: expected names of 1 to 1024 bytes");
  expect(R"({"weight_map": {"a": "b.safetensors"}, "more": 1})", "index: expected known keys only, got 'more'");
  expect(R"({"metadata": {"total_size": -1}, "weight_map": {"a": "b.safetensors"}})", "index: total_size: expected");
  expect(R"({"metadata": {"total_size": "x"}, "weight_map": {"a": "b.safetensors"}})",
         "index: total_size: expected a number of bytes, got string");
  expect(R"({"metadata": 3, "weight_map": {"a": "b.safetensors"}})", "index: metadata: expected an object");
  expect(json{{"weight_map", {{std::string(1025, 'x'), "a.safetensors"}}}}.dump(),
         "index: weight_map: expected names of 1 to 1024 bytes");
  json many = json::object();
  for (int i = 0; i < 10'000; ++i) many["a" + std::to_string(i)] = std::to_string(i) + ".safetensors";
  EXPECT_EQ(parse_hf_index(json{{"weight_map", many}}.dump(), "index").size(), 10'000u);
  many["b"] = "b.safetensors";
  expect(json{{"weight_map", many}}.dump(), "index: weight_map: expected at most 10000 files, got 10001");
}

}  // namespace
}  // namespace megalith
