// --async-save: the checkpoints of a run that saves at once, written while the steps go on.
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <mutex>
#include <thread>

#include "tests/support/error_of.h"
#include "tests/support/faults.h"
#include "tests/thread_ranks/thread_communicator.h"
#include "tests/unit/train/training_support.h"

namespace megalith::test {
namespace {

namespace fs = std::filesystem;

std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

std::map<std::string, std::string> content_of(const std::string& folder) {
  std::map<std::string, std::string> content;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) content[fs::relative(entry.path(), folder)] = read_file(entry.path());
  }
  return content;
}

// Tensors of a run's checkpoints; the other files contain names of folders and flags.
std::map<std::string, std::string> tensors_of(const std::string& folder) {
  std::map<std::string, std::string> content = content_of(folder);
  std::erase_if(content, [](const auto& file) { return !file.first.ends_with(".safetensors"); });
  return content;
}

void run_step(Trainer& trainer, std::int64_t iteration) {
  const RunConfig& config = trainer.rank().config;
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < config.step_sequences() * 17; ++i)
    tokens.push_back(static_cast<std::int32_t>((i * 31 + iteration) % 200));
  trainer.step().train(
      {.iteration = iteration,
       .rates = {.main = 1e-2f},
       .first_samples = std::vector<std::int64_t>(static_cast<std::size_t>(config.microbatches), iteration),
       .tokens = tokens});
  trainer.step().read_result();
}

struct SavedLayout {
  const char* name;
  int ranks;
  Words flags;
};

class AsyncSaves : public testing::TestWithParam<SavedLayout> {};

// The first write of each rank waits until two more steps have changed all that is saved.
TEST_P(AsyncSaves, FoldersAreThoseOfASaveAtOnce) {
  const TestFolder scratch;
  const Options options = parse_flags(App::kTrain, tiny_flags() + GetParam().flags).options;
  const StopRequest stop;
  ThreadWorld world(GetParam().ranks, std::chrono::seconds(60));
  world.run([&](Communicator& group) {
    const std::unique_ptr<Communicator> writers = group.duplicate("checkpoint");
    Trainer trainer(prepare_run(options, group.rank(), group.size()), group, stop);
    Rank& rank = trainer.rank();
    std::promise<void> stepped;
    const std::shared_future<void> released = stepped.get_future().share();
    const FileObserver observer = [&](const FileOperation& operation) {
      if (operation.name == "write") released.wait();
    };
    AsyncSave async(rank, trainer.step(), *writers);
    const AbortOnUnwind guard(group);
    SaveRequest request{.directory = {}, .state = {}, .shards = {}, .ranks = &group};
    for (std::int64_t round = 1; round <= 2; ++round) {
      run_step(trainer, 3 * round);
      request.state.step = round;
      request.directory = scratch.path("plain");
      request.observer = nullptr;
      EXPECT_TRUE(save_training_checkpoint(rank, request).saved);
      request.directory = scratch.path("beside");
      request.observer = &observer;
      async.begin(request);
      for (const std::int64_t more : {1, 2}) run_step(trainer, 3 * round + more);
      if (round == 1) {
        EXPECT_FALSE(async.poll());
        stepped.set_value();
      }
      const SaveResult over = async.wait();
      EXPECT_TRUE(over.saved) << over.message;
      EXPECT_EQ(over.step, round);
      EXPECT_GT(async.copy_seconds(), 0);
      EXPECT_FALSE(async.pending());
    }
  });
  const auto plain = content_of(scratch.path("plain"));
  EXPECT_EQ(plain.size(), 2u * (static_cast<std::size_t>(GetParam().ranks) + 2) + 1);
  EXPECT_TRUE(plain == content_of(scratch.path("beside")));
  EXPECT_NE(plain.at("step_0000001/rank_0000_of_000" + std::to_string(GetParam().ranks) + ".safetensors"),
            plain.at("step_0000002/rank_0000_of_000" + std::to_string(GetParam().ranks) + ".safetensors"));
}

