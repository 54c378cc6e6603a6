// Tests of bad input: one line that states the error, the right exit code and no hang, whichever rank finds it.
#include <gtest/gtest.h>

#include "tests/distributed/e2e/program.h"
#include "tests/support/matchers.h"

namespace megalith::test {
namespace {

Words mock(const Words& more) { return tiny_mock() + more; }
Words text(const Words& more) { return tiny() + Words{"--data-path", "text"} + more; }

TEST(BadInput, Flags) {
  const Folder folder;
  const auto expect = [&](const Words& flags, const std::string& message) {
    expect_train_error(folder, flags, 2, message);
  };
  expect({"--foo"}, "--foo: unknown flag of train; see train --help");
  expect(mock({"--num-layer", "3"}), "--num-layer: unknown flag of train; did you mean --num-layers?");
  expect(mock({"--num-layers"}), "--num-layers: expected an integer from 1 to 10000, got no value; see train --help");
  expect(mock({"stray"}), "\"stray\": an argument without a flag; see train --help");
  expect(mock({"--lr", "nan"}),
         "--lr: expected a number of at least 0 and finite, in fp32, got \"nan\"; use a number in this range");
  expect(mock({"--train-iters", "99999999999999999999"}),
         "--train-iters: expected an integer from 0 to 1000000000000, got \"99999999999999999999\"; use a number in "
         "this range");
  expect(mock({"--micro-batch-size", "0"}),
         "--micro-batch-size: expected an integer from 1 to 1048576, got \"0\"; use a number in this range");
  expect(mock({"--world-size", "2"}), "--world-size: a flag of plan, not of train; remove it");
}

// Open MPI would have all processes without mpirun share a folder, and one that ends removes it under one that starts.
TEST(BadInput, OneProcessNeedsNoFolderOfMpi) {
  const Folder folder;
  expect_error(folder, Words{"/usr/bin/env", "TMPDIR=/dev/null/none"} + program("train", {"--foo"}), 2,
               "train: error: [rank 0/1] --foo: unknown flag of train; see train --help");
}

TEST(BadInput, ContradictoryFlags) {
  const Folder folder;
  const auto expect = [&](const Words& flags, const std::string& message) {
    expect_train_error(folder, flags, 2, message);
  };
  expect(mock({"--data-path", "text"}),
         "--data-path and --mock-data: expected one of them, got both; remove --mock-data to train on the dataset");
  expect(tiny(), "--data-path or --mock-data: missing; give the prefix of an indexed dataset that prepare wrote");
  expect(
      mock({"--save-interval", "3"}),
      "--save-interval and --save: expected --save-interval only with --save, got --save-interval alone; use --save, "
      "or remove --save-interval");
  expect(mock({"--global-batch-size", "7"}),
         "--global-batch-size and --micro-batch-size: expected a global batch size that is a multiple of the micro "
         "batch size, got --global-batch-size 7 and --micro-batch-size 2; use --global-batch-size 8");
  expect(mock({"--hidden-size", "30"}),
         "--hidden-size and --num-attention-heads: expected a hidden size that is a multiple of the heads, or "
         "--kv-channels, got --hidden-size 30 and --num-attention-heads 4; such as --hidden-size 32");
  expect(mock({"--skip-train"}),
         "--skip-train and --eval-iters: expected --skip-train only with --eval-iters above 0, got --eval-iters 0; use "
         "--eval-iters above 0, or remove --skip-train");
}

TEST(BadInput, ConfigurationFiles) {
  const Folder folder;
  folder.write("typo.toml", "[model]\nnum_layers = 2\nhiden-size = 32\n");
  folder.write("type.toml", "num-layers = \"2\"\n");
  folder.write("broken.toml", "num-layers = \n");
  const auto config = [](const std::string& name) { return mock({"--config", name}); };
  expect_train_error(folder, config("typo.toml"), 2,
                     "typo.toml:3:1: unknown key hiden-size; did you mean hidden-size?");
  expect_train_error(
      folder, config("type.toml"), 2,
      "type.toml:1:1: num-layers: expected an integer from 1 to 10000, got \"2\"; use a number in this range");
  expect_train_error(
      folder, config("none.toml"), 3,
      "--config: cannot open none.toml: No such file or directory (ENOENT); check the path and its permissions");
  const Outcome broken = run(program("train", config("broken.toml")), folder);
  EXPECT_EQ(broken.code, 2);
  EXPECT_THAT(broken.errors(), ElementsAre(HasSubstr("broken.toml:1:14: not TOML: ")));
}

TEST(BadInput, Data) {
  const Folder folder;
  folder.make_text();
  constexpr const char* kDamaged = "; the file is damaged or not from a Megatron dataset: prepare it again";
  const auto restore = [&] {
    folder.copy("text.idx", "cut.idx");
    folder.copy("text.bin", "cut.bin");
  };
  const auto expect = [&](int code, const std::string& message) {
    expect_train_error(folder, tiny() + Words{"--data-path", "cut"}, code, message);
    restore();
  };
  expect(3, "cannot open cut.idx: No such file or directory (ENOENT); check the path and its permissions");
  folder.truncate("cut.idx", 20);
  expect(4, std::string("cut.idx: size: expected a header of 34 bytes, got 20 bytes") + kDamaged);
  folder.overwrite("cut.idx", 0, "X");
  expect(4, std::string("cut.idx: byte 0 (magic): expected MMIDIDX and two zero bytes, got other bytes") + kDamaged);
  folder.overwrite("cut.idx", 34, "\xff\xff\xff\xff");
  expect(4, std::string("cut.idx: byte 34 (length of sequence 0): expected 0 or more tokens, got -1") + kDamaged);
  folder.truncate("cut.bin", 1000);
  expect(4, "cut.bin: size: expected at least " + std::to_string(folder.read("text.bin").size()) +
                " bytes, as cut.idx says, got 1000 bytes" + kDamaged);
  expect_train_error(
      folder, text({"--split", "0,1,0"}), 2,
      "--split: expected a training share of at least one of the 62 documents of text, got '0,1,0', which "
      "gives it none; give it a larger share, or cut the text into more documents (prepare --document-start or "
      "--document-separator)");
}

TEST(BadInput, ATokenBeyondTheVocabularyEndsAllRanks) {
  const Folder folder;
  folder.make_text();
  folder.write("text.bin", std::string(folder.read("text.bin").size(), '\x7f'));
  const Outcome outcome = run(program_on(2, "train", text({})), folder);
#ifdef MEGALITH_EXIT_CODES_SURVIVE
  EXPECT_EQ(outcome.code, 4);
#endif
  const Words errors = outcome.errors();
  ASSERT_THAT(errors, ::testing::SizeIs(::testing::AllOf(::testing::Ge(1u), ::testing::Le(2u)))) << outcome.err;
  EXPECT_THAT(errors[0],
              HasSubstr("expected a token id below the vocabulary size 257, got 32639; the data was prepared "
                        "with another tokenizer, or is damaged"));
}

TEST(BadInput, IsReportedOnceForAllRanks) {
  const Folder folder;
  const auto expect = [&](const Words& flags, int code, const std::string& message) {
    const Outcome outcome = run(program_on(3, "train", mock(flags)), folder);
#ifdef MEGALITH_EXIT_CODES_SURVIVE
    EXPECT_EQ(outcome.code, code);
#else
    EXPECT_NE(outcome.code, 0) << code;
#endif
    EXPECT_THAT(outcome.errors(), ElementsAre("train: error: [rank 0/3] " + message)) << outcome.err;
  };
  expect(
      {}, 2,
      "--global-batch-size: expected a multiple of --micro-batch-size 2 x 3 data-parallel ranks, got 8; use 6 or 12");
  expect({"--global-batch-size", "6", "--load", "none"}, 5,
         "--load none: expected a checkpoint, got none; check the folder, or use the same folder for --save to start a "
         "new run in it");
  expect({"--global-batch-size", "6", "--metrics-jsonl", "none/metrics.jsonl"}, 3,
         "--metrics-jsonl: cannot open none/metrics.jsonl: No such file or directory (ENOENT); check the path and its "
         "permissions");
}

TEST(BadInput, OutputsThatCannotBeWritten) {
  const Folder folder;
  folder.write("file", "");
  expect_train_error(folder, mock({"--save", "file"}), 3,
                     "--save: cannot open directory file: Not a directory (ENOTDIR); a part of the path is a file "
                     "where a folder is wanted");
  const Outcome metrics = run_ok(program("train", mock({"--metrics-jsonl", "/dev/full"})), folder);  // continues
  EXPECT_THAT(metrics.warnings(), ElementsAre(::testing::MatchesRegex(
                                      "\\[megalith\\] warning: --metrics-jsonl: cannot write [0-9]+ bytes at 0 of "
                                      "/dev/full: No space left on device \\(ENOSPC\\); free space or lift the "
                                      "limit; it is kept and tried again at each step")));
  EXPECT_THAT(metrics.err, HasSubstr("--metrics-jsonl: the last "));
}

// Files are limited to 16 MiB, the checkpoint has 19 MB.
TEST(BadInput, AFailedSaveDoesNotEndTheRun) {
  const Folder folder;
  std::string command = "ulimit -f 16384; exec";
  for (const std::string& word :
       program("train", mock({"--hidden-size", "256", "--save", "kept", "--save-interval", "3"})))
    command += " '" + word + "'";
  const Outcome outcome = run({"/bin/bash", "-c", command}, folder);
  EXPECT_EQ(outcome.code, 3);  // the run's result is lost
  EXPECT_THAT(outcome.warnings(),
              ElementsAre(HasSubstr("checkpoint of step 3 was not saved (1 failed in a row, 3 end the run): "),
                          HasSubstr("checkpoint of step 6 was not saved (2 failed in a row, 3 end the run): "),
                          "[megalith] warning: 2 checkpoints could not be saved"));
  EXPECT_THAT(outcome.out, HasSubstr("step 6/6"));
}

TEST(BadInput, Checkpoints) {
  const Folder folder;
  ASSERT_EQ(run(program("train", mock({"--save", "kept", "--save-interval", "3"})), folder).code, 0);
  const auto expect = [&](const Words& flags, int code, const std::string& message) {
    expect_train_error(folder, mock(Words{"--load", "kept"} + flags), code, message);
  };
  const std::string same =
      "; use the checkpoint's model flags, or add --use-checkpoint-args, or load another checkpoint";
  expect({"--ckpt-step", "4"}, 5,
         "no valid checkpoint in kept for step 4; there is none of that step: leave --ckpt-step out for the newest");
  expect({"--num-layers", "3"}, 2,
         "--load kept/step_0000006: a different model: expected --num-layers 2, got --num-layers 3" + same);
  expect({"--num-attention-heads", "2"}, 2,
         "--load kept/step_0000006: a different model: expected --num-attention-heads 4, --num-query-groups 4, "
         "--kv-channels 8, got --num-attention-heads 2, --num-query-groups 2, --kv-channels 16" +
             same);
  expect({"--bf16"}, 2, "--load kept/step_0000006: a different model: expected --bf16 false, got --bf16 true" + same);
  expect({"--tokenizer-type", "null", "--vocab-size", "256"}, 2,
         "--tokenizer-type of checkpoint kept/step_0000006: expected byte-257, got null-257; use the checkpoint's "
         "tokenizer flags and files");
  expect({"--seed", "12"}, 2,
         "--seed of checkpoint kept/step_0000006: expected 11, got 12; use the checkpoint's seed, or --finetune to "
         "start a new data order with these weights");
}

TEST(BadInput, ADamagedCheckpointFallsBackToTheOneBefore) {
  const Folder folder;
  ASSERT_EQ(run(program("train", mock({"--save", "kept", "--save-interval", "3"})), folder).code, 0);
  const auto resume = [&] {
    return run(program_on(2, "train", mock({"--load", "kept", "--metrics-jsonl", "m.jsonl"})), folder);
  };
  folder.overwrite("kept/step_0000006/rank_0000_of_0001.safetensors", 200'000, "damage");
  const Outcome second = resume();
  EXPECT_EQ(second.code, 0);
  EXPECT_THAT(second.warnings(),
              ElementsAre(HasSubstr("checkpoint step_0000006 is not valid, trying the next older one")));
  EXPECT_EQ(folder.read_lines("m.jsonl").size(), 3u);
  folder.truncate("kept/step_0000003/rank_0000_of_0001.safetensors", 200'000);
  const Outcome none = resume();
#ifdef MEGALITH_EXIT_CODES_SURVIVE
  EXPECT_EQ(none.code, 5);
#endif
  EXPECT_THAT(none.errors(), ElementsAre(HasSubstr("[rank 0/2] no valid checkpoint in kept; tried step_0000006: ")));
}

TEST(BadInput, GraphsOfAModuleThatNoRankCaptures) {
  const Folder folder;
  expect_train_error(folder,
                     mock({"--cuda-graph-impl", "local", "--cuda-graph-modules", "mlp", "--recompute-granularity",
                           "full", "--recompute-method", "uniform", "--recompute-num-layers", "1"}),
                     2,
                     "--cuda-graph-modules: expected modules that run separately in a layer of some rank, got mlp, "
                     "which no rank captures; remove mlp, or use layer, which also captures fully recomputed layers");
}

TEST(BadInput, SizesBeyondAnyMachine) {
  const Folder folder;
  expect_train_error(folder, mock({"--hidden-size", "4096"}), 2,
                     "--kv-channels, or --hidden-size / --num-attention-heads: expected an integer from 1 to 256, got "
                     "1024; lower it");
  expect_train_error(folder, mock({"--global-batch-size", "1000000000000"}), 2,
                     "--global-batch-size and --seq-length: expected at most 1099511627776 tokens, got 1000000000000 x "
                     "16; lower one of them");
  expect_train_error(folder, mock({"--global-batch-size", "1000000"}), 2,
                     "--global-batch-size: expected at most 65536 microbatches per step and rank, 131072 samples, got "
                     "1000000; raise --micro-batch-size or the number of ranks");
  const Words wide = {"--hidden-size", "1048576", "--num-attention-heads", "4096"};
  const Outcome memory = run(program("train", mock(wide)), folder);
  EXPECT_EQ(memory.code, 6);
  EXPECT_THAT(memory.errors(),
              ElementsAre(::testing::AllOf(HasSubstr("out of memory: "), HasSubstr("largest owners: "))));
}

// No GPU is visible to these programs, wherever they run.
TEST(BadInput, CudaWithoutAGpu) {
  const Folder folder;
  const std::string reason =
      MEGALITH_CUDA ? "no GPU: expected a visible NVIDIA GPU, got none \\(.+\\); check nvidia-smi and "
                      "CUDA_VISIBLE_DEVICES, or train with --device cpu"
                    : "expected cpu, in a build without the CUDA backend, got cuda; configure with -DMEGALITH_CUDA=ON";
  const auto expect = [&](const Words& command, const std::string& label) {
    const Outcome outcome = run(Words{"/usr/bin/env", "CUDA_VISIBLE_DEVICES="} + command, folder);
    EXPECT_THAT(outcome.errors(), ElementsAre(::testing::MatchesRegex(label + "--device cuda: " + reason)))
        << outcome.err;
    return outcome.code;
  };
  const Words flags = mock({"--device", "cuda"});
  EXPECT_EQ(expect(program("train", flags), "train: error: \\[rank 0/1\\] "), 2);
  const int code = expect(program_on(2, "train", flags), "train: error: \\[rank 0/2\\] ");
#ifdef MEGALITH_EXIT_CODES_SURVIVE
  EXPECT_EQ(code, 2);
#else
  EXPECT_NE(code, 0);
#endif
  ASSERT_EQ(run(program("train", mock({"--save", "kept"})), folder).code, 0);
  EXPECT_EQ(expect(program("generate", {"--load", "kept", "--device", "cuda"}), "generate: error: "), 2);
}

TEST(BadInput, OtherPrograms) {
  const Folder folder;
  const auto expect = [&](const std::string& name, const Words& flags, int code, const std::string& message) {
    expect_error(folder, program(name, flags), code, name + ": error: " + message);
  };
  const Words shape = {"--num-layers", "2", "--hidden-size", "32", "--num-attention-heads", "4", "--seq-length", "16"};
  expect("plan", {}, 2,
         "--num-layers: missing; set it by the flag or in a file with --config, such as configs/quickstart.toml");
  expect("plan", shape + Words{"--global-batch-size", "100", "--world-size", "3"}, 2,
         "--global-batch-size: expected a multiple of --micro-batch-size 1 x 3 data-parallel ranks, got 100; use 99 or "
         "102");
  expect("generate", {}, 2, "--load: missing; give the folder that train --save wrote");
  expect("generate", {"--load", "none"}, 5,
         "--load none: expected a checkpoint, got none; give the folder that train --save wrote");
  expect("generate", {"--load", "none", "--top-p", "1.5"}, 2,
         "--top-p: expected a number of at least 0 and at most 1, got \"1.5\"; use a number in this range");
  expect("generate", {"--load", "none", "--prompt", "a\xff"}, 2,
         "--prompt: expected text in UTF-8, got bytes that are not UTF-8; see --help");
  expect("report", {}, 2, "METRICS.jsonl: missing; give a file that train --metrics-jsonl wrote");
  expect("report", {"none.jsonl"}, 3,
         "cannot open none.jsonl: No such file or directory (ENOENT); check the path and its permissions");
}

TEST(BadInput, ARouterThatLearnsNothingIsAWarning) {
  const Folder folder;
  const Words one = tiny_mock() + llama() + Words{"--num-experts", "4", "--moe-router-topk", "1"};
  const auto warned = [&](const Words& more) {
    const Outcome outcome = run_ok(program("train", one + more), folder);
    return (outcome.err + outcome.out)
               .find(
                   "--moe-router-topk 1 without --moe-router-pre-softmax: each token's weight is "
                   "1") != std::string::npos;
  };
  EXPECT_TRUE(warned({}));
  EXPECT_FALSE(warned({"--moe-router-pre-softmax"}));
}

}  // namespace
}  // namespace megalith::test
