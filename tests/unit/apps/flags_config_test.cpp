// Configuration files and --print-config.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "apps/config/data_options.h"
#include "apps/config/logging_options.h"
#include "apps/config/program_options.h"
#include "apps/config/training_options.h"
#include "apps/flags/flags.h"
#include "core/base/files/fault.h"
#include "core/model/config.h"
#include "tests/support/matchers.h"
#include "tests/unit/apps/flags_support.h"
#include "tests/unit/checkpoint/expect_error.h"

namespace megalith::test {
namespace {

const std::string kForm = "; write lines NAME = VALUE with names of flags, as in configs/quickstart.toml";

class FlagsConfig : public InFolder {
 protected:
  // What `train --config run.toml` says to a file with this text.
  static std::string file_outcome(const std::string& text) {
    write("run.toml", text);
    return train_outcome({"--config", "run.toml"});
  }
};

TEST_F(FlagsConfig, CommandLineOverLaterFileOverEarlierFileOverDefault) {
  write("a.toml", "seed = 1\nlog-interval = 1\neval_iters = 1\n");
  write("b.toml", "seed = 2\nlog-interval = 2\n");
  const Options options = train_options({"--seed", "3", "--config", "a.toml", "--config", "b.toml"});
  EXPECT_EQ(options.train.seed, 3);
  EXPECT_EQ(options.logging.log_interval, 2);
  EXPECT_EQ(options.train.eval_iters, 1);
  EXPECT_EQ(options.train.eval_interval, 1000);
}

TEST_F(FlagsConfig, TakesDashesUnderscoresTablesAndEveryType) {
  write("run.toml",
        "global_batch_size = 8\n[anything]\nmicro-batch-size = 4\nswiglu = true\nrotary_base = 500000\n"
        "[anything.deeper]\nposition-embedding-type = \"rope\"\nsplit = \"90,10\"\n"
        "[data]\nmock-data = false\ndata-path = [0.25, \"a\", 1, \"b\"]\n");
  const Options options = train_options({"--mock-data=false", "--config", "run.toml"});
  EXPECT_EQ(options.train.global_batch_size, 8);
  EXPECT_EQ(options.train.micro_batch_size, 4);
  EXPECT_TRUE(options.model.swiglu);
  EXPECT_EQ(options.model.rotary_base, 500000.0);
  EXPECT_THAT(options.data.data_path, ElementsAre("0.25", "a", "1", "b"));
  write("run.toml", "\t[x]\n\tdata-path\t=\t\"a\" # a list of one\ny = {seed = 5, log-interval = 3}\n");
  const Options compact = train_options({"--mock-data=false", "--config", "run.toml"});
  EXPECT_THAT(compact.data.data_path, ElementsAre("a"));
  EXPECT_EQ(compact.train.seed, 5);
  write("run.toml", "num-experts = 4\nswiglu = true\ndisable-bias-linear = true\nmoe-aux-loss-coeff = 0.01\n");
  EXPECT_THAT(train_options({"--config", "run.toml"}).model.moe.aux_loss_coeff, ElementsAre(0.01));
  EXPECT_EQ(compact.logging.log_interval, 3);
}

TEST_F(FlagsConfig, QuotesAtTheEndOfALongTextBelongToIt) {
  const Options options =
      FlagParser(App::kGenerate).parse_text("load = \"x\"\nprompt = \"\"\"a\"\"\"\"\"\n", "run.toml");
  EXPECT_EQ(options.generate.prompt, "a\"\"");
  EXPECT_THAT(file_outcome("prompt = \"\"\"a\"\"\"\"\"\"\n"),
              HasSubstr(" only where a name or a value begins, got it "));
}

TEST_F(FlagsConfig, KeysOfOtherProgramsAreCheckedToo) {
  EXPECT_EQ(file_outcome("temperature = 0.8\n"), "valid");
  EXPECT_EQ(file_outcome("temperature = -1\n"),
            "exit 2: run.toml:1:1: temperature: expected a number of at least 0 and at most 1000, got -1; use a number "
            "in this range");
}

TEST_F(FlagsConfig, UnknownKeyNamesPlaceAndNearest) {
  EXPECT_EQ(file_outcome("seed = 1\n\n[model]\n  num_layer = 3\n"),
            "exit 2: run.toml:4:3: unknown key num_layer; did you mean num-layers?");
  EXPECT_EQ(file_outcome("wallpaper = 3\n"),
            "exit 2: run.toml:1:1: unknown key wallpaper; use the names of flags as keys, see --help");
  EXPECT_EQ(file_outcome("config = \"x\"\n"),
            "exit 2: run.toml:1:1: unknown key config; use the names of flags as keys, see --help");
  EXPECT_THAT(file_outcome("inputs = [\"a.jsonl\"]\n"), StartsWith("exit 2: run.toml:1:1: unknown key inputs; "));
  EXPECT_THAT(file_outcome("samples = 3\n"), StartsWith("exit 2: run.toml:1:1: unknown key samples; ")) << "of prepare";
  const std::string x80(80, 'x');
  EXPECT_EQ(file_outcome(x80 + " = 1\n"),
            "exit 2: run.toml:1:1: unknown key " + x80 + "; use the names of flags as keys, see --help");
  EXPECT_EQ(file_outcome(x80 + "x = 1\n"),
            "exit 2: run.toml:1:1: unknown key \"" + x80 + "\"...; use the names of flags as keys, see --help");
}

TEST_F(FlagsConfig, UnknownKeysOfAllFilesAreReportedTogether) {
  write("a.toml", "[model]\nnum_layer = 3\nmtp_num_layers = 8\nseed = 1\n");
  write("b.toml", "seed = \"no number\"\nwallpaper = 3\n");
  EXPECT_EQ(train_outcome({"--config", "a.toml", "--config", "b.toml"}),
            "exit 2: unknown keys: a.toml:2:1: num_layer (did you mean num-layers?), b.toml:2:1: wallpaper; features "
            "of Megatron-LM that are not built: multi-token prediction (a.toml:3:1: mtp_num_layers); use the names of "
            "flags as keys, see --help and docs/from-megatron.md");
  EXPECT_EQ(file_outcome("seed = 1\nuse_flash_attn = true\n"),
            "exit 2: run.toml:2:1: use_flash_attn: a flag of Megatron-LM, not of train; remove it: attention is always "
            "one fused kernel with fp32 softmax");
}

TEST_F(FlagsConfig, AContradictionNamesTheLinesOfItsFlagsAlone) {
  EXPECT_EQ(file_outcome("seed = 1\nsave-interval = 10\n"),
            "exit 2: --save-interval and --save: expected --save-interval only with --save, got --save-interval alone; "
            "use --save, or remove --save-interval; --save-interval is in run.toml:2");
}

TEST_F(FlagsConfig, FaultsAreArmedOnTheirRankBeforeFilesAreRead) {
  write("run.toml", "seed = 7\n");
  const auto parse = [](int rank) {
    return parse_flags(
        App::kTrain,
        with_small_run({"--config", "run.toml", "--fault", "config.open:1:eio", "--allow-faults", "--fault-rank", "1"}),
        rank);
  };
  disarm_faults();
  EXPECT_EQ(parse(0).options.train.seed, 7);
  EXPECT_ERROR(ExitCode::kFileIo, "--config: cannot open run.toml: Input/output error (EIO)", parse(1));
  disarm_faults();
  EXPECT_EQ(parse_flags(App::kTrain, {"--fault", "list"}).print, fault_list());
}

TEST_F(FlagsConfig, WrongValuesNamePlaceAndValidValues) {
  EXPECT_EQ(file_outcome("seed = -1\n"),
            "exit 2: run.toml:1:1: seed: expected an integer from 0 to 4294967295, got -1; use a number in this range");
  EXPECT_EQ(
      file_outcome("seed = \"1\"\n"),
      "exit 2: run.toml:1:1: seed: expected an integer from 0 to 4294967295, got \"1\"; use a number in this range");
  EXPECT_EQ(file_outcome("seed = 1.0\n"),
            "exit 2: run.toml:1:1: seed: expected an integer from 0 to 4294967295, got 1; use a number in this range");
  EXPECT_EQ(file_outcome("lr = nan\n"), "exit 2: run.toml:1:1: lr: expected a finite number, got nan; see --help");
  EXPECT_EQ(file_outcome("lr = -inf\n"), "exit 2: run.toml:1:1: lr: expected a finite number, got -inf; see --help");
  EXPECT_EQ(file_outcome("lr = true\n"),
            "exit 2: run.toml:1:1: lr: expected a number of at least 0 and finite, in fp32, got true; use a number in "
            "this range");
  EXPECT_EQ(
      file_outcome("lr = 2024-01-01\n"),
      "exit 2: run.toml:1:1: lr: expected a boolean, number, text or list of them, got a date or time; see --help");
  EXPECT_EQ(file_outcome("lr = [1, 2]\n"),
            "exit 2: run.toml:1:1: lr: expected a number of at least 0 and finite, in fp32, got [\"1\", \"2\"]; use a "
            "number in this range");
  EXPECT_EQ(file_outcome("data-path = [[\"a\"]]\n"),
            "exit 2: run.toml:1:1: data-path: expected a list of texts, got a nested list; see --help");
  EXPECT_EQ(file_outcome("data-path = [{a = 1}]\n"),
            "exit 2: run.toml:1:1: data-path: expected a list of texts, got a nested list; see --help");
  EXPECT_EQ(file_outcome("data-path = 3\n"),
            "exit 2: run.toml:1:1: data-path: expected a list of texts in UTF-8, got 3; see --help");
  EXPECT_EQ(file_outcome("lr-decay-style = []\n"),
            "exit 2: run.toml:1:1: lr-decay-style: expected constant, linear, cosine, WSD or inverse-square-root, got "
            "[]; see --help");
  EXPECT_THAT(file_outcome("[lr]\nx = 1\n"), StartsWith("exit 2: run.toml:2:1: unknown key x; "));
  EXPECT_EQ(file_outcome("swiglu = 1\n"), "exit 2: run.toml:1:1: swiglu: expected true or false, got 1; see --help");
}

TEST_F(FlagsConfig, OneFlagTwiceIsAnError) {
  EXPECT_EQ(file_outcome("log-interval = 1\n[x]\nlog_interval = 1\n"),
            "exit 2: run.toml:3:1: log_interval: expected one value, got a second value after line 1; remove one, as "
            "dashes, underscores and tables make no difference");
}

TEST_F(FlagsConfig, UnreadableFileIsExit3) {
  EXPECT_EQ(train_outcome({"--config", "none.toml"}),
            "exit 3: --config: cannot open none.toml: No such file or directory (ENOENT); check the path and its "
            "permissions");
  EXPECT_EQ(train_outcome({"--config", "."}),
            "exit 3: --config: cannot read .: a directory, not a regular file; check the path");
}

TEST_F(FlagsConfig, WhatIsNotTomlNamesThePlace) {
  EXPECT_THAT(file_outcome("seed = 1\nx = [1,\n"), StartsWith("exit 2: run.toml:2:9: not TOML: "));
  // Found by fuzzing: toml++ takes it for granted that a name follows.
  for (const char* text : {"\n[\n", "\n  [ [\nx]]", "\n[", "\n[=x]", "\n[[\r\n"})
    EXPECT_THAT(file_outcome(text), StartsWith("exit 2: run.toml:2: expected the name of a table after [, got none; "));
  EXPECT_THAT(file_outcome("\xef\xbb\xbf[\n"), StartsWith("exit 2: run.toml:1: expected the name of a table"));
  // Also found so: toml++ looks such characters up in a table that it leaves.
  EXPECT_THAT(file_outcome("a\xcf\x9e.b = 1\n"),
              StartsWith("exit 2: run.toml:1: expected ASCII characters outside of "));
  // So it does where it takes a text, a list or a table for the rest of a number.
  for (const char* text : {"lr = 1\"\xcf\x9e\"", "lr = 1.'\xcf\x9e'", "lr = 1 \"\xcf\x9e\"", "lr = 1[\"\xcf\x9e\"]",
                           "lr = 1{\"\xcf\x9e\"}", "lr = [0, 1'\xcf\x9e']"})
    EXPECT_THAT(file_outcome(text),
                HasSubstr(" only where a name or a value begins, got it inside of a name or value; "));
  EXPECT_THAT(file_outcome(std::string("lr = 1\0\"\xcf\x9e\"", 11)), HasSubstr(": expected \" only where a name"));
  for (const char* text :
       {"x = \"\"\"a\\\xef\xbb\xbb\"\"\"", "x = \"\"\"a\\\n \xcf\x9e\"\"\"", "x = \"\\\xcf\x9e\"", "x = \"\\\x7f\""})
    EXPECT_THAT(file_outcome(text), HasSubstr(": expected a letter, digit or sign after each \\ of a text, got "));
  for (const char* text : {"lr = 1=\"\xcf\x9e\"", "x = [1,\n1='\xcf\x9e']", "x = {a = 1='\xcf\x9e'}"})
    EXPECT_THAT(file_outcome(text), HasSubstr(": expected one = per name, got a second =; "));
  for (const char* text : {"lr = 1969-05-27T\x03", "lr = 1969-05-27 # x"})
    EXPECT_THAT(file_outcome(text),
                StartsWith("exit 2: run.toml:1: expected a boolean, number, text or list of them, "));
  EXPECT_THAT(file_outcome("seed = [1,}]"), StartsWith("exit 2: run.toml:1: expected ], got }; "));
  EXPECT_THAT(file_outcome("x = {seed = 1]"), StartsWith("exit 2: run.toml:1: expected }, got ]; "));
  EXPECT_THAT(file_outcome("seed = 1]\n"), StartsWith("exit 2: run.toml:1:9: not TOML: "));
  EXPECT_THAT(file_outcome("[]\n"), StartsWith("exit 2: run.toml:1:2: not TOML: "));
  EXPECT_EQ(file_outcome("[ \"a\" ]\n[[b]]\nseed = [\n[\n"), file_outcome("[ 'a' ]\n[[b]]\nseed = [\n[\n"));
  EXPECT_THAT(file_outcome("seed = 99999999999999999999\n"), StartsWith("exit 2: run.toml:1:28: not TOML: "));
  EXPECT_THAT(file_outcome("split = \"\xff\"\n"), StartsWith("exit 2: run.toml:1:"));
  EXPECT_THAT(file_outcome(std::string("seed\0=1", 7)), StartsWith("exit 2: run.toml:1:"));
  EXPECT_THAT(file_outcome("seed = 1\nseed = 2\n"), StartsWith("exit 2: run.toml:2:"));
}

TEST_F(FlagsConfig, HostileFilesAreRefusedBeforeTheyHurt) {
  EXPECT_EQ(file_outcome("seed = 1 #" + std::string(1 << 20, 'x')),
            "exit 2: run.toml: expected a configuration of at most 1 MiB, got more" + kForm);
  EXPECT_ERROR(ExitCode::kUsage, "run.toml: expected a configuration of at most 1 MiB, got more" + kForm,
               FlagParser(App::kTrain).parse_text(std::string((1 << 20) + 1, '#'), "run.toml"));
  const std::string too_deep = "expected at most 32 levels of nesting, got more" + kForm;
  EXPECT_EQ(file_outcome("\nx = " + std::string(100'000, '[')), "exit 2: run.toml:2: " + too_deep);
  std::string dotted = "a";
  for (int i = 0; i < 100'000; ++i) dotted += ".a";
  EXPECT_EQ(file_outcome(dotted + " = 1\n"), "exit 2: run.toml:1: " + too_deep);
  EXPECT_EQ(file_outcome("[" + dotted + "]\n"), "exit 2: run.toml:1: " + too_deep);
  EXPECT_EQ(file_outcome("x = {" + dotted + " = 1}\n"), "exit 2: run.toml:1: " + too_deep);
  std::string header = "[a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a]\n";
  EXPECT_EQ(file_outcome(header + "b.b.b.b.b.b.b.b.b.b.b.b.b.b.b.b.seed = 1\n"), "exit 2: run.toml: " + too_deep);
  EXPECT_EQ(file_outcome(header + "seed = 1\n"), "valid");
}

TEST_F(FlagsConfig, BracketsAndDotsInTextsAndCommentsAreNoNesting) {
  const std::string many = std::string(100, '[') + std::string(100, '.');
  EXPECT_EQ(file_outcome("prompt = \"" + many + "\\\"" + many + "\" # " + many + "\nload = '" + many + "'\n"), "valid");
  EXPECT_EQ(file_outcome("prompt = \"\"\"" + many + "\n\"" + many + "\"\"\"\n"), "valid");
}

std::string without_comments(const std::string& text) {
  std::string out;
  std::size_t start = 0;
  while (start < text.size()) {
    const std::size_t end = text.find('\n', start);
    const std::string line = text.substr(start, end - start);
    out += line.substr(0, line.find('#')) + "\n";
    start = end + 1;
  }
  return out;
}

TEST_F(FlagsConfig, PrintConfigSaysWhereEachValueCameFrom) {
  write("run.toml", "[x]\nlog-interval = 7\n");
  const std::string text =
      parse_flags(App::kTrain, with_small_run({"--config", "run.toml", "--seed=5", "--print-config"})).print;
  EXPECT_THAT(text, StartsWith("# megalith train "));
  EXPECT_THAT(text, HasSubstr("\n[model]\nnum-layers = 2                                  # command line\n"));
  EXPECT_THAT(text, HasSubstr("\nffn-hidden-size = 256                           # derived\n"));
  EXPECT_THAT(text, HasSubstr("\nlog-interval = 7                                # run.toml:2\n"));
  EXPECT_THAT(text, HasSubstr("\n# adam-beta2 = 0.999                            # default\n"));
  EXPECT_THAT(text, HasSubstr("\nseed = 5                                        # command line\n"));
}

TEST_F(FlagsConfig, PrintedConfigIsReadBackUnchanged) {
  for (const std::vector<std::string>& flags : std::vector<std::vector<std::string>>{
           {},
           {"--train-iters=0", "--train-samples=1000", "--global-batch-size=48", "--lr-warmup-fraction=0.013"},
           {"--swiglu", "--group-query-attention", "--bf16", "--lr=3.3333333333333335e-05", "--disable-bias-linear"},
           {"--mock-data=false", "--data-path", "a \"b\"\\\n", "--save=x", "--keep-last=2", "--metrics-jsonl=ä"},
           {"--recompute-granularity=selective", "--lr-decay-style=WSD", "--lr-wsd-decay-iters=3",
            "--suppress-wait=4"}}) {
    const Parsed first = parse_flags(App::kTrain, [&] {
      std::vector<std::string> all = with_small_run(flags);
      all.push_back("--print-config");
      return all;
    }());
    write("printed.toml", first.print);
    const Parsed again = parse_flags(App::kTrain, {"--config", "printed.toml", "--print-config"});
    EXPECT_EQ(without_comments(first.print), without_comments(again.print));
    EXPECT_EQ(again.print.find("# derived"), std::string::npos);
  }
}

// A flag is given by where it stands: a default that is written out is refused as any other value is.
TEST_F(FlagsConfig, AnOffloadFlagAloneIsRefusedAtItsDefaultToo) {
  const std::map<std::string, std::string> defaults = config_of(train_options({}));
  for (const char* flag : {"offload-modules", "activation-offload-fraction", "offload-mb-per-layer", "offload-distance",
                           "offload-slowdown", "min-offload-bytes", "min-offloaded-tensor-size"}) {
    const std::string value = defaults.at(flag);
    const std::string refusal = fmt::format(
        "exit 2: --{0} and --fine-grained-activation-offloading: expected --{0} only with "
        "--fine-grained-activation-offloading, got --{0} alone; use --fine-grained-activation-offloading, or remove "
        "--{0}",
        flag);
    EXPECT_THAT(file_outcome(fmt::format("{} = {}\n", flag, value)),
                AllOf(StartsWith(refusal), HasSubstr(fmt::format("--{} is in run.toml:1", flag))));
    if (value == "[]") continue;  // no value on a command line
    EXPECT_EQ(train_outcome({fmt::format("--{}={}", flag, value)}), refusal);
  }
  const std::vector<std::string> offloads = {"--fine-grained-activation-offloading", "--offload-modules", "act"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), offloads.begin(), offloads.end());
    return train_outcome(more);
  };
  EXPECT_THAT(with({"--offload-slowdown", "0.005"}), HasSubstr("--offload-slowdown: expected --rates"));
  EXPECT_THAT(with({"--min-offload-bytes", "1048576", "--min-offloaded-tensor-size", "5"}),
              HasSubstr("expected one of them"));
  // A checkpoint has every value without an origin: defaults in it are not given.
  EXPECT_EQ(config_of(options_from_config(App::kTrain, defaults)), defaults);
}

TEST_F(FlagsConfig, ACheckpointsConfigurationGivesTheOptionsBack) {
  const Options options = train_options({"--swiglu", "--lr=3.3333333333333335e-05", "--metrics-jsonl", "a b.jsonl"});
  const std::map<std::string, std::string> config = config_of(options);
  EXPECT_EQ(config.at("lr"), "3.3333333333333335e-05");
  EXPECT_EQ(config.at("metrics-jsonl"), "\"a b.jsonl\"");
  const Options again = options_from_config(App::kTrain, config);
  EXPECT_EQ(config_of(again), config);
  EXPECT_TRUE(again.model.swiglu);
  EXPECT_EQ(again.train.schedule.lr, options.train.schedule.lr);
}

TEST_F(FlagsConfig, ACheckpointOfAnotherMachineIsReadWithoutItsDevice) {
  std::map<std::string, std::string> config = config_of(train_options({}));
  config["device"] = "\"cuda\"";
  config["profile"] = "true";
  config["cuda-graph-impl"] = "\"local\"";  // as earlier versions took them
  config["cuda-graph-modules"] = R"(["attn", "layer"])";
  const Options options = options_from_config(App::kTrain, config);
  EXPECT_EQ(options.device, default_device());
  EXPECT_FALSE(options.logging.profile);
}

TEST_F(FlagsConfig, ADamagedConfigurationOfACheckpointIsExit4) {
  const auto outcome_of = [](const std::string& name, const std::string& value) {
    std::map<std::string, std::string> config = config_of(train_options({}));
    config[name] = value;
    try {
      options_from_config(App::kTrain, config);
    } catch (const Error& error) {
      return "exit " + std::to_string(static_cast<int>(error.code())) + ": " + error.what();
    }
    return std::string("valid");
  };
  EXPECT_EQ(outcome_of("seed", "7"), "valid");
  EXPECT_EQ(outcome_of("sed", "7"),
            "exit 4: configuration of the checkpoint: expected flags of this version, got \"sed\"; load it with the "
            "version that saved it");
  EXPECT_THAT(outcome_of("seed", "7 8"), HasSubstr("exit 4: configuration of the checkpoint:"));
}

TEST_F(FlagsConfig, EffectiveValuesFollowWhatIsDerivedLater) {
  Options options = train_options({});
  options.train.global_batch_size = 48;
  update_effective(options);
  const auto entry = std::find_if(options.effective.begin(), options.effective.end(),
                                  [](const ConfigEntry& e) { return e.name == "global-batch-size"; });
  ASSERT_NE(entry, options.effective.end());
  EXPECT_EQ(entry->value, "48");
  EXPECT_EQ(entry->origin, "derived");
  EXPECT_EQ(options.effective.front().origin, "command line");
}

struct Shipped {
  const char* file;
  std::int64_t published;  // parameters, without the rows that pad the vocabulary
};

class ShippedConfig : public ::testing::TestWithParam<Shipped> {};

TEST_P(ShippedConfig, ParsesAndHasThePublishedParameters) {
  const std::string path = std::string(MEGALITH_SOURCE_DIR) + "/configs/" + GetParam().file;
  const Options options = parse_flags(App::kTrain, {"--config", path, "--mock-data"}).options;
  const ParameterCount count = count_parameters(options.model);
  EXPECT_EQ(count.total - count.padding, GetParam().published);
  parse_flags(App::kPlan, {"--config", path, "--world-size", "8"});
}

INSTANTIATE_TEST_SUITE_P(
    All, ShippedConfig,
    ::testing::Values(Shipped{"gpt2_124m.toml", 124'439'808}, Shipped{"gpt2_1.5b.toml", 1'557'611'200},
                      Shipped{"llama_1b.toml", 1'235'814'400}, Shipped{"llama3_8b.toml", 8'030'261'248},
                      Shipped{"qwen2.5_7b.toml", 7'615'616'512}, Shipped{"qwen3_8b.toml", 8'190'735'360},
                      Shipped{"mixtral_8x7b.toml", 46'702'792'704}, Shipped{"qwen3_30b_a3b.toml", 30'532'122'624},
                      Shipped{"deepseek_16b_a2.4b.toml", 15'787'866'112}, Shipped{"qwen3_8_layers.toml", 5'607'294'976},
                      Shipped{"mixtral_8_layers.toml", 2'446'493'696}, Shipped{"llama3_70b.toml", 70'553'706'496},
                      Shipped{"qwen3_235b_a22b.toml", 235'093'634'560}, Shipped{"mixtral_8x22b.toml", 140'620'634'112}),
    [](const auto& shipped) {
      std::string name = shipped.param.file;
      std::replace_if(
          name.begin(), name.end(), [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
      return name;
    });

TEST(ShippedConfigs, EveryFileOfConfigsParses) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(std::string(MEGALITH_SOURCE_DIR) + "/configs")) {
    if (entry.path().extension() != ".toml") continue;
    ++files;
    EXPECT_EQ(outcome(App::kTrain, {"--config", entry.path().string(), "--mock-data"}), "valid") << entry.path();
  }
  EXPECT_GE(files, 7);
}

}  // namespace
}  // namespace megalith::test