INSTANTIATE_TEST_SUITE_P(Layouts, AsyncSaves,
                         testing::Values(SavedLayout{"One", 1, {}}, SavedLayout{"Replicas", 2, {"--bf16"}},
                                         SavedLayout{"Sharded",
                                                     2,
                                                     {"--use-distributed-optimizer", "--overlap-grad-reduce",
                                                      "--overlap-param-gather", "--bf16", "--ddp-bucket-size", "5000"}},
                                         SavedLayout{"Stages", 4, stages(2) + tensor_ranks(2)}),
                         [](const testing::TestParamInfo<SavedLayout>& layout) {
                           return std::string(layout.param.name);
                         });

// Saves after each step, so that one is still under way when the next is due; each file operation is slow.
TEST(AsyncSave, ASecondSaveWaitsForTheFirst) {
  const TestFolder scratch;
  const Words flags = {"--save-interval", "1", "--hidden-dropout", "0.1", "--use-distributed-optimizer"};
  const RunResult plain = train({.flags = flags + Words{"--save", scratch.path("plain")}, .ranks = 2});
  std::mutex mutex;
  std::vector<std::string> paths;
  const FileObserver slow = [&](const FileOperation& operation) {
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    const std::lock_guard lock(mutex);
    paths.emplace_back(operation.path);
  };
  std::vector<std::int64_t> waited(2);
  const RunResult async =
      train({.flags = flags + Words{"--save", scratch.path("beside"), "--async-save"},
             .ranks = 2,
             .prepare =
                 [&](Trainer& trainer, int rank) {
                   trainer.checkpoints().observe(&slow);
                   EXPECT_EQ(trainer.checkpoints().staging_bytes(), trainer.plans().checkpoint_staging)
                       << "rank " << rank;
                   EXPECT_GT(trainer.checkpoints().staging_bytes(), 1000u);
                 },
             .finish = [&](Trainer& trainer,
                           int rank) { waited[static_cast<std::size_t>(rank)] = trainer.checkpoints().waited_for(); }});
  expect_same_run(plain, async);
  EXPECT_GT(waited[0] + waited[1], 0);
  EXPECT_EQ(tensors_of(scratch.path("plain")).size(), 12u);
  EXPECT_TRUE(tensors_of(scratch.path("plain")) == tensors_of(scratch.path("beside")));
  EXPECT_EQ(read_file(scratch.path("beside/LATEST")), "step_0000006\n");
  // No operation on the folder of a save comes after one on the folder of a later save.
  std::size_t last = 0;
  for (const std::string& path : paths) {
    const std::size_t at = path.find("/step_");
    if (at == std::string::npos) continue;
    const std::size_t of = std::stoul(path.substr(at + 6, 7));
    EXPECT_GE(of, last) << path;
    last = std::max(last, of);
  }
  EXPECT_EQ(last, 6u);
}

TEST(AsyncSave, AStoppedRunHasSavedAndGoesOnBitForBit) {
  const TestFolder scratch;
  const Words flags = {"--save",       scratch.path("c"), "--load", scratch.path("c"),
                       "--async-save", "--save-interval", "1"};
  const RunResult unbroken = train({.flags = {"--hidden-dropout", "0.1"}, .ranks = 2});
  for (const int stop : {3, 4}) {  // at a save, and between two
    const Words more = {"--hidden-dropout", "0.1", "--exit-interval", std::to_string(stop), "--save-interval", "3"};
    fs::remove_all(scratch.path("c"));
    EXPECT_EQ(train({.flags = flags + more, .ranks = 2}).code, ExitCode::kStoppedOnRequest);
    EXPECT_EQ(read_file(scratch.path("c/LATEST")), "step_000000" + std::to_string(stop) + "\n");
    const RunResult rest = train({.flags = flags + Words{"--hidden-dropout", "0.1"}, .ranks = 2});
    ASSERT_EQ(rest.losses.size(), static_cast<std::size_t>(6 - stop));
    for (std::size_t i = 0; i < rest.losses.size(); ++i) {
      EXPECT_EQ(rest.losses[i], unbroken.losses[i + static_cast<std::size_t>(stop)]);
      EXPECT_EQ(rest.grad_norms[i], unbroken.grad_norms[i + static_cast<std::size_t>(stop)]);
    }
    EXPECT_TRUE(rest.weights == unbroken.weights);
    EXPECT_EQ(read_file(scratch.path("c/LATEST")), "step_0000006\n");
  }
}

