// Saving on a dedicated thread: the files, messages and safety of save_checkpoint().
#include <gtest/gtest.h>

#include <future>
#include <map>
#include <mutex>

#include "core/base/files/fault.h"
#include "parallel/checkpoint/background_save.h"
#include "tests/unit/parallel/checkpoint_support.h"

namespace megalith {
namespace {

namespace fs = std::filesystem;

// Every file below a folder.
std::map<std::string, std::string> content_of(const std::string& folder) {
  std::map<std::string, std::string> content;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) content[fs::relative(entry.path(), folder)] = read_bytes(entry.path());
  }
  return content;
}

TEST(BackgroundSave, FilesAndResultsAreThoseOfSaveCheckpoint) {
  const TestFolder folder;
  std::mutex mutex;
  ThreadRanks(3).run([&](Communicator& ranks) {
    BackgroundSave background;
    for (const std::int64_t step : {1, 2, 3}) {
      const SaveResult plain = save_shared(ranks, folder.path("plain"), step, 2);
      const SaveResult async = save_async(background, ranks, folder.path("beside"), step, 2);
      const std::lock_guard lock(mutex);
      EXPECT_TRUE(async.saved) << async.message;
      EXPECT_EQ(async.message, plain.message);
      EXPECT_EQ(async.bytes, plain.bytes);
      EXPECT_EQ(fs::path(async.path).filename(), fs::path(plain.path).filename());
    }
  });
  EXPECT_EQ(names_in(folder.path("beside")), (std::vector<std::string>{"LATEST", "step_0000002", "step_0000003"}));
  EXPECT_TRUE(content_of(folder.path("plain")) == content_of(folder.path("beside")));
}

TEST(BackgroundSave, BeginsWhenTheDataIsThereAndTheCallerGoesOn) {
  const TestFolder folder;
  ShardList shards = whole_tensors(test_model(5));
  std::promise<void> ready;
  std::vector<std::string> operations;
  const FileObserver observer = [&](const FileOperation& operation) { operations.emplace_back(operation.name); };
  BackgroundSave background;
  EXPECT_FALSE(background.pending());
  EXPECT_FALSE(background.poll());
  background.begin(
      {.directory = folder.path("save"), .state = state_at(5), .shards = shards.get(), .observer = &observer},
      [&] { ready.get_future().wait(); });
  EXPECT_TRUE(background.pending());
  EXPECT_FALSE(background.poll());
  EXPECT_THROW(background.begin({.directory = folder.path("save")}, [] {}), Error);
  EXPECT_FALSE(fs::exists(folder.path("save")));
  ready.set_value();
  EXPECT_TRUE(background.wait().saved);
  EXPECT_FALSE(background.pending());
  EXPECT_GT(operations.size(), 10u);
  EXPECT_THROW(background.wait(), Error);
  EXPECT_EQ(load_alone(folder.path("save")), 5);
}

TEST(BackgroundSave, APendingSaveIsCommittedAtTheEnd) {
  const TestFolder folder;
  ThreadRanks(2).run([&](Communicator& ranks) {
    const ShardList all = whole_tensors(test_model(7));
    BackgroundSave background;
    background.begin(
        {.directory = folder.path("save"), .state = state_at(7), .shards = shards_of(all, ranks), .ranks = &ranks},
        [] {});
  });
  EXPECT_EQ(load_alone(folder.path("save")), 7);
}

TEST(BackgroundSave, AWriterThatFailsOnOneRankFailsTheSaveOnAll) {
  for (const std::string fault : {"save.shard.write:1:eio", "save.shard.sync:2:enospc", "save.state.write:1:enospc",
                                  "save.commit.rename:1:eio", "save.temporary.mkdir:1:eio"}) {
    const TestFolder folder;
    ThreadRanks(2).run([&](Communicator& ranks) { EXPECT_TRUE(save_shared(ranks, folder.path("save"), 1).saved); });
    std::mutex mutex;
    std::set<std::string> messages;
    {
      const Faults faults(fault);
      ThreadRanks(2).run([&](Communicator& ranks) {
        BackgroundSave background;
        const SaveResult result = save_async(background, ranks, folder.path("save"), 2);
        const std::lock_guard lock(mutex);
        EXPECT_FALSE(result.saved) << fault;
        messages.insert(result.message);
      });
      EXPECT_EQ(faults_fired(), 1) << fault;
    }
    EXPECT_EQ(messages.size(), 1u) << fault;
    const std::string& message = *messages.begin();
    EXPECT_NE(message.find(fault.ends_with("eio") ? "(EIO)" : "(ENOSPC)"), std::string::npos) << message;
    EXPECT_NE(message.find("cannot "), std::string::npos) << message;
    EXPECT_EQ(load_alone(folder.path("save")), 1) << fault;
    EXPECT_EQ(names_in(folder.path("save")), (std::vector<std::string>{"LATEST", "step_0000001"})) << fault;
    ThreadRanks(2).run([&](Communicator& ranks) {
      BackgroundSave background;
      EXPECT_TRUE(save_async(background, ranks, folder.path("save"), 3).saved) << fault;
    });
    EXPECT_EQ(load_alone(folder.path("save")), 3) << fault;
  }
}

TEST(BackgroundSave, WhatTheThreadThrowsIsThrownToTheCallerOnce) {
  const TestFolder folder;
  BackgroundSave background;
  ASSERT_TRUE(save_async(background, one_rank(), folder.path("save"), 1).saved);
  for (const char* fault : {"async_save.copied:1:abort-alloc", "save.shard.write:1:abort-alloc",
                            "save.manifest.sync:1:abort-alloc", "save.begin:1:abort-alloc"}) {
    const Faults faults(fault);
    EXPECT_THROW(save_async(background, one_rank(), folder.path("save"), 2), std::bad_alloc) << fault;
    EXPECT_FALSE(background.pending());
    EXPECT_EQ(load_alone(folder.path("save")), 1) << fault;
  }
  EXPECT_TRUE(save_async(background, one_rank(), folder.path("save"), 3).saved);
}

TEST(BackgroundSave, AnErrorThatNobodyFetchesIsLogged) {
  const TestFolder folder;
  testing::internal::CaptureStderr();
  {
    BackgroundSave background;
    background.begin({.directory = folder.path("save"), .state = state_at(9)},
                     [] { throw std::runtime_error("the copy failed"); });
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "[megalith] warning: checkpoint of step 9 was not saved: the copy failed\n");
}

}  // namespace
}  // namespace megalith
