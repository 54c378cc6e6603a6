// --print-config: every value with its origin, and a dump that reads back as the same configuration.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "apps/checkpoint/checkpoint_flags.h"
#include "apps/flags/flags_table.h"
#include "tests/support/error_of.h"
#include "tests/support/words.h"
#include "tests/unit/apps/flags_support.h"

namespace megalith {
namespace {

using testing::AnyOf;
using testing::HasSubstr;
using testing::StartsWith;
using Words = std::vector<std::string>;

class RoundTrip : public test::InFolder {
 protected:
  static std::map<std::string, ConfigEntry> by_name(const Options& options) {
    std::map<std::string, ConfigEntry> entries;
    for (const ConfigEntry& entry : options.effective) entries[entry.name] = entry;
    return entries;
  }

  // The dump of `options` gives them again, out of the file but for defaults; again gives the options read back.
  static Options expect_read_back(FlagParser& parser, App app, const Options& options) {
    const std::string dump = print_config(app, options);
    write("dump.toml", dump);
    Options again = parser.parse({"--config", "dump.toml"}).options;
    EXPECT_EQ(config_of(again), config_of(options));
    auto before = by_name(options);
    for (const ConfigEntry& entry : again.effective) {
      const bool is_default = before.at(entry.name).origin == "default";
      EXPECT_THAT(entry.origin, StartsWith(is_default ? "default" : "dump.toml:")) << entry.name;
    }
    return again;
  }
};

Words moe(Words words) {
  words.insert(words.end(), {"--num-experts", "4", "--swiglu", "--disable-bias-linear"});
  return words;
}

std::vector<std::string> offload(std::vector<std::string> more) {
  more.insert(more.end(), {"--fine-grained-activation-offloading", "--offload-modules", "core_attn:0-1", "act"});
  return more;
}

std::vector<std::string> samples(std::vector<std::string> more) {
  more.insert(more.end(), {"--train-iters", "0", "--train-samples", "640"});
  if (std::ranges::find(more, "--global-batch-size") == more.end())
    more.insert(more.end(), {"--global-batch-size", "32"});
  return more;
}

// Flags that a value other than the default needs beside it. A new flag of train belongs here.
const std::map<std::string, Words>& values_of_train() {
  static const std::map<std::string, Words> kValues = {
      {"num-layers", {"--num-layers", "3"}},
      {"hidden-size", {"--hidden-size", "96"}},
      {"ffn-hidden-size", {"--ffn-hidden-size", "100"}},
      {"num-attention-heads", {"--num-attention-heads", "8"}},
      {"group-query-attention", {"--group-query-attention"}},
      {"num-query-groups", {"--num-query-groups", "2"}},
      {"kv-channels", {"--kv-channels", "24"}},
      {"seq-length", {"--seq-length", "48"}},
      {"max-position-embeddings", {"--max-position-embeddings", "64"}},
      {"vocab-size", {"--vocab-size", "512"}},
      {"make-vocab-size-divisible-by", {"--make-vocab-size-divisible-by", "1"}},
      {"position-embedding-type", {"--position-embedding-type", "none"}},
      {"rotary-base", {"--rotary-base", "5e5", "--position-embedding-type", "rope"}},
      {"rotary-percent", {"--rotary-percent", "0.5", "--position-embedding-type", "rope"}},
      {"use-rope-scaling", {"--use-rope-scaling", "--position-embedding-type", "rope"}},
      {"rope-scaling-factor",
       {"--rope-scaling-factor", "32", "--use-rope-scaling", "--position-embedding-type", "rope"}},
      {"rope-scaling-low-freq-factor",
       {"--rope-scaling-low-freq-factor", "0.3", "--use-rope-scaling", "--position-embedding-type", "rope"}},
      {"rope-scaling-high-freq-factor",
       {"--rope-scaling-high-freq-factor", "4.1", "--use-rope-scaling", "--position-embedding-type", "rope"}},
      {"rope-scaling-original-max-position-embeddings",
       {"--rope-scaling-original-max-position-embeddings", "8191", "--use-rope-scaling", "--position-embedding-type",
        "rope"}},
      {"normalization", {"--normalization", "RMSNorm"}},
      {"norm-epsilon", {"--norm-epsilon", "1e-6"}},
      {"qk-layernorm", {"--qk-layernorm"}},
      {"swiglu", {"--swiglu"}},
      {"activation-func", {"--activation-func", "gelu"}},
      {"disable-bias-linear", {"--disable-bias-linear"}},
      {"add-qkv-bias", {"--add-qkv-bias"}},
      {"add-attn-proj-bias", {"--add-attn-proj-bias"}},
      {"hf-model-type",
       {"--hf-model-type", "mistral", "--position-embedding-type", "rope", "--normalization", "RMSNorm", "--swiglu",
        "--disable-bias-linear"}},
      {"untie-embeddings-and-output-weights", {"--untie-embeddings-and-output-weights"}},
      {"hidden-dropout", {"--hidden-dropout", "0.1"}},
      {"init-method-std", {"--init-method-std", "0.006"}},
      {"bf16", {"--bf16"}},
      {"num-experts", {"--num-experts", "8", "--swiglu", "--disable-bias-linear"}},
      {"moe-layer-freq", moe({"--moe-layer-freq", "[0]+[1]"})},
      {"moe-ffn-hidden-size", moe({"--moe-ffn-hidden-size", "48"})},
      {"moe-router-topk", moe({"--moe-router-topk", "3"})},
      {"moe-router-score-function", moe({"--moe-router-score-function", "sigmoid"})},
      {"moe-router-pre-softmax", moe({"--moe-router-pre-softmax"})},
      {"moe-router-topk-scaling-factor", moe({"--moe-router-topk-scaling-factor", "2.5"})},
      {"moe-router-num-groups", moe({"--moe-router-num-groups", "2", "--moe-router-group-topk", "1"})},
      {"moe-router-group-topk", moe({"--moe-router-group-topk", "1", "--moe-router-num-groups", "2"})},
      {"moe-router-load-balancing-type", moe({"--moe-router-load-balancing-type", "seq_aux_loss", "none"})},
      {"moe-aux-loss-coeff",
       moe({"--moe-aux-loss-coeff", "0", "0.01", "--moe-router-load-balancing-type", "none", "seq_aux_loss"})},
      {"moe-z-loss-coeff", moe({"--moe-z-loss-coeff", "0.001"})},
      {"moe-router-enable-expert-bias",
       moe({"--moe-router-enable-expert-bias", "--moe-router-score-function", "sigmoid"})},
      {"moe-router-bias-update-rate", moe({"--moe-router-bias-update-rate", "0.01", "--moe-router-enable-expert-bias",
                                           "--moe-router-score-function", "sigmoid"})},
      {"moe-router-force-load-balancing", moe({"--moe-router-force-load-balancing"})},
      {"moe-expert-capacity-factor", moe({"--moe-expert-capacity-factor", "1.25"})},
      {"moe-token-drop-policy", moe({"--moe-token-drop-policy", "position", "--moe-expert-capacity-factor", "1.25"})},
      {"moe-pad-expert-input-to-capacity",
       moe({"--moe-pad-expert-input-to-capacity", "--moe-expert-capacity-factor", "1.25"})},
      {"moe-shared-expert-intermediate-size", moe({"--moe-shared-expert-intermediate-size", "24"})},
      {"moe-shared-expert-gate", moe({"--moe-shared-expert-gate", "--moe-shared-expert-intermediate-size", "24"})},
      {"moe-grouped-gemm", moe({"--moe-grouped-gemm"})},
      {"moe-combine-groups", moe({"--moe-combine-groups", "2"})},
      {"expert-model-parallel-size", moe({"--expert-model-parallel-size", "2"})},
      {"expert-tensor-parallel-size", moe({"--expert-tensor-parallel-size", "2"})},
      {"moe-token-dispatcher-type", moe({"--moe-token-dispatcher-type", "alltoall"})},
      {"moe-expert-rank-capacity-factor", moe({"--moe-expert-rank-capacity-factor", "1.25"})},
      {"moe-shared-expert-overlap",
       moe({"--moe-shared-expert-overlap", "--moe-shared-expert-intermediate-size", "24"})},
      {"use-transformer-engine-op-fuser", moe({"--use-transformer-engine-op-fuser", "--moe-grouped-gemm"})},
      {"micro-batch-size", {"--micro-batch-size", "4"}},
      {"global-batch-size", {"--global-batch-size", "32"}},
      {"train-iters", {"--train-iters", "7"}},
      {"train-samples", {"--train-iters", "0", "--train-samples", "640", "--global-batch-size", "32"}},
      {"rampup-batch-size", samples({"--rampup-batch-size", "8", "8", "100", "--global-batch-size", "32"})},
      {"skip-train", {"--skip-train"}},
      {"seed", {"--seed", "4294967295"}},
      {"deterministic-mode", {"--deterministic-mode"}},
      {"exit-interval", {"--exit-interval", "3"}},
      {"exit-duration-in-mins", {"--exit-duration-in-mins", "0.1"}},
      {"stop-file", {"--stop-file", "stop \"now\"\\"}},
      {"max-skipped-steps", {"--max-skipped-steps", "0"}},
      {"check-weight-hash-interval", {"--check-weight-hash-interval", "5"}},
      {"lr", {"--lr", "3.3333333333333335e-05"}},
      {"min-lr", {"--min-lr", "1e-9"}},
      {"lr-decay-style", {"--lr-decay-style", "inverse-square-root"}},
      {"lr-decay-iters", {"--lr-decay-iters", "200"}},
      {"lr-decay-samples", samples({"--lr-decay-samples", "500"})},
      {"lr-warmup-samples", samples({"--lr-warmup-samples", "30"})},
      {"lr-wsd-decay-samples", samples({"--lr-wsd-decay-samples", "9", "--lr-decay-style", "WSD"})},
      {"lr-warmup-iters", {"--lr-warmup-iters", "10"}},
      {"lr-warmup-fraction", {"--lr-warmup-fraction", "0.013"}},
      {"lr-warmup-init", {"--lr-warmup-init", "1e-7"}},
      {"lr-wsd-decay-iters", {"--lr-wsd-decay-iters", "9", "--lr-decay-style", "WSD"}},
      {"lr-wsd-decay-style", {"--lr-wsd-decay-style", "minus_sqrt"}},
      {"adam-beta1", {"--adam-beta1", "0.8"}},
      {"adam-beta2", {"--adam-beta2", "0.95"}},
      {"adam-eps", {"--adam-eps", "1e-15"}},
      {"weight-decay", {"--weight-decay", "0"}},
      {"clip-grad", {"--clip-grad", "0.3"}},
      {"main-grads-dtype", {"--main-grads-dtype", "bf16", "--bf16"}},
      {"grad-reduce-in-bf16", {"--grad-reduce-in-bf16", "--bf16"}},
      {"megatron-fsdp-grad-comm-dtype",
       {"--megatron-fsdp-grad-comm-dtype", "fp32", "--data-parallel-sharding-strategy", "optim_grads"}},
      {"exp-avg-dtype", {"--exp-avg-dtype", "bf16"}},
      {"exp-avg-sq-dtype", {"--exp-avg-sq-dtype", "bf16"}},
      {"data-path", {"--mock-data=false", "--data-path", "0.3", "a b", "0.7", "ä"}},
      {"split", {"--split", "90,10"}},
      {"mock-data", {"--mock-data"}},
      {"tokenizer-type", {"--tokenizer-type", "null", "--vocab-size", "100"}},
      {"vocab-file", {"--vocab-file", "vocab.json"}},
      {"merge-file", {"--merge-file", "merges.txt"}},
      {"tokenizer-model", {"--tokenizer-model", "tokenizer.json"}},
      {"tiktoken-pattern", {"--tiktoken-pattern", "o200k"}},
      {"tiktoken-special-tokens", {"--tiktoken-special-tokens", "<|a|>=7", "<|b|>"}},
      {"eod-token", {"--eod-token", "</s>"}},
      {"eval-interval", {"--eval-interval", "9"}},
      {"eval-iters", {"--eval-iters", "9"}},
      {"save", {"--save", "kept"}},
      {"load", {"--load", "kept"}},
      {"save-interval", {"--save-interval", "9", "--save", "kept"}},
      {"async-save", {"--async-save", "--save", "kept"}},
      {"keep-last", {"--keep-last", "9", "--save", "kept"}},
      {"peak-tflops", {"--peak-tflops", "100"}},
      {"max-failed-saves", {"--max-failed-saves", "9", "--save", "kept"}},
      {"ckpt-step", {"--ckpt-step", "9", "--load", "kept"}},
      {"finetune", {"--finetune", "--load", "kept"}},
      {"no-load-optim", {"--no-load-optim", "--load", "kept"}},
      {"use-checkpoint-args", {"--use-checkpoint-args", "--load", "kept"}},
      {"tensor-model-parallel-size", {"--tensor-model-parallel-size", "2"}},
      {"sequence-parallel", {"--sequence-parallel", "--tensor-model-parallel-size", "2"}},
      {"context-parallel-size", {"--context-parallel-size", "2"}},
      {"cp-comm-type", {"--cp-comm-type", "a2a", "--context-parallel-size", "2"}},
      {"use-distributed-optimizer", {"--use-distributed-optimizer"}},
      {"data-parallel-sharding-strategy", {"--data-parallel-sharding-strategy", "optim_grads"}},
      {"expert-data-parallel-sharding-strategy",
       moe({"--expert-data-parallel-sharding-strategy", "optim_grads_params", "--use-distributed-optimizer"})},
      {"use-megatron-fsdp", {"--use-megatron-fsdp"}},
      {"fsdp-double-buffer", {"--fsdp-double-buffer"}},
      {"fsdp-unit-slots", {"--fsdp-unit-slots", "3", "--data-parallel-sharding-strategy", "optim_grads_params"}},
      {"fsdp-gradient-slots", {"--fsdp-gradient-slots", "1", "--data-parallel-sharding-strategy", "optim_grads"}},
      {"fsdp-prefetch", {"--fsdp-prefetch", "0", "--data-parallel-sharding-strategy", "optim_grads_params"}},
      {"fsdp-reduce-grads", {"--fsdp-reduce-grads", "last", "--data-parallel-sharding-strategy", "optim_grads_params"}},
      {"fsdp-embedding-and-head",
       {"--fsdp-embedding-and-head", "sharded", "--data-parallel-sharding-strategy", "optim_grads_params"}},
      {"num-distributed-optimizer-instances",
       {"--num-distributed-optimizer-instances", "2", "--use-distributed-optimizer"}},
      {"outer-dp-sharding-strategy",
       {"--outer-dp-sharding-strategy", "optim", "--num-distributed-optimizer-instances", "2",
        "--data-parallel-sharding-strategy", "optim_grads_params"}},
      {"overlap-grad-reduce", {"--overlap-grad-reduce"}},
      {"overlap-param-gather", {"--overlap-param-gather", "--use-distributed-optimizer", "--overlap-grad-reduce"}},
      {"ddp-bucket-size", {"--ddp-bucket-size", "9"}},
      {"distributed-timeout-minutes", {"--distributed-timeout-minutes", "9"}},
      {"comm-timeout", {"--comm-timeout", "0.5"}},
      {"comm-dump", {"--comm-dump", ""}},
      {"recompute-granularity", {"--recompute-granularity", "full"}},
      {"cuda-graph-impl", {"--cuda-graph-impl", "local"}},
      {"cuda-graph-modules", {"--cuda-graph-scope", "attn", "mlp", "--cuda-graph-impl", "local"}},
      {"cuda-graph-warmup-steps", {"--cuda-graph-warmup-steps", "3", "--cuda-graph-impl", "local"}},
      {"recompute-modules", {"--recompute-modules", "mlp", "layernorm", "--recompute-granularity", "selective"}},
      {"recompute-method", {"--recompute-method", "block", "--recompute-granularity", "full"}},
      {"recompute-num-layers", {"--recompute-num-layers", "2", "--recompute-granularity", "full"}},
      {"loss-chunk-size", {"--loss-chunk-size", "128"}},
      {"fine-grained-activation-offloading", offload({})},
      {"offload-modules", offload({})},
      {"activation-offload-fraction", offload({"--activation-offload-fraction", "0.5"})},
      {"offload-mb-per-layer", offload({"--offload-mb-per-layer", "12"})},
      {"offload-distance", offload({"--offload-distance", "0"})},
      {"offload-slowdown", offload({"--offload-slowdown", "0.1", "--rates", "rates.toml"})},
      {"min-offload-bytes", offload({"--min-offload-bytes", "123"})},
      {"min-offloaded-tensor-size", offload({"--min-offloaded-tensor-size", "123"})},
      {"rates", offload({"--rates", "rates.toml"})},
      {"log-interval", {"--log-interval", "9"}},
      {"print-actions", {"--print-actions"}},
      {"log-throughput", {"--log-throughput"}},
      {"metrics-jsonl", {"--metrics-jsonl", "m\t.jsonl"}},
      {"tensorboard-dir", {"--tensorboard-dir", "events"}},
      {"trace", {"--trace", "trace.json"}},
      {"profile-step-start", {"--profile-step-start", "1"}},
      {"profile-step-end", {"--profile-step-end", "99"}},
      {"profile-ranks", {"--profile-ranks", "1", "2"}},
      {"pipeline-model-parallel-size", {"--pipeline-model-parallel-size", "2"}},
      {"pipeline-schedule", {"--pipeline-schedule", "zb-h1"}},
      {"num-layers-per-virtual-pipeline-stage", {"--num-layers-per-virtual-pipeline-stage", "1"}},
      {"num-virtual-stages-per-pipeline-rank", {"--num-virtual-stages-per-pipeline-rank", "2"}},
      {"pipeline-model-parallel-layout", {"--pipeline-model-parallel-layout", "Et|tL"}},
      {"decoder-first-pipeline-num-layers",
       {"--decoder-first-pipeline-num-layers", "1", "--pipeline-model-parallel-size", "2"}},
      {"decoder-last-pipeline-num-layers",
       {"--decoder-last-pipeline-num-layers", "1", "--pipeline-model-parallel-size", "2"}},
      {"account-for-embedding-in-pipeline-split", {"--account-for-embedding-in-pipeline-split"}},
      {"account-for-loss-in-pipeline-split", {"--account-for-loss-in-pipeline-split"}},
      {"delay-wgrad-compute", {"--delay-wgrad-compute"}},
      {"check-hazards", {"--check-hazards"}},
      {"suppress-wait", {"--suppress-wait", "4"}},
  };
  return kValues;
}

// Only the default can be given yet, or nothing else on a machine without a GPU.
const std::set<std::string> kOneValue = {"optimizer",         "device",           "profile",
                                         "attention-dropout", "moe-router-dtype", "tp-comm-overlap"};

TEST_F(RoundTrip, EveryFlagOfTrainOutOfTheCommandLine) {
  FlagParser parser(App::kTrain);
  Options defaults;
  Requests requests;
  const auto usual = by_name(parser.parse(test::with_small_run({})).options);
  int flags = 0;
  for (const Flag& flag : make_table(defaults, requests)) {
    if (!takes(flag, App::kTrain) || flag.group == FlagGroup::kProgram) continue;
    const std::string name(flag.name);
    if (kOneValue.contains(name)) continue;
    SCOPED_TRACE(name);
    const auto words = values_of_train().find(name);
    ASSERT_NE(words, values_of_train().end()) << "a value of --" << name << " is missing in this test";
    const Options options = parser.parse(test::with_small_run(words->second)).options;
    const ConfigEntry entry = by_name(options).at(name);
    EXPECT_EQ(entry.origin, "command line");
    EXPECT_TRUE(entry.value != usual.at(name).value || name == "mock-data") << "the default: it shows nothing";
    expect_read_back(parser, App::kTrain, options);
    ++flags;
  }
  EXPECT_GE(flags, 80);
}

// The flags whose values a loaded model may have otherwise without a word. One that is added to these groups is
// compared or told until it is put here too.
TEST_F(RoundTrip, WhatMayDifferFromACheckpointIsListed) {
  Options options;
  Requests requests;
  std::set<std::string_view> free;
  for (const Flag& flag : make_table(options, requests)) {
    const bool counts = flag.group == FlagGroup::kModel || flag.group == FlagGroup::kMoe ||
                        flag.group == FlagGroup::kTraining || flag.group == FlagGroup::kOptimizer ||
                        flag.group == FlagGroup::kData;
    if (counts && on_load(flag) == OnLoad::kFree) free.insert(flag.name);
  }
  const std::set<std::string_view> expected = {
      "group-query-attention",  // says what --num-query-groups is, which is compared
      "init-method-std",        // of weights that are then loaded
      "grad-reduce-in-bf16",    // says what --main-grads-dtype is, which is compared
      "moe-router-dtype",       // there is one
      "moe-grouped-gemm",       // the same bits, as the next
      "use-transformer-engine-op-fuser",
      "moe-pad-expert-input-to-capacity",  // no row is padded
      "skip-train",
      "deterministic-mode",
      "exit-interval",
      "exit-duration-in-mins",
      "stop-file",
      "max-skipped-steps",
      "check-weight-hash-interval",
      "device"};
  EXPECT_EQ(free, expected);
}

// Each flag of the model, at a value that the checkpoint has not: what the table says happens.
TEST_F(RoundTrip, EveryFlagOfTheModelIsCompared) {
  FlagParser parser(App::kTrain);
  Options defaults;
  Requests requests;
  const Words load = {"--load", "kept"};
  const std::map<std::string, std::string> saved = config_of(parser.parse(test::with_small_run({})).options);
  int refused = 0, told = 0;
  for (const Flag& flag : make_table(defaults, requests)) {
    const std::string name(flag.name);
    const OnLoad kind = on_load(flag);
    if (flag.group != FlagGroup::kModel || kOneValue.contains(name) || kind == OnLoad::kFree || kind == OnLoad::kNoted)
      continue;
    SCOPED_TRACE(name);
    Words words = values_of_train().at(name);
    words.insert(words.end(), load.begin(), load.end());
    const Options options = parser.parse(test::with_small_run(words)).options;
    const std::string now = by_name(options).at(name).value;
    const std::string message = error_of(ExitCode::kUsage, [&] { check_same_model(options, "kept/step_7", saved); });
    EXPECT_THAT(message, StartsWith("--load kept/step_7: "));
    EXPECT_THAT(message, HasSubstr("--" + name + " " + saved.at(name)));
    EXPECT_THAT(message, HasSubstr("--" + name + " " + now));
    EXPECT_THAT(message, HasSubstr("; give the model's flags as they were, or --use-checkpoint-args, or "));
    ++refused;
    words.push_back("--finetune");
    const Options tuned = parser.parse(test::with_small_run(words)).options;
    if (kind != OnLoad::kComputes || name == "seq-length") {  // here with learned positions, one for each token
      EXPECT_THAT(error_of(ExitCode::kUsage, [&] { check_same_model(tuned, "kept/step_7", saved); }),
                  HasSubstr("another model"));
      continue;
    }
    const std::string warning = check_same_model(tuned, "kept/step_7", saved);
    EXPECT_THAT(warning, HasSubstr("--" + name + " " + now + " (was " + saved.at(name) + ")"));
    ++told;
  }
  EXPECT_GE(refused, 23);
  EXPECT_GE(told, 6);
}

TEST_F(RoundTrip, EveryFlagOfPlanAndGenerate) {
  const Words plan = test::words(
      "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --bf16 --seq-length 32 --world-size 8 "
      "--swiglu --loss-chunk-size 16 --recompute-granularity selective --device cpu --eod-token </s>");
  const Words generate = {"--load",           "kept",  "--ckpt-step", "5",   "--prompt",      "a \"b\"\n# [c]",
                          "--max-new-tokens", "9",     "--seed",      "1",   "--temperature", "0.7",
                          "--top-k",          "40",    "--top-p",     "0.9", "--device",      "cpu",
                          "--vocab-file",     "v.json"};
  for (const auto& [app, words] : {std::pair{App::kPlan, plan}, {App::kGenerate, generate}}) {
    FlagParser parser(app);
    const Options options = parser.parse(words).options;
    for (const auto& [name, entry] : by_name(options)) {
      const bool given = std::find(words.begin(), words.end(), "--" + name) != words.end();
      EXPECT_EQ(entry.origin == "command line", given) << name << ' ' << entry.origin;
    }
    expect_read_back(parser, app, options);
  }
}

// As file, through the command line of each program that takes it.
TEST_F(RoundTrip, EveryShippedConfiguration) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(MEGALITH_SOURCE_DIR "/configs")) {
    if (entry.path().extension() != ".toml") continue;
    ++files;
    const std::string file = entry.path().filename().string();
    std::filesystem::copy_file(entry.path(), file);
    for (const App app : {App::kTrain, App::kPlan}) {
      SCOPED_TRACE(fmt::format("{} --config {}", name_of(app), file));
      FlagParser parser(app);
      Words words = {"--config", file};
      if (app == App::kTrain) words.emplace_back("--mock-data");
      const Options options = parser.parse(words).options;
      int of_file = 0;
      for (const ConfigEntry& flag : options.effective) {
        EXPECT_THAT(flag.origin, AnyOf("default", "derived", "command line", StartsWith(file + ":"))) << flag.name;
        of_file += flag.origin.starts_with(file) ? 1 : 0;
      }
      EXPECT_GE(of_file, 5);
      expect_read_back(parser, app, options);
    }
  }
  EXPECT_GE(files, 7);
}

