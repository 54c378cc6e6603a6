// generate with a trained checkpoint.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/distributed/e2e/program.h"

namespace megalith::test {
namespace {

class Generate : public ::testing::Test {
 protected:
  void train(const Words& flags) {
    folder_.make_text();
    ASSERT_EQ(run(program("train", tiny() +
                                       Words{"--data-path", "text", "--train-iters", "60", "--lr", "1e-2", "--save",
                                             "kept", "--log-interval", "1000"} +
                                       flags),
                  folder_)
                  .code,
              0);
  }

  // Without the line end that closes the text.
  std::string text(const std::string& prompt, int count, const Words& flags) {
    const Outcome outcome =
        run_ok(program("generate",
                       Words{"--load", "kept", "--prompt", prompt, "--max-new-tokens", std::to_string(count)} + flags),
               folder_);
    return outcome.out.substr(0, outcome.out.size() - 1);
  }

  Folder folder_;
};

TEST_F(Generate, RepeatsItselfBySeed) {
  train(llama());
  const std::string first = text("It is", 40, {"--seed", "3"});
  EXPECT_EQ(first.size(), 45u);
  EXPECT_EQ(text("It is", 40, {"--seed", "3"}), first);
  EXPECT_NE(text("It is", 40, {"--seed", "4"}), first);
  const std::string greedy = text("It is", 40, {"--temperature", "0"});
  EXPECT_EQ(text("It is", 40, {"--top-k", "1", "--seed", "9"}), greedy);
  EXPECT_NE(first, greedy);
  // Generation ignores the offload settings of training.
  std::filesystem::remove_all(folder_.path("kept"));
  train(llama() + offload({"core_attn", "act"}));
  EXPECT_EQ(text("It is", 40, {"--seed", "3"}), first);
}

// A token drawn with the KV cache equals the one drawn after reading the full text again.
TEST_F(Generate, CacheEqualsReadingAgain) {
  train(llama());
  for (const Words& sampling : {Words{"--temperature", "0"}, Words{"--top-k", "8", "--top-p", "0.9", "--seed", "5"}}) {
    std::string step_by_step = "It is a truth";
    for (int i = 0; i < 12; ++i) step_by_step = text(step_by_step, 1, sampling);
    EXPECT_EQ(text("It is a truth", 12, sampling), step_by_step);
  }
}

TEST_F(Generate, SamplesSideBySide) {
  train(llama());
  const std::string one = text("It is", 30, {"--seed", "3", "--cuda-graph-impl", "none"});
  const std::string three = text("It is", 30, {"--seed", "3", "--num-samples", "3"});
  ASSERT_EQ(three.size(), 3 * 35u + 2);
  EXPECT_EQ(three.substr(0, 36), one + "\n");
  EXPECT_THAT(three.substr(36),
              ::testing::AllOf(::testing::StartsWith("It is"), ::testing::Not(::testing::StartsWith(one))));
  const Outcome outcome = run(program("generate", {"--load", "kept", "--prompt", "It is", "--max-new-tokens", "9",
                                                   "--print-speed", "--cuda-graph-impl", "transformer_engine"}),
                              folder_);
  EXPECT_THAT(outcome.err, ::testing::HasSubstr("--cuda-graph-impl transformer_engine means local here"));
  EXPECT_THAT(outcome.err, ::testing::ContainsRegex("6 tokens in [0-9.]+ s: [0-9.]+ tokens/s"));
}

TEST_F(Generate, RanksShardTheWeights) {
  train(llama());
  const Words sampling = {"--seed", "3", "--num-samples", "2"};
  const std::string one = text("It is", 30, sampling);
  const Outcome outcome = run_ok(
      program_on(2, "generate", Words{"--load", "kept", "--prompt", "It is", "--max-new-tokens", "30"} + sampling),
      folder_);
  EXPECT_EQ(outcome.out, one + "\n");
  const Outcome failed = run(program_on(2, "generate", {"--load", "nowhere"}), folder_);
  EXPECT_EQ(failed.code, 5);
  EXPECT_THAT(failed.errors(), ::testing::ElementsAre(::testing::HasSubstr("[rank 0/2] --load nowhere")));
  const Words full = {"--load", "kept", "--allow-faults", "--fault-rank", "1", "--fault", "memory.pool:1:abort-alloc"};
  EXPECT_EQ(run(program_on(2, "generate", full), folder_).code, 6);
}

TEST_F(Generate, PromptsOfAFile) {
  train(llama());
  folder_.write("prompts.txt", "It is\nShe\n\nIt was\nHe is\n");
  const Words file = {"--load", "kept", "--prompt-file", "prompts.txt", "--max-new-tokens", "20"};
  const std::string all = run_ok(program("generate", file + Words{"--num-samples", "2"}), folder_).out;
  for (const char* batch : {"1", "2"}) {
    const Words small = {"--num-samples", "2", "--prompts-per-batch", batch};
    EXPECT_EQ(run_ok(program("generate", file + small), folder_).out, all);
  }
  const std::string greedy = run_ok(program("generate", file + Words{"--temperature", "0"}), folder_).out;
  std::string alone;
  for (const char* prompt : {"It is", "She", "It was", "He is"})
    alone += text(prompt, 20, {"--temperature", "0"}) + "\n";
  EXPECT_EQ(greedy, alone);
  run_ok(program_on(2, "generate", file + Words{"--results", "two.jsonl"}), folder_);
  EXPECT_EQ(run_ok(program("generate", file + Words{"--results", "one.jsonl"}), folder_).out, "");
  EXPECT_EQ(folder_.read("two.jsonl"), folder_.read("one.jsonl"));
  EXPECT_THAT(folder_.read_lines("one.jsonl"),
              ::testing::ElementsAre(::testing::HasSubstr("\"prompt\":\"It is\""), ::testing::HasSubstr("\"She\""),
                                     ::testing::HasSubstr("\"It was\""), ::testing::HasSubstr("\"He is\"")));
  folder_.write("prompts.jsonl", "{\"prompt\":\"a\"}\n{}\n");
  expect_error(
      folder_, program("generate", {"--load", "kept", "--prompt-file", "prompts.jsonl"}), 4,
      "generate: error: prompts.jsonl:2: expected a text under 'prompt', got none; correct or remove the line");
}

TEST_F(Generate, Evaluates) {
  train(llama());
  folder_.write("q.jsonl",
                "{\"query\":\"It is a truth\",\"choices\":[\"universally\",\"zqxj\"],\"gold\":0,\"id\":\"a\"}\n"
                "{\"query\":\"It is\",\"choices\":[\"a\",\"zqx\",\"of\"],\"answer\":\"A\"}\n");
  const Words flags = {"evaluate", "--load", "kept", "--questions", "q.jsonl"};
  const std::string one = run_ok(program("generate", flags + Words{"--results", "one.jsonl"}), folder_).out;
  EXPECT_THAT(one, ::testing::ContainsRegex("questions 2\nacc       [01].[05]000 .*\nacc_norm  [01].[05]000 "));
  EXPECT_EQ(run_ok(program("generate", flags + Words{"--results", "few.jsonl", "--batch-tokens", "1"}), folder_).out,
            one);
  EXPECT_EQ(run_ok(program_on(2, "generate", flags + Words{"--results", "two.jsonl"}), folder_).out, one);
  EXPECT_EQ(folder_.read("few.jsonl"), folder_.read("one.jsonl"));
  EXPECT_EQ(folder_.read("two.jsonl"), folder_.read("one.jsonl"));
  EXPECT_THAT(folder_.read("one.jsonl"), ::testing::StartsWith("{\"id\":\"a\",\"index\":0,\"gold\":0,\"acc\":"));
}

TEST_F(Generate, ChatsWithALinePerMessage) {
  train(llama());
  folder_.write("c.jsonl", "{\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}\n");
  const Words flags = {"--load", "kept",    "--chat", "--chat-template", "chatml", "--max-new-tokens",
                       "12",     "--top-k", "1"};
  const std::string answer = run_ok(program("generate", flags + Words{"--prompt-file", "c.jsonl"}), folder_).out;
  const auto chat = [&](const std::string& input) {
    folder_.write("input", input);
    Words shell = program("generate", flags);
    for (std::string& word : shell) word = "'" + word + "'";
    std::string command;
    for (const std::string& word : shell) command += word + " ";
    return run_ok({"/bin/sh", "-c", command + "< input"}, folder_).out;
  };
  EXPECT_EQ(chat("Hello\n"), answer);
  EXPECT_EQ(chat("Hello\n\nHello\n/reset\nHello"), answer + answer + answer);
  EXPECT_EQ(chat(""), "");
  expect_error(folder_, program("generate", {"--load", "kept", "--chat"}), 2,
               ::testing::HasSubstr("which has no chat template"));
}

TEST_F(Generate, LearnedPositionsEndTheText) {
  train({"--bf16"});
  EXPECT_EQ(text("abcdef", 10, {}).size(), 16u);
  const Words load = {"--load", "kept", "--prompt"};
  EXPECT_EQ(run(program("generate", load + Words{"abcdef"}), folder_).code, 0);  // default: the largest that fits
  EXPECT_EQ(run(program("generate", load + Words{""}), folder_).code, 0);
  expect_error(folder_, program("generate", load + Words{"abcdef", "--max-new-tokens", "11"}), 2,
               "generate: error: --max-new-tokens: expected at most 10 tokens: the model has 16 learned positions and "
               "the prompt has 6, got 11; lower it");
  expect_error(
      folder_, program("generate", load + Words{"abcdefghijklmnop"}), 2,
      "generate: error: --prompt: expected at most 15 tokens: the model has 16 learned positions, got 16; shorten it");
}

TEST_F(Generate, IdsWithoutText) {
  ASSERT_EQ(
      run(program("train", tiny_mock() + Words{"--tokenizer-type", "null", "--vocab-size", "383", "--save", "kept"}),
          folder_)
          .code,
      0);
  const std::string ids = text("1 2 3", 4, {"--seed", "3"});
  EXPECT_EQ(std::count(ids.begin(), ids.end(), ' '), 6) << ids;
  EXPECT_EQ(run(program("generate", {"--load", "kept", "--prompt", "words"}), folder_).code, 4);
}

TEST_F(Generate, BpeOfTheUsersFiles) {
  const std::string golden = MEGALITH_SOURCE_DIR "/tests/golden/tokenizer/";
  std::filesystem::copy(golden + "llama3.json", folder_.path("llama3.json"));
  const Words model = {"--tokenizer-model", "llama3.json"};
  const Words flags = tiny_mock() + Words{"--tokenizer-type", "HuggingFaceTokenizer", "--save", "kept"} + model;
  ASSERT_EQ(run(program("train", flags), folder_).code, 0);
  const std::string first = text("caf\u00e9", 8, {"--seed", "3"});
  EXPECT_THAT(first, ::testing::StartsWith("caf\u00e9"));
  EXPECT_EQ(text("caf\u00e9", 8, Words{"--seed", "3"} + model), first);
  std::filesystem::remove(folder_.path("llama3.json"));
  EXPECT_EQ(text("caf\u00e9", 8, {"--seed", "3"}), first);  // from the checkpoint only
  const Outcome other =
      run(program("generate", {"--load", "kept", "--prompt", "x", "--tokenizer-model", golden + "gpt2.json"}), folder_);
  EXPECT_EQ(other.code, 2);
  EXPECT_THAT(other.err, ::testing::HasSubstr("expected bpe-llama3-700-"));
}

}  // namespace
}  // namespace megalith::test
