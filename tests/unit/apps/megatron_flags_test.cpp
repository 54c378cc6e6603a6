// Rows of flags that only Megatron-LM has: each listed value is taken, and any other value is refused.
#include "apps/flags/megatron_flags.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "apps/flags/flags_table.h"
#include "core/base/take_part.h"
#include "tests/support/matchers.h"
#include "tests/support/megatron_lines.h"
#include "tests/support/words.h"
#include "tests/unit/apps/flags_support.h"

namespace megalith::test {
namespace {

using Words = std::vector<std::string>;

// Outcome of a run with RoPE in the row's program.
std::string outcome_of(const MegatronRow& row, Words more) {
  if ((row.apps & static_cast<unsigned>(App::kTrain)) != 0) {
    for (const char* word : {"--position-embedding-type", "rope"}) more.emplace_back(word);
    return train_outcome(more);
  }
  for (const char* word : {"--input", "a.txt", "--output-prefix", "a"}) more.emplace_back(word);
  return outcome(App::kPrepare, more);
}

// Values that a row lists, with examples of <int>, <number> and <text>.
Words listed_values(const MegatronFlag& flag) {
  Words values;
  for (std::string_view rest = flag.values; !rest.empty();) {
    const std::string_view value = take_part(rest, '|');
    values.emplace_back(value == "<int>" ? "7" : value == "<number>" ? "0.5" : value == "<text>" ? "a b" : value);
  }
  return values;
}

TEST(MegatronFlags, EachListedValueIsTaken) {
  int flags = 0, values = 0;
  for (const auto& rows : {megatron_taken(), megatron_spellings(), megatron_features()}) {
    for (const MegatronRow& row : rows) {
      for (const MegatronFlag& flag : flags_of(row)) {
        const std::string name = fmt::format("--{}{}", flag.name, flag.name.ends_with('-') ? "x" : "");
        if (row.kind == MegatronKind::kSpelling || (flag.is_toggle() && row.kind != MegatronKind::kTaken)) continue;
        ++flags;
        if (flag.is_toggle()) {
          EXPECT_EQ(outcome_of(row, {name}), "valid") << name;
          continue;
        }
        for (const std::string& value : listed_values(flag)) {
          ++values;
          EXPECT_EQ(outcome_of(row, {name, value}), "valid") << name << " " << value;
          EXPECT_EQ(outcome_of(row, {fmt::format("{}={}", name, value)}), "valid") << name << "=" << value;
        }
      }
    }
  }
  EXPECT_GE(flags, 180);
  EXPECT_GE(values, 90);
}

TEST(MegatronFlags, AnyOtherValueIsRefused) {
  for (const MegatronRow& row : megatron_taken()) {
    for (const MegatronFlag& flag : flags_of(row)) {
      const std::string name = fmt::format("--{}{}", flag.name, flag.name.ends_with('-') ? "x" : "");
      Words wrong = {"another", "2", "-7"};
      if (flag.values == "<text>") wrong = {"\xff"};
      if (flag.values == "<int>") wrong = {"1.5", "another", ""};
      if (flag.values == "<number>") wrong = {"another", ""};
      for (const std::string& value : wrong) {
        if (flag.takes({value})) continue;
        EXPECT_THAT(outcome_of(row, {name, value}), StartsWith("exit 2: " + name)) << value;
        EXPECT_THAT(outcome_of(row, {fmt::format("{}={}", name, value)}), StartsWith("exit 2: " + name)) << value;
      }
      if (!flag.is_toggle()) EXPECT_THAT(outcome_of(row, {name}), StartsWith("exit 2: " + name));
      EXPECT_THAT(outcome_of(row, {name, "1", "2"}), StartsWith("exit 2: " + name));
    }
  }
}

TEST(MegatronFlags, ValuesThatAskForSomethingElseSayWhy) {
  EXPECT_EQ(train_outcome({"--dataloader-type", "cyclic"}),
            "exit 2: --dataloader-type: expected single, got \"cyclic\"; remove it: samples always have the order of "
            "type single, and no token is left out of the loss as padding");
  EXPECT_EQ(train_outcome({"--main-params-dtype=fp16"}),
            "exit 2: --main-params-dtype: expected fp32, got \"fp16\"; remove it: main parameters are always fp32");
  EXPECT_EQ(outcome(App::kPrepare, words("--input a.txt --output-prefix a --workers 8 --partitions 4")),
            "exit 2: --partitions: expected 1, got \"4\"; remove it: prepare uses all processors, or the number of "
            "--workers");
  EXPECT_EQ(train_outcome({"--no-position-embedding"}),
            "exit 2: --no-position-embedding and --position-embedding-type: expected rope or none, got "
            "learned_absolute; use --position-embedding-type");
  EXPECT_EQ(train_outcome(words("--bf16 --accumulate-allreduce-grads-in-fp32 --main-grads-dtype bf16")),
            "exit 2: --accumulate-allreduce-grads-in-fp32 and --main-grads-dtype: expected fp32, got bf16; remove one "
            "of them");
  EXPECT_EQ(train_outcome(words("--bf16 --accumulate-allreduce-grads-in-fp32 --grad-reduce-in-bf16")), "valid");
}

TEST(MegatronFlags, FeaturesAreNamed) {
  EXPECT_EQ(train_outcome({"--fp8_format", "hybrid"}),
            "exit 2: --fp8_format: a feature of Megatron-LM that is not built, FP8; see docs/from-megatron.md");
  EXPECT_EQ(
      train_outcome({"--tokenizer-type", "SentencePieceTokenizer"}),
      "exit 2: --tokenizer-type SentencePieceTokenizer: a feature of Megatron-LM that is not built, SentencePiece "
      "with added special tokens: expected byte, null, GPT2BPETokenizer, HuggingFaceTokenizer, TikTokenizer, "
      "Llama2Tokenizer or GPTSentencePieceTokenizer; see docs/from-megatron.md");
  EXPECT_EQ(train_outcome(words("--fp8-format hybrid --optimizer muon --fp8-recipe delayed")),
            "exit 2: features of Megatron-LM that are not built: FP8 (--fp8-format, --fp8-recipe), Muon (--optimizer "
            "muon); see docs/from-megatron.md");
  EXPECT_EQ(train_outcome({"--rerun-mode", "report_stats"}),
            "exit 2: --rerun-mode: a feature of Megatron-LM that is not built, statistics of rerun steps; see "
            "docs/from-megatron.md");
  EXPECT_EQ(train_outcome({"--batch-size", "4"}),
            "exit 2: --batch-size: a flag of Megatron-LM, not of train; use --micro-batch-size");
  EXPECT_EQ(
      outcome(App::kGenerate, {"--use-flash-attn"}),
      "exit 2: --use-flash-attn: a flag of Megatron-LM, not of generate; remove it: attention is always one fused "
      "kernel with fp32 softmax");
}

TEST(MegatronFlags, EachValueOfAFeatureIsNamed) {
  for (const MegatronRow& row : megatron_values()) {
    for (const MegatronFlag& flag : flags_of(row)) {
      for (const std::string& value : listed_values(flag))
        EXPECT_THAT(train_outcome({fmt::format("--{}", flag.name), value}),
                    HasSubstr(fmt::format("--{} {}: a feature of Megatron-LM that is not built, {}: expected ",
                                          flag.name, value, row.text)));
    }
  }
}

TEST(MegatronFlags, OtherSpellingsMeanTheSame) {
  for (const MegatronRow& row : megatron_spellings()) {
    if (row.kind != MegatronKind::kSpelling) continue;
    for (const MegatronFlag& flag : flags_of(row)) {
      const Words values = listed_values(flag);
      std::string text(row.text);
      if (!values.empty()) text.replace(text.find("{}"), 2, values[0]);
      Words spelled = {fmt::format("--{}", flag.name)};
      spelled.insert(spelled.end(), values.begin(), values.end());
      spelled.emplace_back("--use-mcore-models");
      EXPECT_EQ(train_outcome(spelled), train_outcome(words(text + " --use-mcore-models"))) << flag.name;
    }
  }
  const Options options = train_options(words("--use-rotary-position-embeddings --layernorm-epsilon=1e-6"));
  EXPECT_EQ(config_of(options).at("position-embedding-type"), "\"rope\"");
  EXPECT_EQ(config_of(options).at("norm-epsilon"), "1e-06");
}

TEST(MegatronFlags, TwoWayFlags) {
  for (const char* flag : {"--no-load-rng", "--load-rng", "--check-for-nan-in-loss-and-grad", "--disable-rope-fusion",
                           "--masked_softmax_fusion", "--enable-experimental"})
    EXPECT_EQ(train_outcome({flag}), "valid") << flag;
  EXPECT_EQ(config_of(train_options({"--swiglu", "--no-swiglu"})).at("swiglu"), "false");
  EXPECT_THAT(train_outcome({"--no-attention-softmax-in-fp32"}), HasSubstr("unknown flag of train"));
}

TEST(MegatronFlags, EachFlagOfMegatronIsKnown) {
  Options options;
  Requests requests;
  const FlagTable table = make_table(options, requests);
  std::istringstream names(read_bytes(MEGALITH_SOURCE_DIR "/tests/golden/megatron_lines/names.txt"));
  int built = 0, known = 0;
  for (std::string name; names >> name;) {
    if (std::ranges::any_of(table, [&](const Flag& flag) { return is_named(flag, name); })) {
      ++built;
      continue;
    }
    EXPECT_FALSE(find_megatron_flags(name).empty()) << name;
    ++known;
  }
  EXPECT_GE(built, 190);
  EXPECT_GE(known, 690);
}

TEST(MegatronFlags, RowsDoNotRepeatAFlag) {
  std::set<std::string> seen;
  for (const auto& rows : {megatron_taken(), megatron_spellings(), megatron_features()}) {
    for (const MegatronRow& row : rows) {
      for (const MegatronFlag& flag : flags_of(row)) {
        const std::string key = fmt::format("{} {} {}", flag.name, flag.row->kind == MegatronKind::kFeature, row.apps);
        EXPECT_TRUE(seen.insert(key).second) << flag.name;
      }
    }
  }
}

TEST(MegatronFlags, WhatIsBuiltHasNoRow) {
  Options options;
  Requests requests;
  for (const Flag& flag : make_table(options, requests)) {
    for (const MegatronFlag& found : find_megatron_flags(flag.name, flag.apps))
      EXPECT_TRUE(found.name.ends_with('-')) << flag.name;
  }
}

TEST(MegatronFlags, APlanTakesALineForTrain) {
  EXPECT_EQ(outcome(App::kPlan, with_small_run({"--use-mcore-models"})), "valid");
  EXPECT_THAT(outcome(App::kPlan, with_small_run({})), HasSubstr("--lr (a flag of train)"));
  EXPECT_THAT(outcome(App::kPlan, with_small_run({"--use-mcore-models", "--lr=x"})),
              HasSubstr("exit 2: --lr: expected"));
  EXPECT_THAT(parse_flags(App::kPlan, with_small_run({"--use-mcore-models"})).notices,
              testing::Contains("no effect on a plan: --train-iters, --lr, --mock-data"));
}

TEST(MegatronFlags, ALineOfMegatronMayHaveFlagsThatItIgnores) {
  const auto idle = [](const char* more) {
    return parse_flags(App::kTrain, with_small_run(words(std::string("--use-mcore-models ") + more))).notices.at(1);
  };
  EXPECT_EQ(idle("--moe-token-dispatcher-type alltoall --rotary-percent 0.5 --num-query-groups 2"),
            "no effect in this run: --rotary-percent (only with --position-embedding-type rope), "
            "--moe-token-dispatcher-type (only with --num-experts), --num-query-groups (only with "
            "--group-query-attention)");
  EXPECT_EQ(idle("--tokenizer-type NullTokenizer --vocab-size 99 --tokenizer-model a --tiktoken-pattern v2"),
            "no effect in this run: --tokenizer-model (only with --tokenizer-type HuggingFaceTokenizer, "
            "TikTokenizer, Llama2Tokenizer or GPTSentencePieceTokenizer), --tiktoken-pattern (only with "
            "--tokenizer-type TikTokenizer)");
  const Options options =
      train_options(words("--use-mcore-models --num-query-groups 2 --vocab-file v.json --merge-file m.txt"));
  EXPECT_EQ(config_of(options).at("num-query-groups"), "4");
  EXPECT_EQ(config_of(options).at("tokenizer-type"), "\"GPT2BPETokenizer\"");
  EXPECT_THAT(train_outcome(words("--use-mcore-models --rampup-batch-size 8 8 100 --global-batch-size 32")),
              StartsWith("exit 2: --rampup-batch-size and --train-samples"));
}

TEST(MegatronFlags, NoticesNameWhatHasNoEffectAndOtherDefaults) {
  const auto notices = [](const char* more) { return parse_flags(App::kTrain, with_small_run(words(more))).notices; };
  EXPECT_THAT(notices("--hidden-dropout 0"), IsEmpty());
  EXPECT_THAT(parse_flags(App::kPrepare, words("--input a.txt --output-prefix a --keep-newlines")).notices,
              ElementsAre(HasSubstr("--keep-newlines")));
  EXPECT_THAT(
      notices("--num-workers 6 --use-flash-attn --num-workers 6 --hidden-dropout 0 --save-interval 9"),
      ElementsAre(
          "no effect, as these flags ask for what is done in any case (docs/from-megatron.md): --num-workers 6, "
          "--use-flash-attn",
          "no effect in this run: --save-interval (only with --save)",
          "other defaults in Megatron-LM of flags that are not given: --attention-dropout 0.1 (here 0)"));
  EXPECT_THAT(notices("--sequence-parallel"),
              ElementsAre("no effect in this run: --sequence-parallel (only with --tensor-model-parallel-size "
                          "above 1)"));
  EXPECT_THAT(notices("--use-mcore-models --hidden-dropout 0 --attention-dropout 0 --num-experts 4 --swiglu "
                      "--disable-bias-linear --tensor-model-parallel-size 2 --sequence-parallel "
                      "--moe-router-score-function sigmoid --moe-router-pre-softmax"),
              ElementsAre(HasSubstr("--use-mcore-models"),
                          "no effect in this run: --moe-router-pre-softmax (only with "
                          "--moe-router-score-function softmax)",
                          "other defaults in Megatron-LM of flags that are not given: --expert-tensor-parallel-size 2 "
                          "(here 1)"));
}

}  // namespace
}  // namespace megalith::test