TEST_F(RoundTrip, TheCommandLineStandsOverTheFileOverTheDefault) {
  write("a.toml", "log-interval = 3\n\nseed = 3\n");
  write("b.toml", "seed = 4\n");
  FlagParser parser(App::kTrain);
  auto entries = by_name(
      parser.parse(test::with_small_run({"--config", "a.toml", "--config", "b.toml", "--eval-iters", "5"})).options);
  EXPECT_EQ(entries["log-interval"].origin, "a.toml:1");
  EXPECT_EQ(entries["seed"].origin, "b.toml:1");
  EXPECT_EQ(entries["eval-iters"].origin, "command line");
  EXPECT_EQ(entries["eval-interval"].origin, "default");
  EXPECT_EQ(entries["kv-channels"].origin, "derived");
}

// A file of a previous dump gives way to the flags beside it, and names them as the origin.
TEST_F(RoundTrip, ADumpTakesFlagsBesideIt) {
  FlagParser parser(App::kTrain);
  const Options options = parser.parse(test::with_small_run({})).options;
  write("dump.toml", print_config(App::kTrain, options));
  const Options again = parser.parse({"--config", "dump.toml", "--seed", "9"}).options;
  auto expected = config_of(options);
  expected["seed"] = "9";
  EXPECT_EQ(config_of(again), expected);
  EXPECT_EQ(by_name(again).at("seed").origin, "command line");
}

}  // namespace
}  // namespace megalith
