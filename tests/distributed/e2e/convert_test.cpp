// convert, and the use of its checkpoints by train and generate.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/distributed/e2e/program.h"
#include "tests/support/matchers.h"

namespace megalith::test {
namespace {

const std::string kGolden = MEGALITH_SOURCE_DIR "/tests/hf/golden/";

Outcome convert(const Folder& folder, const Words& flags) { return run(program("convert", flags), folder); }

void expect_converted(const Folder& folder, const Words& flags) {
  const Outcome outcome = convert(folder, flags);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
}

class TrainedModels : public ::testing::TestWithParam<Words> {};
INSTANTIATE_TEST_SUITE_P(Convert, TrainedModels, ::testing::Values(Words{}, Words{"--num-experts", "4"}));

// A trained model is exported to transformers and imported again: the same weights, the same text.
TEST_P(TrainedModels, GoThereAndBack) {
  const Folder folder;
  const Words flags = tiny_mock() + llama() + GetParam();
  ASSERT_EQ(
      run(program("train", flags + Words{"--untie-embeddings-and-output-weights", "--save", "trained"}), folder).code,
      0);
  expect_converted(folder, {"--from", "native", "--load", "trained", "--save", "hf"});
  expect_converted(folder, {"--from", "hf", "--load", "hf", "--save", "back", "--tokenizer-type", "byte"});
  expect_converted(folder, {"--to", "hf", "--load", "back", "--save", "hf2"});
  EXPECT_EQ(folder.read("hf/model.safetensors"), folder.read("hf2/model.safetensors"));
  EXPECT_EQ(folder.read("hf/config.json"), folder.read("hf2/config.json"));
  std::string texts[2];
  for (const int i : {0, 1}) {
    const Outcome outcome = run_ok(
        program("generate", {"--load", i == 0 ? "trained" : "back", "--prompt", "It is", "--seed", "3"}), folder);
    texts[i] = outcome.out;
  }
  EXPECT_GT(texts[0].size(), 6u);
  EXPECT_EQ(texts[0], texts[1]);
}

// Strategies that add gradients in the same order; the first run's shards are on two ranks.
TEST(Convert, AShardedRunGivesTheModelOfAWholeOne) {
  const Folder folder;
  const auto model_of = [&](const std::string& name, const Words& strategy) {
    const Words flags =
        tiny_mock() + llama() + strategy + Words{"--untie-embeddings-and-output-weights", "--save", name};
    EXPECT_EQ(run(program_on(2, "train", flags), folder).code, 0);
    expect_converted(folder, {"--to", "hf", "--load", name, "--save", name + "_hf"});
    return folder.read(name + "_hf/model.safetensors");
  };
  const std::string whole = model_of("whole", {});
  EXPECT_GT(whole.size(), 10'000u);
  EXPECT_TRUE(model_of("sharded", words("--data-parallel-sharding-strategy optim_grads_params "
                                        "--fsdp-reduce-grads last --fsdp-embedding-and-head sharded")) == whole);
}

TEST(Convert, TrainingStartsFromIt) {
  const Folder folder;
  expect_converted(folder, {"--from", "hf", "--load", kGolden + "gpt2", "--save", "native"});
  const Words flags =
      words("--config native/model.toml --mock-data --train-iters 3 --lr 1e-3 --load native --eval-iters 0");
  expect_train_error(
      folder, flags, 2,
      "--load native: expected --finetune or --no-load-optim with it, as the checkpoint has only weights (from convert "
      "or --no-save-optim), got neither; add --finetune to start at step 0 with Adam's moments at 0");
  const Outcome outcome = run_ok(program("train", flags + Words{"--finetune", "--save", "tuned"}), folder);
  EXPECT_THAT(outcome.warnings(), ::testing::IsEmpty());
  EXPECT_THAT(outcome.err + outcome.out, HasSubstr("loaded native/step_0000000 (step 0, 0 samples)"));
  EXPECT_THAT(outcome.out + outcome.err, HasSubstr(" step 3/3  "));
  expect_converted(folder, {"--to", "hf", "--load", "tuned", "--save", "hf", "--ckpt-step", "3"});
  EXPECT_NE(folder.read("hf/model.safetensors"), "");
}

// Generates token by token with a KV cache, experts and scaled RoPE; tests/hf/make_models.py got the texts from
// transformers.
TEST(Convert, ModelsContinueAsTransformersDoes) {
  const Folder folder;
  for (const std::string family : {"mixtral", "qwen3_moe", "llama_yarn", "llama_linear", "qwen3_yarn"}) {
    expect_converted(folder, {"--from", "hf", "--load", kGolden + family, "--save", family});
    std::ifstream lines(kGolden + family + "/greedy.txt");
    int count = 0;
    for (std::string line; std::getline(lines, line); ++count) {
      std::size_t end = 0;
      for (int token = 0; token < 5; ++token) end = line.find(' ', end + 1);
      const Words flags = {"--load",           family, "--prompt",      line.substr(0, end),
                           "--max-new-tokens", "7",    "--temperature", "0"};
      EXPECT_EQ(run(program("generate", flags), folder).out, line + "\n");
    }
    EXPECT_EQ(count, 4);
  }
}

TEST(Convert, ExitCodes) {
  const Folder folder;
  const auto refused = [&](const Words& flags, int code, const std::string& line) {
    expect_error(folder, program("convert", flags), code, HasSubstr(line));
  };
  refused({"--from", "hf", "--load", "none"}, 2, "convert: error: --save: missing; give the folder to write");
  refused({"--form", "hf"}, 2, "convert: error: --form: unknown flag of convert; did you mean --from?");
  refused({"--from", "hf", "--load", "none", "--save", "out"}, 3, "convert: error: cannot open none/config.json: ");
  refused({"--to", "hf", "--load", "none", "--save", "out"}, 5, "convert: error: --load none: expected a checkpoint");
  std::filesystem::create_directory(folder.path("hf"));
  folder.write("hf/config.json", "{\"model_type\": \"gpt2\"");
  refused({"--from", "hf", "--load", "hf", "--save", "out"}, 4,
          "convert: error: hf/config.json: expected UTF-8 JSON, got something else at byte ");
  folder.write("hf/config.json", R"({"model_type": "gpt2", "n_layer": 1, "n_embd": 4, "n_head": 2, "n_positions": 8,
                                     "vocab_size": 5, "attn_logit_softcapping": 30.0})");
  refused({"--from", "hf", "--load", "hf", "--save", "out"}, 4,
          "convert: error: hf/config.json: expected known keys only, got 'attn_logit_softcapping'; a key that changes "
          "neither ");
  ASSERT_EQ(run(program("train", tiny_mock() + Words{"--swiglu", "--save", "kept"}), folder).code, 0);
  refused({"--to", "hf", "--load", "kept", "--save", "out"}, 2,
          "convert: error: --to hf: expected with learned positions a GPT-2, got --swiglu; transformers has no such");
  EXPECT_EQ(convert(folder, {"--help"}).code, 0);
  EXPECT_EQ(convert(folder, {"--version"}).code, 0);
}

}  // namespace
}  // namespace megalith::test
