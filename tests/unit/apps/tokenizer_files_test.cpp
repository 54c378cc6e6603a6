// Checkpoints keep the tokenizer's files: a run goes on where they are gone, with flags or with the checkpoint's own.

#include <filesystem>
#include <fstream>
#include <mutex>

#include "apps/train/trainer.h"
#include "tests/support/matchers.h"
#include "tests/thread_ranks/thread_communicator.h"
#include "tests/unit/apps/flags_support.h"
#include "tests/unit/apps/parse_run.h"

namespace megalith {
namespace {

using Words = std::vector<std::string>;

const std::string kGoldenTokenizers = MEGALITH_SOURCE_DIR "/tests/golden/tokenizer/";

class TokenizerFiles : public test::InFolder {
 protected:
  // As apps/train/main.cpp on so many ranks; its log, or "exit CODE: MESSAGE".
  static std::string train(const Words& flags, int ranks = 1) {
    const StopRequest stop;
    std::string failure;
    std::mutex mutex;
    testing::internal::CaptureStderr();
    ThreadWorld(ranks, std::chrono::seconds(60)).run([&](Communicator& world) {
      try {
        FoundCheckpoint found;
        const Parsed parsed = test::parse_run(flags, world, found);
        find_start(parsed.options, world, found);
        Trainer(prepare_run(parsed.options, world.rank(), world.size(), std::move(found)), world, stop).run();
      } catch (const Error& error) {
        const std::lock_guard lock(mutex);
        failure = "exit " + std::to_string(static_cast<int>(error.code())) + ": " + error.what();
      }
    });
    const std::string log = testing::internal::GetCapturedStderr();
    return failure.empty() ? log : failure;
  }
  static Words joined(Words a, const Words& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  }
  static LoadedCheckpoint newest() { return std::move(find_checkpoint({.directory = "kept"}).value()); }

  const Words run_ = {"--device",     "cpu", "--global-batch-size", "4",      "--lr", "1e-3",
                      "--eval-iters", "0",   "--mock-data",         "--save", "kept", "--load",
                      "kept"};
  const Words model_ = {"--num-layers", "1", "--hidden-size", "8", "--num-attention-heads", "2", "--seq-length", "8"};
  const Words tokenizer_ = {"--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", "t.json"};
};

TEST_F(TokenizerFiles, StayWithTheCheckpoint) {
  std::filesystem::copy(kGoldenTokenizers + "gpt2.json", "t.json");
  const std::string text = test::read_file("t.json");
  const Words flags = joined(joined(run_, model_), tokenizer_);
  EXPECT_THAT(train(joined(flags, {"--train-iters", "2"}), 2), Not(HasSubstr("warning")));
  EXPECT_EQ(newest().small_files(), Words{"tokenizer.json"});
  EXPECT_EQ(newest().read_small_file("tokenizer.json"), text);

  std::filesystem::remove("t.json");
  EXPECT_THAT(
      train(joined(flags, {"--train-iters", "3"}), 2),
      HasSubstr("warning: --tokenizer-model t.json does not exist; kept/step_0000002/tokenizer.json is used\n"));
  EXPECT_EQ(newest().state().step, 3);
  EXPECT_EQ(newest().read_small_file("tokenizer.json"), text);

  // The model and the tokenizer out of the checkpoint alone, on other ranks.
  const Words asked = joined(run_, {"--use-checkpoint-args", "--train-iters", "4"});
  EXPECT_THAT(train(asked, 1), Not(HasSubstr("does not exist")));
  EXPECT_EQ(newest().state().step, 4);
  EXPECT_EQ(newest().read_small_file("tokenizer.json"), text);
  EXPECT_THAT(train(joined(asked, {"--train-iters", "5"}), 2), Not(HasSubstr("does not exist")));
  EXPECT_EQ(newest().state().step, 5);

  std::filesystem::copy(kGoldenTokenizers + "llama3.json", "t.json");
  EXPECT_THAT(train(joined(flags, {"--train-iters", "6"}), 2),
              HasSubstr("exit 2: --tokenizer-type of checkpoint kept/step_0000005: expected bpe-gpt2-"));
}

TEST_F(TokenizerFiles, OfAFolderStayWithTheCheckpointToo) {
  std::filesystem::create_directory("hf");
  std::filesystem::copy(kGoldenTokenizers + "gpt2.json", "hf/tokenizer.json");
  std::ofstream("hf/tokenizer_config.json") << R"({"bos_token": "a"})";
  std::ofstream("hf/chat_template.jinja") << "{{ messages }}";
  const Words flags = joined(joined(run_, model_),
                             {"--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", "hf", "--train-iters"});
  const Words files = {"chat_template.jinja", "tokenizer.json", "tokenizer_config.json"};
  EXPECT_THAT(train(joined(flags, {"2"})), Not(HasSubstr("exit")));
  EXPECT_EQ(newest().small_files(), files);
  EXPECT_EQ(newest().read_small_file("chat_template.jinja"), "{{ messages }}");
  std::filesystem::remove("hf/tokenizer.json");  // the folder stays
  EXPECT_THAT(train(joined(flags, {"3"})),
              HasSubstr("--tokenizer-model hf does not exist; kept/step_0000002/tokenizer"));
  std::filesystem::remove_all("hf");
  EXPECT_THAT(train(joined(flags, {"4"})), Not(HasSubstr("exit")));
  EXPECT_EQ(newest().state().step, 4);
  EXPECT_EQ(newest().small_files(), files);
}

TEST_F(TokenizerFiles, AreWantedWhereThereIsNoCheckpointYet) {
  const Words flags = joined(joined(run_, model_), {"--train-iters", "2"});
  EXPECT_THAT(train(joined(flags, tokenizer_), 2), HasSubstr("exit 3: cannot open t.json"));
  EXPECT_THAT(
      train(joined(flags, {"--tokenizer-type", "HuggingFaceTokenizer"})),
      HasSubstr("exit 2: --tokenizer-model: expected one with --tokenizer-type HuggingFaceTokenizer, got none"));
}

}  // namespace
}  // namespace megalith
