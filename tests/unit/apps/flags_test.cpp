#include "apps/flags/flags.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "apps/config/data_options.h"
#include "apps/config/logging_options.h"
#include "apps/config/memory_options.h"
#include "apps/config/optimizer_options.h"
#include "apps/config/parallel_options.h"
#include "apps/config/program_options.h"
#include "apps/config/training_options.h"
#include "apps/flags/flags_table.h"
#include "apps/program/version.h"
#include "core/model/config.h"
#include "tests/support/matchers.h"
#include "tests/support/words.h"
#include "tests/unit/apps/flags_support.h"

namespace megalith::test {
namespace {

TEST(Flags, DefaultsAreMegatrons) {
  const Options options = train_options({});
  EXPECT_EQ(options.train.micro_batch_size, 1);
  EXPECT_EQ(options.optimizer.adam_beta2, 0.999);
  EXPECT_EQ(options.optimizer.weight_decay, 0.01);
  EXPECT_EQ(options.optimizer.clip_grad, 1.0);
  EXPECT_EQ(options.train.seed, 1234);
  EXPECT_EQ(options.data.split, "969,30,1");
  EXPECT_EQ(options.model.make_vocab_size_divisible_by, 128);
  EXPECT_EQ(options.model.params_dtype, DType::kFp32);
  EXPECT_TRUE(options.model.add_bias_linear);
}

TEST(Flags, DerivesWhatWasLeftOut) {
  const Options options = train_options({});
  EXPECT_EQ(options.model.ffn_hidden_size, 256);
  EXPECT_EQ(options.model.num_query_groups, 4);
  EXPECT_EQ(options.train.schedule.lr_decay_iters, 100);
  const Options by_samples = train_options({"--train-iters=0", "--train-samples=1000", "--global-batch-size", "48"});
  EXPECT_EQ(by_samples.train.train_iters, 20);
  EXPECT_EQ(by_samples.train.schedule.lr_decay_samples, 1000);
  EXPECT_EQ(by_samples.train.schedule.lr_decay_iters, 0);
  const Options ramp =
      train_options(words("--train-iters 0 --train-samples 1000 --global-batch-size 48 --rampup-batch-size 16 16 96"));
  EXPECT_EQ(ramp.train.train_iters, 3 + 2 + (1000 - 48 - 64) / 48);
  EXPECT_THAT(train_options({"--cuda-graph-impl", "transformer_engine"}).memory.cuda_graph_modules,
              ElementsAre("layer"));
  EXPECT_THAT(train_options({"--cuda-graph-impl", "local", "--cuda-graph-scope", "attn"}).memory.cuda_graph_modules,
              ElementsAre("attn"));
  EXPECT_THAT(
      train_options(words("--cuda-graph-impl local --cuda-graph-modules mlp attn mlp")).memory.cuda_graph_modules,
      ElementsAre("mlp", "attn"));
  for (const char* form : {"--window-size 127 0", "--window-size 127,0", "--window-size (127,0)"})
    EXPECT_THAT(train_options(words(form)).model.window_size, ElementsAre(127, 0)) << form;
  EXPECT_THAT(train_options(words("--window-size -1 0")).model.window_size, ElementsAre(-1, 0));
  EXPECT_THAT(train_options({"--recompute-granularity", "selective"}).memory.recompute_modules,
              ElementsAre("core_attn"));
}

TEST(Flags, FillsEveryKindOfField) {
  const Options options =
      train_options(words("--bf16 --disable-bias-linear --swiglu --position-embedding-type rope --rotary-base=5e5 "
                          "--normalization RMSNorm --lr-decay-style WSD --lr-wsd-decay-iters 10 --seed 4294967295 "
                          "--mock-data=false --data-path 0.3 a 0.7 b --metrics-jsonl m.jsonl"));
  EXPECT_EQ(options.model.params_dtype, DType::kBf16);
  EXPECT_FALSE(options.model.add_bias_linear);
  EXPECT_TRUE(options.model.swiglu);
  EXPECT_EQ(options.model.position_embedding_type, PositionEmbedding::kRope);
  EXPECT_EQ(options.model.rotary_base, 5e5);
  EXPECT_EQ(options.model.normalization, Normalization::kRmsNorm);
  EXPECT_EQ(options.train.schedule.lr_decay_style, LrDecayStyle::kWsd);
  EXPECT_EQ(options.train.seed, 4294967295);
  EXPECT_THAT(options.data.data_path, ElementsAre("0.3", "a", "0.7", "b"));
  EXPECT_EQ(options.logging.metrics_jsonl, "m.jsonl");
}

TEST(Flags, DtypesOfGradientsAndMoments) {
  const Options wide = train_options({"--bf16"});
  EXPECT_EQ(wide.optimizer.main_grads_dtype, DType::kFp32);
  EXPECT_EQ(wide.optimizer.exp_avg_dtype, DType::kFp32);
  EXPECT_EQ(wide.optimizer.exp_avg_sq_dtype, DType::kFp32);
  EXPECT_EQ(wide.memory.loss_chunk_size, 0);
  const Options narrow = train_options({"--bf16", "--main-grads-dtype", "bf16", "--exp-avg-dtype", "bf16",
                                        "--exp-avg-sq-dtype=bf16", "--loss-chunk-size", "512"});
  EXPECT_EQ(narrow.optimizer.main_grads_dtype, DType::kBf16);
  EXPECT_EQ(narrow.optimizer.exp_avg_dtype, DType::kBf16);
  EXPECT_EQ(narrow.optimizer.exp_avg_sq_dtype, DType::kBf16);
  EXPECT_EQ(narrow.memory.loss_chunk_size, 512);
  EXPECT_EQ(train_outcome({"--exp-avg-dtype", "bf16"}), "valid");
  EXPECT_EQ(train_outcome({"--exp-avg-dtype", "fp8"}),
            "exit 2: --exp-avg-dtype fp8: a feature of Megatron-LM that is not built, 8-bit and fp16 moments: expected "
            "fp32 or bf16; see docs/from-megatron.md");
  EXPECT_EQ(train_outcome({"--exp-avg-sq-dtype", "fp64"}),
            "exit 2: --exp-avg-sq-dtype: expected fp32 or bf16, got \"fp64\"; see --help");
  EXPECT_EQ(train_outcome({"--main-grads-dtype", "bf16"}),
            "exit 2: --main-grads-dtype bf16 and --bf16: expected --main-grads-dtype bf16 only with --bf16, got "
            "--main-grads-dtype bf16 alone; use --bf16, or remove --main-grads-dtype bf16");
  EXPECT_EQ(
      train_outcome({"--loss-chunk-size", "-1"}),
      "exit 2: --loss-chunk-size: expected an integer from 0 to 1000000000000, got \"-1\"; use a number in this range");
}

TEST(Flags, MegatronsNameOfBf16Gradients) {
  const Options options = train_options({"--bf16", "--grad-reduce-in-bf16"});
  EXPECT_EQ(options.optimizer.main_grads_dtype, DType::kBf16);
  const auto found = std::ranges::find(options.effective, "main-grads-dtype", &ConfigEntry::name);
  EXPECT_EQ(found->origin, "derived");
}

TEST(Flags, StrategiesOfSharding) {
  const auto sharding_of = [](const std::vector<std::string>& words) {
    return train_options(words).parallel.sharding();
  };
  EXPECT_EQ(sharding_of({}), ShardingStrategy::kNoShard);
  EXPECT_EQ(sharding_of({"--use-megatron-fsdp", "--fsdp-double-buffer"}), ShardingStrategy::kNoShard);
  EXPECT_EQ(sharding_of({"--use-distributed-optimizer"}), ShardingStrategy::kOptim);
  EXPECT_EQ(sharding_of({"--data-parallel-sharding-strategy", "optim"}), ShardingStrategy::kOptim);
  EXPECT_EQ(sharding_of({"--use-distributed-optimizer", "--data-parallel-sharding-strategy", "optim_grads_params"}),
            ShardingStrategy::kOptimGradsParams);
}

TEST(Flags, TheLastOfTwoWins) {
  EXPECT_EQ(train_options({"--seed", "1", "--seed", "2"}).train.seed, 2);
  EXPECT_FALSE(train_options({"--swiglu", "--swiglu=false"}).model.swiglu);
  const Options of_lists = train_options(
      words("--recompute-granularity selective --recompute-modules mlp layernorm --lr=2 "
            "--recompute-modules=core_attn --profile-ranks 0 --recompute-modules mlp_act --profile-ranks 1 2"));
  EXPECT_THAT(of_lists.memory.recompute_modules, ElementsAre("mlp_act"));
  EXPECT_THAT(of_lists.logging.profile_ranks, ElementsAre("1", "2"));
  EXPECT_EQ(of_lists.train.schedule.lr, 2);
}

TEST(Flags, TextsAreTakenAsTheyAre) {
  for (const std::string text : {"", "[a,b]", "{}", "a\nb \"c\" \\", "-1", "--", "%%", "ä"}) {
    const Parsed parsed = parse_flags(App::kGenerate, {"--load", "x", "--prompt=" + text});
    EXPECT_EQ(parsed.options.generate.prompt, text);
  }
  EXPECT_EQ(outcome(App::kGenerate, {"--load", "x", "--prompt", "\xff"}),
            "exit 2: --prompt: expected text in UTF-8, got bytes that are not UTF-8; see --help");
}

TEST(Flags, UnknownFlagNamesTheNearest) {
  EXPECT_EQ(train_outcome({"--num-layer", "3"}),
            "exit 2: --num-layer: unknown flag of train; did you mean --num-layers?");
  EXPECT_EQ(train_outcome({"--global_batch_size=3"}),
            "exit 2: --global_batch_size: unknown flag of train; did you mean --global-batch-size?");
  EXPECT_EQ(train_outcome({"--swilgu"}), "exit 2: --swilgu: unknown flag of train; did you mean --swiglu?");
  EXPECT_EQ(train_outcome({"--wallpaper"}), "exit 2: --wallpaper: unknown flag of train; see train --help");
  EXPECT_EQ(train_outcome({"--temperature", "1"}),
            "exit 2: --temperature: a flag of generate, not of train; remove it");
  EXPECT_EQ(train_outcome({"stray"}), "exit 2: \"stray\": an argument without a flag; see train --help");
  EXPECT_THAT(train_outcome({std::string(100'000, '-') + "x"}), HasSubstr("unknown flag of train"));
  // Found by fuzzing: the message stays one line.
  EXPECT_EQ(train_outcome({"--wall\npaper\x1b[1m"}),
            "exit 2: --wall\\npaper\\x1b[1m: unknown flag of train; see train --help");
}

TEST(Flags, AHintIsNoFartherThanAThirdOfTheLetters) {
  EXPECT_EQ(train_outcome({"--sed"}), "exit 2: --sed: unknown flag of train; did you mean --seed?");
  EXPECT_EQ(train_outcome({"--lrx"}), "exit 2: --lrx: unknown flag of train; did you mean --lr?");
  // 2 letters of 4 from --split and --load.
  EXPECT_EQ(train_outcome({"--spla"}), "exit 2: --spla: unknown flag of train; see train --help");
  EXPECT_EQ(train_outcome({"--lodo"}), "exit 2: --lodo: unknown flag of train; see train --help");
}

TEST(Flags, AllUnknownFlagsAreReportedTogether) {
  EXPECT_EQ(train_outcome({"--num-layer", "3", "--mtp-num-layers=8", "--fp16", "--temperature", "1", "--wallpaper",
                           "-1", "red", "--mtp-num-layers=4", "--seed", "7"}),
            "exit 2: unknown flags of train: --num-layer (did you mean --num-layers?), --temperature (a flag of "
            "generate), --wallpaper; features of Megatron-LM that are not built: multi-token prediction "
            "(--mtp-num-layers), fp16 training (--fp16); see train --help and docs/from-megatron.md");
  EXPECT_EQ(outcome(App::kTrain, {"stray", "--wallpaper", "red"}),
            "exit 2: unknown flags of train: \"stray\" (an argument without a flag), --wallpaper; see train --help");
}

TEST(Flags, ValuesAndUnknownFlagsAreReportedTogether) {
  EXPECT_EQ(
      train_outcome({"--seed", "x", "--wallpaper", "--batch-size", "4", "--lr-decay-style", "cosin", "--lr"}),
      "exit 2: unknown flags of train: --wallpaper, --batch-size (of Megatron-LM; use --micro-batch-size); wrong "
      "values: "
      "--lr (expected a number of at least 0 and finite, in fp32, got no value), --seed (expected an integer from "
      "0 to 4294967295, got \"x\"), --lr-decay-style (expected constant, linear, cosine, WSD or "
      "inverse-square-root, got \"cosin\"); see train --help");
}

TEST(Flags, MissingValueNamesTheFlag) {
  EXPECT_EQ(train_outcome({"--seed"}),
            "exit 2: --seed: expected an integer from 0 to 4294967295, got no value; see train --help");
  EXPECT_EQ(train_outcome({"--seed", "--swiglu"}),
            "exit 2: --seed: expected an integer from 0 to 4294967295, got no value; see train --help");
  EXPECT_EQ(train_outcome({"--config"}),
            "exit 2: --config: expected a list of texts in UTF-8, got no value; see train --help");
}

TEST(Flags, OutOfRangeNamesTheValidValues) {
  EXPECT_EQ(train_outcome({"--num-layers", "0"}),
            "exit 2: --num-layers: expected an integer from 1 to 10000, got \"0\"; use a number in this range");
  EXPECT_EQ(train_outcome({"--num-layers", "2.5"}),
            "exit 2: --num-layers: expected an integer from 1 to 10000, got \"2.5\"; use a number in this range");
  EXPECT_EQ(train_outcome({"--seed", "99999999999999999999"}),
            "exit 2: --seed: expected an integer from 0 to 4294967295, got \"99999999999999999999\"; use a number in "
            "this range");
  EXPECT_EQ(
      train_outcome({"--lr", "-1"}),
      "exit 2: --lr: expected a number of at least 0 and finite, in fp32, got \"-1\"; use a number in this range");
  EXPECT_EQ(
      train_outcome({"--lr", "nan"}),
      "exit 2: --lr: expected a number of at least 0 and finite, in fp32, got \"nan\"; use a number in this range");
  EXPECT_EQ(
      train_outcome({"--lr", "1e999"}),
      "exit 2: --lr: expected a number of at least 0 and finite, in fp32, got \"1e999\"; use a number in this range");
  EXPECT_EQ(train_outcome({"--adam-beta1", "1"}),
            "exit 2: --adam-beta1: expected a number of at least 0 and below 1, got \"1\"; use a number in this range");
  EXPECT_EQ(train_outcome({"--lr-decay-style", "cosin"}),
            "exit 2: --lr-decay-style: expected constant, linear, cosine, WSD or inverse-square-root, got \"cosin\"; "
            "did you mean cosine?");
  const std::string long_name(65, 'c');
  EXPECT_EQ(train_outcome({"--lr-decay-style", long_name}),
            "exit 2: --lr-decay-style: expected constant, linear, cosine, WSD or inverse-square-root, got \"" +
                long_name + "\"; see --help");
  EXPECT_EQ(train_outcome({"--swiglu=yes"}), "exit 2: --swiglu: expected true or false, got \"yes\"; see --help");
  EXPECT_EQ(train_outcome({"--recompute-granularity", "selective", "--recompute-modules", "mlp", "experts"}),
            "exit 2: --recompute-modules: expected a list of core_attn, layernorm, mlp, mlp_act, moe, moe_act, "
            "shared_experts or own, got [\"mlp\", \"experts\"]; see --help");
  EXPECT_EQ(train_outcome({"--device", "tpu"}),
            "exit 2: --device: expected cpu or cuda, got \"tpu\"; did you mean cpu?");
  EXPECT_EQ(train_outcome({"--device", "cuda"}),
            cuda_built()
                ? "valid"
                : "exit 2: --device cuda: expected cpu, in a build without the CUDA backend, got cuda; configure "
                  "with -DMEGALITH_CUDA=ON");
}

TEST(Flags, ContradictionsNameBothFlags) {
  EXPECT_EQ(train_outcome({"--data-path", "x"}),
            "exit 2: --data-path and --mock-data: expected one of them, got both; remove --mock-data to train on the "
            "dataset");
  EXPECT_EQ(train_outcome({"--train-samples", "640", "--global-batch-size", "32"}),
            "exit 2: --train-iters and --train-samples: expected one of them, got both; remove one, as the number of "
            "steps follows from samples and batch sizes");
  EXPECT_EQ(train_outcome({"--global-batch-size", "10", "--micro-batch-size", "4"}),
            "exit 2: --global-batch-size and --micro-batch-size: expected a global batch size that is a multiple of "
            "the micro batch size, got --global-batch-size 10 and --micro-batch-size 4; use --global-batch-size 12");
  EXPECT_EQ(
      train_outcome({"--save-interval", "10"}),
      "exit 2: --save-interval and --save: expected --save-interval only with --save, got --save-interval alone; use "
      "--save, or remove --save-interval");
  EXPECT_EQ(train_outcome({"--finetune"}),
            "exit 2: --finetune and --load: expected --finetune only with --load, got --finetune alone; use --load, or "
            "remove --finetune");
  EXPECT_EQ(train_outcome({"--rotary-base", "500000"}),
            "exit 2: --rotary-base and --position-embedding-type: expected --rotary-base only with "
            "--position-embedding-type rope, got --position-embedding-type learned_absolute; use "
            "--position-embedding-type rope, or remove --rotary-base");
  EXPECT_EQ(
      train_outcome({"--lr-wsd-decay-iters", "10"}),
      "exit 2: --lr-wsd-decay-iters and --lr-decay-style: expected --lr-wsd-decay-iters only with --lr-decay-style "
      "WSD, got --lr-decay-style linear; use --lr-decay-style WSD, or remove --lr-wsd-decay-iters");
  EXPECT_EQ(train_outcome({"--recompute-modules", "mlp"}),
            "exit 2: --recompute-modules and --recompute-granularity: expected --recompute-modules only with "
            "--recompute-granularity selective, got --recompute-granularity none; use --recompute-granularity "
            "selective, or remove --recompute-modules");
  EXPECT_EQ(train_outcome({"--cuda-graph-modules", "attn"}),
            "exit 2: --cuda-graph-modules and --cuda-graph-impl: expected --cuda-graph-modules only with "
            "--cuda-graph-impl local, got --cuda-graph-impl none; use --cuda-graph-impl local, or remove "
            "--cuda-graph-modules");
  EXPECT_EQ(
      train_outcome({"--cuda-graph-impl", "local", "--cuda-graph-scope", "moe_combine"}),
      "exit 2: --cuda-graph-modules: expected a list of attn, mlp, moe_router, moe_preprocess, moe, own or layer, "
      "got \"moe_combine\"; see --help");
  EXPECT_THAT(
      train_outcome({"--cuda-graph-impl", "full_iteration"}),
      HasSubstr("exit 2: --cuda-graph-impl: expected none or local, got full_iteration; use local, which captures"));
  EXPECT_EQ(train_outcome({"--recompute-granularity", "full", "--recompute-num-layers", "3"}),
            "exit 2: --recompute-num-layers and --num-layers: expected --recompute-num-layers <= --num-layers, got "
            "--recompute-num-layers 3 and --num-layers 2; lower --recompute-num-layers");
  EXPECT_EQ(
      train_outcome({"--tokenizer-type", "null"}),
      "exit 2: --tokenizer-type null and --vocab-size: expected --tokenizer-type null only with --vocab-size above "
      "0, got --vocab-size 0; use --vocab-size above 0, or remove --tokenizer-type null");
}

TEST(Flags, MegatronsNameOfATypeIsTaken) {
  const Options ours = train_options({"--vocab-size", "100", "--tokenizer-type", "null"});
  const Options theirs = train_options({"--vocab-size", "100", "--tokenizer-type", "NullTokenizer"});
  EXPECT_EQ(theirs.data.tokenizer_type, TokenizerType::kNull);
  EXPECT_EQ(config_of(theirs), config_of(ours));
}

TEST(Flags, WhatIsNotBuiltYetSaysSo) {
  EXPECT_EQ(train_outcome({"--attention-dropout", "0.1"}),
            "exit 2: --attention-dropout: expected 0, other values are not built yet, got 0.1; leave it out; "
            "--hidden-dropout is there");
}

TEST(Flags, WhatIsRequiredIsNamed) {
  EXPECT_EQ(
      outcome(App::kTrain, {}),
      "exit 2: --num-layers: missing; set it by the flag or in a file with --config, such as configs/quickstart.toml");
  EXPECT_EQ(train_outcome({"--mock-data=false"}),
            "exit 2: --data-path or --mock-data: missing; give the prefix of an indexed dataset that prepare wrote");
  EXPECT_EQ(train_outcome({"--lr", "0"}), "exit 2: --lr: expected above 0, got 0; raise it, or add --skip-train");
  EXPECT_EQ(train_outcome({"--lr", "0", "--skip-train"}), "valid");
  EXPECT_EQ(outcome(App::kGenerate, {}), "exit 2: --load: missing; give the folder that train --save wrote");
  EXPECT_EQ(outcome(App::kReport, {}), "exit 2: METRICS.jsonl: missing; give a file that train --metrics-jsonl wrote");
}

TEST(Flags, SplitIsOneToThreeShares) {
  for (const std::string good : {"1", "95,5", "969, 30, 1", "0.9,0.1,0"})
    EXPECT_EQ(train_outcome({"--split", good}), "valid");
  for (const std::string bad : {"", "a", "1,", ",1", "1,2,3,4", "-1,2", "0,0", "1;2", "nan", "inf,1", "1 2"}) {
    EXPECT_EQ(train_outcome({"--split=" + bad}),
              "exit 2: --split: expected one to three weights >= 0 for training, validation and test, not all 0, as "
              "969,30,1, got '" +
                  bad + "'; they are the shares of documents");
  }
}

TEST(Flags, PlanAndReportTakeTheirOwn) {
  const Parsed plan = parse_flags(App::kPlan, {"--num-layers=2", "--hidden-size=64", "--num-attention-heads=4",
                                               "--seq-length=32", "--world-size=64"});
  EXPECT_EQ(plan.options.parallel.world_size, 64);
  const Parsed report = parse_flags(App::kReport, {"a.jsonl", "--output", "r.html", "b.jsonl"});
  EXPECT_THAT(report.options.report.inputs, ElementsAre("a.jsonl", "b.jsonl"));
  EXPECT_EQ(report.options.report.output, "r.html");
}

TEST(Flags, HelpNamesEveryFlagOfTheProgram) {
  Options options;
  Requests requests;
  for (const App app : kApps) {
    EXPECT_EQ(short_help(app), parse_flags(app, {"-h", "--help"}).print);
    EXPECT_EQ(short_help(app), parse_flags(app, {"-h-version"}).print);
    const std::string help = parse_flags(app, {"--help-all"}).print;
    for (const Flag& flag : make_table(options, requests)) {
      if (flag.traits.positional) continue;
      const std::string line = "\n  --" + std::string(flag.name);  // a long name has its text on the next line
      const bool is_listed = help.find(line + " ") != std::string::npos || help.find(line + "\n") != std::string::npos;
      EXPECT_EQ(is_listed, takes(flag, app)) << flag.name;
    }
  }
  EXPECT_THAT(help_text(App::kTrain), HasSubstr("\nTraining:\n"
                                                "  --micro-batch-size SAMPLES                  batch size per rank and "
                                                "forward pass [default 1; 1 to 1048576]\n"));
  EXPECT_THAT(help_text(App::kTrain), HasSubstr("\nTesting:\n  --check-hazards"));
}

TEST(Flags, VersionSaysProgramNumberAndCommit) {
  EXPECT_EQ(parse_flags(App::kPlan, {"--version"}).print,
            "megalith plan " + std::string(program_version()) + " (commit " + std::string(program_commit()) + ")\n");
  EXPECT_THAT(std::string(program_commit()), ::testing::MatchesRegex("unknown|[0-9a-f]+(-dirty)?"));
}

}  // namespace
}  // namespace megalith::test
