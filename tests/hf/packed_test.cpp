// Fine-tuning on packs compared with transformers by tests/hf/check_packed.py. Skipped if ${PYTHON:-python3} has no
// transformers.
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/hf/python.h"
#include "tests/support/test_folder.h"

namespace megalith::test {
namespace {

TEST(HfPacked, TwentyStepsAreThoseOfTransformers) {
  if (const std::string reason = missing_transformers(); !reason.empty()) GTEST_SKIP() << reason;
  const TestFolder folder;
  const std::string command =
      python() + " " MEGALITH_SOURCE_DIR "/tests/hf/check_packed.py " MEGALITH_BIN_DIR " '" + (folder / "work") + "'";
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
}

}  // namespace
}  // namespace megalith::test
