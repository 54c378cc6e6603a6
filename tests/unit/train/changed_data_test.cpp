// Data that change under a run end it with the state of the steps before, and a run that goes on from there with the
// old data gives the bits of one that was never disturbed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <utility>

#include "core/data/indexed_dataset.h"
#include "tests/unit/train/training_support.h"

namespace megalith {
namespace {

namespace fs = std::filesystem;
using test::operator+;
using Flags = std::vector<std::string>;

void write_data(const std::string& prefix) {
  IndexedDatasetWriter writer(prefix, TokenType::kU16);
  for (std::int32_t document = 0; document < 60; ++document) {
    std::vector<std::int32_t> tokens;
    for (std::int32_t t = 0; t < 40; ++t) tokens.push_back((document * 31 + t * 7) % 251);
    writer.add_document(tokens);
  }
  writer.commit();
}

// The data set that changes has weight 0, so that no sample of a step finds it, and the run's own check does.
TEST(ChangedData, EndTheRunWithTheStateBefore) {
  const test::ScratchDirectory scratch;
  write_data(scratch.path("d"));
  write_data(scratch.path("e"));
  fs::copy(scratch.path("e.idx"), scratch.path("before"));
  const Flags flags = {"--mock-data=false",
                       "--data-path",
                       "1",
                       scratch.path("d"),
                       "0",
                       scratch.path("e"),
                       "--split",
                       "1,1,0",
                       "--eval-interval",
                       "4",
                       "--eval-iters",
                       "1"};
  const Flags saving = {"--save", scratch.path("c"), "--load", scratch.path("c"), "--save-interval", "3"};
  const test::RunResult plain = test::train({.flags = flags, .ranks = 2});
  bool done = false;
  const FileObserver disturb = [&](const FileOperation& operation) {  // in the save of step 3
    if (operation.name != "rename" || std::exchange(done, true)) return;
    std::fstream(scratch.path("e.idx"), std::ios::binary | std::ios::in | std::ios::out).seekp(34) << "\x01";
  };
  try {
    test::train({.flags = flags + saving, .ranks = 2, .prepare = [&](Trainer& trainer, int rank) {
                   if (rank == 0) trainer.observe_saves(&disturb);
                 }});
    FAIL() << "the run went on";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kFormat);
    EXPECT_THAT(
        error.what(),
        testing::AllOf(testing::HasSubstr("e.idx: expected the file that was opened, got one that was written to"),
                       testing::EndsWith("; the run ends after step 4, which is right and saved")));
  }
  EXPECT_TRUE(fs::exists(scratch.path("c/step_0000004")));
  fs::copy(scratch.path("before"), scratch.path("e.idx"), fs::copy_options::overwrite_existing);
  const test::RunResult resumed = test::train({.flags = flags + saving, .ranks = 2});
  ASSERT_EQ(resumed.losses.size(), 2u);
  EXPECT_EQ(resumed.losses.back(), plain.losses.back());
  EXPECT_TRUE(resumed.weights == plain.weights);
}

}  // namespace
}  // namespace megalith