TEST(AsyncSave, AWriterThatFailsLosesItsCheckpointAndAtTheEndTheRun) {
  const auto run = [](const std::string& folder, const std::string& fault) {
    const Faults faults(fault);
    testing::internal::CaptureStderr();
    const RunResult result = train({.flags = {"--save", folder, "--save-interval", "2", "--async-save"}, .ranks = 2});
    EXPECT_EQ(faults_fired(), 1) << fault;
    return std::pair(result.code, testing::internal::GetCapturedStderr());
  };
  const TestFolder scratch;
  const auto [code, text] = run(scratch.path("first"), "save.shard.write:2:enospc");
  EXPECT_EQ(code, ExitCode::kOk);
  EXPECT_NE(text.find("warning: checkpoint of step 2 was not saved (1 failed in a row, 3 end the run): rank "),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("No space left on device (ENOSPC)"), std::string::npos) << text;
  EXPECT_NE(text.find("warning: 1 checkpoint could not be saved"), std::string::npos) << text;
  EXPECT_FALSE(fs::exists(scratch.path("first/step_0000002")));
  EXPECT_TRUE(fs::exists(scratch.path("first/step_0000004")));
  const auto [last_code, last_text] = run(scratch.path("last"), "save.state.sync:3:eio");
  EXPECT_EQ(last_code, ExitCode::kFileIo);
  EXPECT_NE(last_text.find(
                "warning: checkpoint of step 6 was not saved (1 failed in a row, 3 end the run): rank 0: cannot sync "),
            std::string::npos)
      << last_text;
  EXPECT_EQ(read_file(scratch.path("last/LATEST")), "step_0000004\n");
}

TEST(AsyncSave, MemoryThatRunsOutInAWriterEndsAllRanks) {
  for (const char* fault : {"async_save.copied:3:abort-alloc", "save.shard.write:5:abort-alloc",
                            "save.manifest.write:2:abort-alloc", "save.shard.create:5:abort-alloc"}) {
    const TestFolder scratch;
    const Faults faults(fault);
    EXPECT_THROW(
        train({.flags = {"--save", scratch.path("c"), "--save-interval", "2", "--async-save", "--train-iters", "40"},
               .ranks = 2}),
        std::bad_alloc)
        << fault;
    EXPECT_EQ(faults_fired(), 1) << fault;
  }
}

TEST(AsyncSave, ABudgetOfSkipsThatIsSpentLeavesNoSaveUnderWay) {
  const TestFolder scratch;
  error_of(ExitCode::kNumeric, [&] {
    train({.flags = {"--save", scratch.path("c"), "--save-interval", "1", "--async-save", "--lr", "1e30", "--clip-grad",
                     "0", "--train-iters", "40", "--max-skipped-steps", "0"},
           .ranks = 2});
  });
  for (const auto& entry : fs::directory_iterator(scratch.path("c")))
    EXPECT_EQ(entry.path().filename().string().find(".tmp"), std::string::npos) << entry.path();
  EXPECT_TRUE(fs::exists(scratch.path("c/LATEST")));
}

const Words kHazardRun = words(
    "--train-iters 3 --save-interval 1 --async-save --check-hazards --use-distributed-optimizer "
    "--overlap-grad-reduce --overlap-param-gather --ddp-bucket-size 1 --micro-batch-size 4");

TEST(AsyncSave, TheCopyHasNoHazard) {
  const TestFolder scratch;
  const RunResult result = train({.flags = kHazardRun + Words{"--save", scratch.path("c")}, .ranks = 2});
  EXPECT_EQ(result.hazards, 0);
  EXPECT_EQ(result.code, ExitCode::kOk);
}

