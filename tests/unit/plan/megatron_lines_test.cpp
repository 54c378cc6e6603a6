// Real command lines of Megatron-LM, unedited but for paths of data and tokenizer: a line starts, or the message names
// only features that are not built, and the line without them starts.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <regex>

#include "apps/checkpoint/run_tokenizer.h"
#include "apps/flags/complete_options.h"
#include "apps/flags/flags.h"
#include "apps/forecast/forecast.h"
#include "core/base/error.h"
#include "tests/support/matchers.h"
#include "tests/support/megatron_lines.h"

namespace megalith::test {
namespace {

// "starts", or "exit CODE: MESSAGE". A line starts if its flags, the complete options and the plan of a step succeed.
std::string start_of(const std::vector<std::string>& words, int world) {
  try {
    Options options = parse_flags(App::kTrain, words).options;
    complete_options(options, tokenizer_of(options), world);
    EXPECT_FALSE(make_forecast(options, world, {.one_of_equal = true, .max_recorded = 512}).stages.empty());
  } catch (const Error& error) {
    return fmt::format("exit {}: {}", static_cast<int>(error.code()), error.what());
  }
  return "starts";
}

// Without the flags that a message names; a tokenizer of another type is one that exists here.
std::vector<std::string> without_features(const std::vector<std::string>& words, const std::string& message) {
  static const std::regex kFlag("--[a-zA-Z0-9-]+( [A-Za-z0-9]+)?");
  std::vector<std::string> rest;
  for (std::size_t i = 0; i < words.size();) {
    std::size_t end = i + 1;
    while (end < words.size() && !words[end].starts_with("--")) ++end;
    bool is_feature = false;
    for (std::sregex_iterator at(message.begin(), message.end(), kFlag), none; at != none; ++at)
      is_feature |= at->str() == words[i] || (end == i + 2 && at->str() == words[i] + " " + words[i + 1]);
    if (words[i] == "--tokenizer-type" && is_feature) {
      for (const char* word : {"--tokenizer-type", "HuggingFaceTokenizer"}) rest.emplace_back(word);
    } else if (!is_feature) {
      rest.insert(rest.end(), words.begin() + static_cast<std::ptrdiff_t>(i),
                  words.begin() + static_cast<std::ptrdiff_t>(end));
    }
    i = end;
  }
  return rest;
}

class MegatronLines : public ::testing::TestWithParam<std::string_view> {};

TEST_P(MegatronLines, StartsOrNamesFeatures) {
  const RealLine line = real_line(GetParam());
  const std::vector<std::string> words = runnable(line);
  const std::string outcome = start_of(words, line.world);
  std::printf("%s: %s\n", std::string(GetParam()).c_str(), outcome.c_str());
  if (outcome == "starts") return;
  if (outcome.find("libsentencepiece-dev") != std::string::npos) GTEST_SKIP() << "built without SentencePiece";
  EXPECT_TRUE(outcome.starts_with("exit 2: features of Megatron-LM that are not built: ") ||
              outcome.find(": a feature of Megatron-LM that is not built, ") != std::string::npos)
      << outcome;
  EXPECT_EQ(start_of(without_features(words, outcome), line.world), "starts");
}

INSTANTIATE_TEST_SUITE_P(All, MegatronLines, ::testing::ValuesIn(kMegatronLines),
                         [](const auto& line) { return std::string(line.param); });

}  // namespace
}  // namespace megalith::test
