// convert compared with transformers by tests/hf/check_convert.py. Skipped if ${PYTHON:-python3} has no transformers.
#include <gtest/gtest.h>

#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "tests/hf/python.h"

namespace megalith::test {
namespace {

TEST(HfConvert, ModelsOfTransformersComeBackBitForBit) {
  if (const std::string reason = missing_transformers(); !reason.empty()) GTEST_SKIP() << reason;
  const std::string folder = testing::TempDir() + "/hf_convert_" + std::to_string(::getpid());
  const std::string command =
      python() + " " MEGALITH_SOURCE_DIR "/tests/hf/check_convert.py " MEGALITH_BIN_DIR "/convert '" + folder + "'";
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace megalith::test