// Leaves out each event wait, like Hazards.EverySuppressedWaitIsFound. On one rank, the run's waits are those of the
// copy and those of the host for results.
#if !defined(__SANITIZE_THREAD__)
TEST(AsyncSave, AnUpdateThatDoesNotWaitForTheCopyIsFound) {
  const TestFolder scratch;
  const Words flags = {
      "--train-iters",  "2", "--save-interval", "1", "--check-hazards", "--micro-batch-size", "8", "--save",
      scratch.path("c")};
  const std::int64_t plain = train({.flags = flags}).event_waits;
  const std::int64_t waits = train({.flags = flags + Words{"--async-save"}}).event_waits;
  ASSERT_GT(waits, plain);
  int found = 0;
  for (std::int64_t ordinal = 0; ordinal < waits; ++ordinal) {
    const Words more = {"--async-save", "--suppress-wait", std::to_string(ordinal)};
    found += train({.flags = flags + more}).hazards > 0 ? 1 : 0;
  }
  EXPECT_GT(found, plain);
}
#endif

// Consecutive failing saves of a run, synchronous or concurrent with it.
class FailingSaves : public testing::TestWithParam<bool> {
 protected:
  // Standard error, and the error that the run ends with.
  std::pair<std::string, std::string> run(const Words& flags, const std::string& fault) {
    const Words how = GetParam() ? Words{"--async-save"} : Words{};
    const Faults faults(fault);
    std::string error;
    testing::internal::CaptureStderr();
    try {
      train(
          {.flags = Words{"--save", scratch_.path("kept"), "--save-interval", "1", "--train-iters", "12"} + how + flags,
           .ranks = 2});
    } catch (const Error& failed) {
      EXPECT_EQ(failed.code(), ExitCode::kFileIo);
      error = failed.what();
    }
    return {testing::internal::GetCapturedStderr(), error};
  }
  static int count(const std::string& text, const std::string& part) {
    int found = 0;
    for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
    return found;
  }

  TestFolder scratch_;
};

TEST_P(FailingSaves, ThreeInARowEndTheRun) {
  const auto [reported, error] = run({}, "save.state.write:3+:enospc");
  EXPECT_NE(
      error.find("checkpoints that were not saved: expected fewer than 3 in a row (--max-failed-saves), got 3, so "
                 "the run ends after step "),
      std::string::npos)
      << error;
  EXPECT_NE(error.find("(last saved: step 2): rank 0: cannot write "), std::string::npos) << error;
  for (const char* each : {"step 3 was not saved (1 failed in a row, 3 end the run): rank 0: cannot write",
                           "step 4 was not saved (2 failed in a row, 3 end the run): rank 0: cannot write",
                           "step 5 was not saved (3 failed in a row, 3 end the run): rank 0: cannot write"}) {
    EXPECT_EQ(count(reported, each), 1) << reported;
  }
  EXPECT_EQ(count(reported, "step 6 was not saved"), 0) << reported;
}

TEST_P(FailingSaves, OneThatSucceedsStartsTheCountAgain) {
  const auto [reported, error] = run({"--max-failed-saves", "1"}, "save.state.write:13+:eio");
  EXPECT_EQ(error, "");
  const auto [once, ended] = run({"--max-failed-saves", "2"}, "save.state.write:2:eio");
  EXPECT_EQ(ended, "");
  EXPECT_EQ(count(once, "was not saved (1 failed in a row, 2 end the run)"), 1) << once;
}

TEST_P(FailingSaves, WithoutALimitTheRunGoesOn) {
  const auto [reported, error] = run({"--max-failed-saves", "0"}, "save.state.write:1+:eio");
  EXPECT_EQ(error, "");  // its last checkpoint is missing, which the exit code reports
  EXPECT_EQ(count(reported, "was not saved ("), 12) << reported;
  EXPECT_EQ(count(reported, "(12 failed in a row): "), 1) << reported;
}

INSTANTIATE_TEST_SUITE_P(How, FailingSaves, testing::Bool(),
                         [](const auto& which) { return which.param ? "Async" : "AtOnce"; });

}  // namespace
}  // namespace megalith::test
