// What the tests of flags share.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "apps/flags/flags.h"
#include "core/base/error.h"
#include "tests/support/test_folder.h"

namespace megalith::test {

// Flags with which `train` is content, then `more`.
inline std::vector<std::string> with_small_run(const std::vector<std::string>& more) {
  std::vector<std::string> arguments{"--num-layers", "2",     "--hidden-size", "64", "--num-attention-heads", "4",
                                     "--lr",         "0.001", "--seq-length",  "32", "--train-iters",         "100",
                                     "--mock-data"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

// "exit CODE: MESSAGE", or "valid".
inline std::string outcome(App app, const std::vector<std::string>& arguments) {
  try {
    parse_flags(app, arguments);
  } catch (const Error& error) {
    return "exit " + std::to_string(static_cast<int>(error.code())) + ": " + error.what();
  }
  return "valid";
}

inline std::string train_outcome(const std::vector<std::string>& more) {
  return outcome(App::kTrain, with_small_run(more));
}

inline Options train_options(const std::vector<std::string>& more) {
  return parse_flags(App::kTrain, with_small_run(more)).options;
}

inline std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in) << path;
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// Runs each test in a fresh folder, so that files have short names in messages.
class InFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    before_ = std::filesystem::current_path();
    std::filesystem::current_path(folder_.path());
  }
  void TearDown() override { std::filesystem::current_path(before_); }
  static void write(const std::string& path, const std::string& text) {
    std::ofstream out(path, std::ios::binary);
    out << text;
    ASSERT_TRUE(out.flush());
  }

 private:
  std::filesystem::path before_;
  TestFolder folder_;
};

}  // namespace megalith::test
