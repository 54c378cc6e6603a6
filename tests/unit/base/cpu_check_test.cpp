#include "core/base/machine/cpu_check.h"

#include <gtest/gtest.h>

#include <string>

namespace megalith {
namespace {

TEST(CpuCheck, AcceptsAProcessorThatHasEverything) {
  const CpuFeature features[] = {{"avx2", true}, {"fma", true}};
  char text[64] = "untouched";
  EXPECT_FALSE(describe_missing_cpu_features(features, 2, text, sizeof(text)));
  EXPECT_STREQ(text, "untouched");
}

TEST(CpuCheck, NamesEveryMissingFeatureAndNoOther) {
  const CpuFeature features[] = {{"avx2", false}, {"bmi2", true}, {"fma", false}};
  char text[256];
  ASSERT_TRUE(describe_missing_cpu_features(features, 3, text, sizeof(text)));
  const std::string message = text;
  EXPECT_NE(message.find("x86-64-v3"), std::string::npos) << message;
  EXPECT_NE(message.find("without avx2 fma;"), std::string::npos) << message;
  EXPECT_EQ(message.find("bmi2"), std::string::npos) << message;
}

TEST(CpuCheck, CutsTheMessageToTheBuffer) {
  const CpuFeature features[] = {{"avx2", false}};
  char text[16];
  ASSERT_TRUE(describe_missing_cpu_features(features, 1, text, sizeof(text)));
  EXPECT_EQ(std::string(text), "processor: expe");
}

TEST(CpuCheck, ReturnsOnTheMachineThatRunsTheTests) {
  EXPECT_EXIT((require_cpu_baseline(), std::exit(0)), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace megalith
