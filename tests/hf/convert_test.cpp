// convert against transformers itself: tests/hf/check_convert.py. Skipped where ${PYTHON:-python3} has none.
#include <gtest/gtest.h>

#include <unistd.h>

#include <cstdlib>
#include <filesystem>

namespace megalith::test {
namespace {

TEST(HfConvert, ModelsOfTransformersComeBackBitForBit) {
  const char* variable = std::getenv("PYTHON");
  const std::string python = variable != nullptr ? variable : "python3";
  if (std::system(
          (python +
           " -c 'import torch, transformers as t; assert int(t.__version__.split(\".\")[0]) > 4' >/dev/null 2>&1")
              .c_str()) != 0)
    GTEST_SKIP() << python << " has no torch and transformers 5; PYTHON names another interpreter";
  const std::string folder = testing::TempDir() + "/hf_convert_" + std::to_string(::getpid());
  const std::string command =
      python + " " MEGALITH_SOURCE_DIR "/tests/hf/check_convert.py " MEGALITH_BIN_DIR "/convert '" + folder + "'";
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace megalith::test
