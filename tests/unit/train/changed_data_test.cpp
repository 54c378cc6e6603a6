// Data that change during a run end it with the state of the preceding steps. A run that resumes with the old data
// gives the bits of an undisturbed run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <utility>

#include "core/data/indexed_dataset.h"
#include "tests/unit/train/training_support.h"

namespace megalith::test {
namespace {

namespace fs = std::filesystem;

void write_data(const std::string& prefix) {
  IndexedDatasetWriter writer(prefix, TokenType::kU16);
  for (std::int32_t document = 0; document < 60; ++document) {
    std::vector<std::int32_t> tokens;
    for (std::int32_t t = 0; t < 40; ++t) tokens.push_back((document * 31 + t * 7) % 251);
    writer.add_document(tokens);
  }
  writer.commit();
}

// Samples read, by the last checkpoint of a run; a failed evaluation counts.
std::string validation_samples(const std::string& save) {
  std::ifstream file(save + "/step_0000006/state.json");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::size_t at = text.find("consumed_validation_samples");
  EXPECT_NE(at, std::string::npos);
  return text.substr(at, text.find_first_of(",}", at) - at);
}

struct Change {
  std::string name;
  std::string file;     // under the run
  int at_forward = 0;   // call of rank 0's first segment, counted from 1; 0: in the save of step 3
  std::string problem;  // in the message
};

// One data set has weight 0, so that no sample finds its change; the run's own check does. A change of the other one is
// found by a rank that reads samples for the next step or for an evaluation.
class ChangedDataFiles : public testing::TestWithParam<Change> {};

TEST_P(ChangedDataFiles, EndTheRunWithTheStateBefore) {
  const Change& change = GetParam();
  const TestFolder scratch;
  write_data(scratch.path("d"));
  write_data(scratch.path("e"));
  const std::string file = scratch.path(change.file);
  fs::copy(file, scratch.path("before"));
  const Words flags = {"--mock-data=false",
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
                       "2"};
  const Words saving = {"--save", scratch.path("c"), "--load", scratch.path("c"), "--save-interval", "3"};
  const RunResult plain = train({.flags = flags + Words{"--save", scratch.path("p")}, .ranks = 2});
  const auto disturb = [&] { std::fstream(file, std::ios::binary | std::ios::in | std::ios::out).seekp(34) << "\x01"; };
  bool done = false;
  const FileObserver in_save = [&](const FileOperation& operation) {
    if (operation.name == "rename" && !std::exchange(done, true)) disturb();
  };
  try {
    train({.flags = flags + saving, .ranks = 2, .prepare = [&](Trainer& trainer, int rank) {
             if (rank != 0) return;
             if (change.at_forward == 0) trainer.checkpoints().observe(&in_save);
             trainer.rank().runner.hooks(0).add(HookPoint::kPreForward, [&, forwards = 0](const HookContext&) mutable {
               if (++forwards == change.at_forward) disturb();
             });
           }});
    FAIL() << "the run went on";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kFormat);
    EXPECT_THAT(error.what(),
                testing::AllOf(testing::HasSubstr(change.problem),
                               testing::EndsWith("; the run ends after step 4, which is valid and saved")));
  }
  EXPECT_TRUE(fs::exists(scratch.path("c/step_0000004")));
  fs::copy(scratch.path("before"), file, fs::copy_options::overwrite_existing);
  const RunResult resumed = train({.flags = flags + saving, .ranks = 2});
  ASSERT_EQ(resumed.losses.size(), 2u);
  EXPECT_EQ(resumed.losses.back(), plain.losses.back());
  EXPECT_TRUE(resumed.weights == plain.weights);
  EXPECT_EQ(validation_samples(scratch.path("c")), validation_samples(scratch.path("p")));
}

// Between the opening of the files and the first step.
TEST(ChangedData, BeforeTheFirstStepEndTheRun) {
  const TestFolder scratch;
  write_data(scratch.path("d"));
  const Words flags = {"--mock-data=false", "--data-path", scratch.path("d"), "--split", "1,1,0"};
  try {
    train({.flags = flags, .ranks = 2, .prepare = [&](Trainer&, int rank) {
             if (rank == 0) std::fstream(scratch.path("d.bin"), std::ios::binary | std::ios::in | std::ios::out) << 'x';
           }});
    FAIL() << "the run went on";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kFormat);
    EXPECT_THAT(error.what(), testing::EndsWith("; the run ends before the first step"));
  }
}

constexpr const char* kWrittenTo = ": expected the file that was opened, got one that was written to";
// Each step has two forwards on each rank, and so has each of the two parts of the evaluation after step 4.
INSTANTIATE_TEST_SUITE_P(Found, ChangedDataFiles,
                         testing::Values(Change{"BetweenSteps", "e.idx", 0, std::string("e.idx") + kWrittenTo},
                                         Change{"ByARankThatReads", "d.bin", 0, std::string("d.bin") + kWrittenTo},
                                         Change{"InAnEvaluation", "d.bin", 9, std::string("d.bin") + kWrittenTo}),
                         [](const auto& of) { return of.param.name; });

}  // namespace
}  // namespace megalith::test
