// model.safetensors and an index in one folder: which is read, and where they disagree.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "core/hf/hf_config.h"
#include "core/hf/hf_files.h"
#include "tests/support/matchers.h"
#include "tests/unit/apps/flags_support.h"
#include "tests/unit/apps/hf_folder.h"
#include "tests/unit/checkpoint/expect_error.h"

namespace megalith {
namespace {

class HfFileAndIndex : public test::InFolder {};

TEST_F(HfFileAndIndex, AFileThatIsNextToItIsReportedOrRefused) {
  const ModelConfig model =
      parse_hf_config(test::read_file(MEGALITH_SOURCE_DIR "/tests/hf/golden/llama/config.json"), "config.json");
  std::filesystem::create_directory("hf");
  test::write_safetensors("hf/model.safetensors", test::tensors_of(model, "BF16"));
  const HfFolder alone("hf", HfFamily::kLlama);
  std::map<std::string, std::string> files;
  for (const auto& [name, tensor] : alone.tensors()) files[name] = "model.safetensors";
  const auto reported = [&] {
    std::ofstream("hf/model.safetensors.index.json") << hf_index_text(files, 1);
    testing::internal::CaptureStderr();
    const HfFolder folder("hf", HfFamily::kLlama);
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(reported(), "");
  files.begin()->second = "model-00001-of-00002.safetensors";
  EXPECT_THAT(reported(),
              HasSubstr("hf: model.safetensors is read, and not the 1 file that model.safetensors.index.json"));
  const auto refused = [&](const std::string& got) {
    std::ofstream("hf/model.safetensors.index.json") << hf_index_text(files, 1);
    EXPECT_ERROR(ExitCode::kFormat,
                 "hf: model.safetensors and model.safetensors.index.json: expected the same tensors in both, got " +
                     got + "; remove the one that does not belong to config.json",
                 HfFolder("hf", HfFamily::kLlama));
  };
  files["other"] = "model.safetensors";
  refused("'other' in the index alone");
  files.erase("other");
  files.erase("model.norm.weight");
  refused("'model.norm.weight' in the file alone");
}

}  // namespace
}  // namespace megalith
