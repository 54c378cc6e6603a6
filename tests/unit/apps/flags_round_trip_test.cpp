// --print-config: every value with its origin, and a dump that reads back as the same configuration.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "apps/checkpoint/checkpoint_flags.h"
#include "apps/flags/flags_table.h"
#include "tests/support/error_of.h"
#include "tests/support/matchers.h"
#include "tests/support/words.h"
#include "tests/unit/apps/flags_support.h"

namespace megalith {
namespace {

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

// The words that give `flag` the value of its row's example, with what it needs.
void give(const FlagTable& table, const std::string& name, std::string_view value, Words& words) {
  if (std::ranges::find(words, "--" + name) != words.end()) return;
  const Flag& flag = *std::ranges::find(table, name, &Flag::name);
  words.push_back("--" + name);
  for (const std::string& word : test::words(std::string(value.empty() ? flag.traits.example : value)))
    words.push_back(word);
  for (const OtherFlag& need : flag.traits.needs) {
    if ((need.apps & kTrainApp) == 0) continue;
    const bool is_value = !need.value.starts_with("above ");
    give(table, std::string(need.flag), is_value ? need.value.substr(0, need.value.find(' ')) : "", words);
  }
}

Words words_of(const FlagTable& table, const Flag& flag) {
  Words words;
  give(table, std::string(flag.name), "", words);
  // The usual run counts in steps, and has mock data.
  if (std::ranges::find(words, "--train-samples") != words.end())
    words.insert(words.end(), {"--train-iters", "0", "--global-batch-size", "32"});
  const bool replaces_mock = std::ranges::count(flag.traits.excludes, "mock-data", &OtherFlag::flag) > 0;
  if (replaces_mock) words.push_back("--mock-data=false");
  if (flag.name == "sft") words.insert(words.end(), {"--data-path", "A"});
  if (flag.name == "valid-data-path" || flag.name == "test-data-path")
    words.insert(words.end(), {"--train-data-path", "A"});
  if (flag.name == "train-data-path" || flag.name == "test-data-path")
    words.insert(words.end(), {"--valid-data-path", "A"});
  return words;
}

// Only the default can be given yet, or nothing else on a machine without a GPU.
const std::set<std::string> kOneValue = {"optimizer", "device", "profile", "attention-dropout", "tp-comm-overlap"};

TEST_F(RoundTrip, EveryFlagOfTrainOutOfTheCommandLine) {
  FlagParser parser(App::kTrain);
  Options defaults;
  Requests requests;
  const auto usual = by_name(parser.parse(test::with_small_run({})).options);
  const FlagTable table = make_table(defaults, requests);
  int flags = 0;
  for (const Flag& flag : table) {
    if (!takes(flag, App::kTrain) || flag.group == FlagGroup::kProgram) continue;
    const std::string name(flag.name);
    if (kOneValue.contains(name)) continue;
    SCOPED_TRACE(name);
    ASSERT_TRUE(flag.binding.kind == ValueKind::kToggle || !flag.traits.example.empty())
        << "the row of --" << name << " has no example";
    const Options options = parser.parse(test::with_small_run(words_of(table, flag))).options;
    const ConfigEntry entry = by_name(options).at(name);
    EXPECT_EQ(entry.origin, "command line");
    EXPECT_TRUE(entry.value != usual.at(name).value || name == "mock-data") << "the default: it shows nothing";
    expect_read_back(parser, App::kTrain, options);
    ++flags;
  }
  EXPECT_GE(flags, 80);
}

TEST_F(RoundTrip, TextsOfAllCharacters) {
  FlagParser parser(App::kTrain);
  for (const Words& words :
       {Words{"--mock-data=false", "--data-path", "0.3", "a b", "0.7", "ä"}, Words{"--stop-file", "stop \"now\"\\"},
        Words{"--metrics-jsonl", "m\t.jsonl"}, Words{"--comm-dump", ""}}) {
    const Options options = parser.parse(test::with_small_run(words)).options;
    EXPECT_EQ(config_of(expect_read_back(parser, App::kTrain, options)), config_of(options));
  }
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
      "init-method-std",        // of weights that are then loaded, as the next
      "init-method-xavier-uniform",
      "grad-reduce-in-bf16",  // says what --main-grads-dtype is, which is compared
      "moe-grouped-gemm",     // the same bits, as the next
      "use-transformer-engine-op-fuser",
      "moe-pad-expert-input-to-capacity",  // no row is padded
      "max-documents-per-sample",          // memory of a step
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
  const FlagTable table = make_table(defaults, requests);
  int refused = 0, reported = 0;
  for (const Flag& flag : table) {
    const std::string name(flag.name);
    const OnLoad kind = on_load(flag);
    if (flag.group != FlagGroup::kModel || kOneValue.contains(name) || kind == OnLoad::kFree || kind == OnLoad::kNoted)
      continue;
    SCOPED_TRACE(name);
    Words words = words_of(table, flag);
    words.insert(words.end(), load.begin(), load.end());
    const Options options = parser.parse(test::with_small_run(words)).options;
    const std::string now = by_name(options).at(name).value;
    const std::string message = error_of(ExitCode::kUsage, [&] { check_same_model(options, "kept/step_7", saved); });
    EXPECT_THAT(message, StartsWith("--load kept/step_7: "));
    EXPECT_THAT(message, HasSubstr("--" + name + " " + saved.at(name)));
    EXPECT_THAT(message, HasSubstr("--" + name + " " + now));
    EXPECT_THAT(message, HasSubstr("; use the checkpoint's model flags, or add --use-checkpoint-args, or "));
    ++refused;
    words.push_back("--finetune");
    const Options tuned = parser.parse(test::with_small_run(words)).options;
    if (kind != OnLoad::kComputes || name == "seq-length") {  // here with learned positions, one for each token
      EXPECT_THAT(error_of(ExitCode::kUsage, [&] { check_same_model(tuned, "kept/step_7", saved); }),
                  HasSubstr("a different model"));
      continue;
    }
    const std::string warning = check_same_model(tuned, "kept/step_7", saved);
    EXPECT_THAT(warning, HasSubstr("--" + name + " " + now + " (was " + saved.at(name) + ")"));
    ++reported;
  }
  EXPECT_GE(refused, 23);
  EXPECT_GE(reported, 6);
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
TEST_F(RoundTrip, ADumpAcceptsFlagsNextToIt) {
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
