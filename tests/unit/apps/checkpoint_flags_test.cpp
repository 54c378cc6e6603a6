// Flags of a run that loads a checkpoint: what may differ, and --use-checkpoint-args.
#include "apps/checkpoint/checkpoint_flags.h"

#include "apps/config/checkpoint_options.h"
#include "apps/config/data_options.h"
#include "apps/config/parallel_options.h"
#include "apps/config/training_options.h"
#include "core/model/config.h"
#include "tests/support/error_of.h"
#include "tests/support/matchers.h"
#include "tests/unit/apps/flags_support.h"

namespace megalith::test {
namespace {

using Config = std::map<std::string, std::string>;

const Words kRope = {"--position-embedding-type", "rope"};

Options with(Words flags, const Words& more) {
  flags.insert(flags.end(), more.begin(), more.end());
  return train_options(flags);
}
std::string refused(const Options& options, const Config& saved) {
  return error_of(ExitCode::kUsage, [&] { check_same_model(options, "kept/step_7", saved); });
}

TEST(CheckpointFlags, TheSameFlagsAreFine) {
  const Config saved = config_of(train_options(kRope));
  EXPECT_EQ(check_same_model(with(kRope, {"--load", "kept"}), "kept/step_7", saved), "");
  // What says how a run is cut and ends is its own business, and so is the learning rate.
  const Options other = with(kRope, {"--load", "kept", "--lr", "1", "--tensor-model-parallel-size", "2",
                                     "--micro-batch-size", "4", "--global-batch-size", "8", "--recompute-granularity",
                                     "full", "--init-method-std", "0.5", "--max-position-embeddings", "64"});
  EXPECT_EQ(check_same_model(other, "kept/step_7", saved), "");
  EXPECT_EQ(changed_flags(other, saved),
            "--micro-batch-size 4 (was 1), --global-batch-size 8 (was 0), --lr 1 (was 0.001)");
}

TEST(CheckpointFlags, TheMessageNamesFlagValuesAndRemedy) {
  const Config saved = config_of(train_options(kRope));
  EXPECT_EQ(refused(with(kRope, {"--load", "kept", "--rotary-base", "500000", "--norm-epsilon", "1e-6"}), saved),
            "--load kept/step_7: different from its training: expected --rotary-base 10000, --norm-epsilon 1e-05, got "
            "--rotary-base 500000, --norm-epsilon 1e-06; use the checkpoint's model flags, or add "
            "--use-checkpoint-args, or start a new run from these weights with --finetune");
  const Words other = {"--load", "kept", "--rotary-base", "500000", "--hidden-dropout", "0.1", "--seq-length", "64"};
  Words tuned = other;
  tuned.push_back("--finetune");
  EXPECT_EQ(check_same_model(with(kRope, tuned), "kept/step_7", saved),
            "--seq-length 64 (was 32), --rotary-base 500000 (was 10000), --hidden-dropout 0.1 (was 0)");
  tuned.insert(tuned.end(), {"--num-layers", "3"});
  EXPECT_EQ(refused(with(kRope, tuned), saved),
            "--load kept/step_7: a different model: expected --num-layers 2, got --num-layers 3; use the checkpoint's "
            "model flags, or add --use-checkpoint-args, or load another checkpoint");
}

// A checkpoint of a version that did not have the flag yet computes what its default says.
TEST(CheckpointFlags, AFlagThatTheCheckpointDoesNotKnowHasItsDefault) {
  Config saved = config_of(train_options(kRope));
  saved.erase("rotary-percent");
  saved.erase("use-checkpoint-args");
  EXPECT_EQ(check_same_model(with(kRope, {"--load", "kept"}), "kept/step_7", saved), "");
  EXPECT_THAT(refused(with(kRope, {"--load", "kept", "--rotary-percent", "0.5"}), saved),
              HasSubstr("expected --rotary-percent 1, got --rotary-percent 0.5"));
}

class CheckpointArgs : public InFolder {
 protected:
  // The flags of a run that finds a checkpoint of `saved`.
  static Parsed parse(const Words& arguments, const Options& saved) {
    FlagParser parser(App::kTrain);
    const Parsed read = parser.read(arguments);
    EXPECT_TRUE(read.options.checkpoint.use_checkpoint_args);
    EXPECT_EQ(read.options.checkpoint.load, "kept");
    const Config config = config_of(saved);
    return parser.finish(&config);
  }
  static std::string origin(const Options& options, const std::string& name) {
    for (const ConfigEntry& entry : options.effective) {
      if (entry.name == name) return entry.origin;
    }
    return "none";
  }
  const Words run_ = {"--load", "kept", "--use-checkpoint-args", "--lr", "0.001", "--train-iters", "9", "--mock-data"};
};

TEST_F(CheckpointArgs, GiveTheWholeModel) {
  const Options saved =
      with(kRope, {"--swiglu", "--bf16", "--rotary-base", "5e5", "--num-query-groups", "2", "--lr", "0.5",
                   "--tokenizer-type", "null", "--vocab-size", "99", "--init-method-std", "1"});
  const Options options = parse(run_, saved).options;
  EXPECT_EQ(options.model.num_layers, 2);
  EXPECT_EQ(options.model.rotary_base, 5e5);
  EXPECT_EQ(options.model.params_dtype, DType::kBf16);
  EXPECT_EQ(options.model.init_method_std, 1);
  EXPECT_EQ(options.data.tokenizer_type, TokenizerType::kNull);
  EXPECT_EQ(origin(options, "rotary-base"), "checkpoint");
  EXPECT_EQ(origin(options, "num-layers"), "checkpoint");
  EXPECT_EQ(check_same_model(options, "kept/step_7", config_of(saved)), "");
  // The run is this one's.
  EXPECT_EQ(options.train.schedule.lr, 0.001);
  EXPECT_EQ(options.train.train_iters, 9);
}

// Their shape and their router, but neither its losses nor the layout, which are this run's.
TEST_F(CheckpointArgs, GiveTheExperts) {
  const Options saved = with(kRope, {"--swiglu",
                                     "--disable-bias-linear",
                                     "--num-experts",
                                     "8",
                                     "--moe-layer-freq",
                                     "[0,1]",
                                     "--moe-ffn-hidden-size",
                                     "48",
                                     "--moe-router-topk",
                                     "3",
                                     "--moe-router-score-function",
                                     "sigmoid",
                                     "--moe-router-enable-expert-bias",
                                     "--moe-grouped-gemm",
                                     "--moe-shared-expert-intermediate-size",
                                     "24",
                                     "--moe-combine-groups",
                                     "4",
                                     "--moe-aux-loss-coeff",
                                     "0.01",
                                     "--expert-model-parallel-size",
                                     "2"});
  const Options options = parse(run_, saved).options;
  EXPECT_EQ(check_same_model(options, "kept/step_7", config_of(saved)), "");
  const MoeConfig& moe = options.model.moe;
  EXPECT_EQ(moe.num_experts, 8);
  EXPECT_EQ(moe.layer_freq, "[0,1]");
  EXPECT_EQ(moe.ffn_hidden_size, 48);
  EXPECT_EQ(moe.router_topk, 3);
  EXPECT_EQ(moe.router_score_function, MoeScoreFunction::kSigmoid);
  EXPECT_TRUE(moe.router_enable_expert_bias);
  EXPECT_TRUE(moe.grouped_gemm);
  EXPECT_EQ(moe.shared_expert_intermediate_size, 24);
  EXPECT_EQ(origin(options, "moe-router-topk"), "checkpoint");
  EXPECT_EQ(moe.combine_groups, 0);
  EXPECT_EQ(origin(options, "moe-aux-loss-coeff"), "default");
  EXPECT_EQ(options.parallel.expert_model_parallel_size, 1);
  EXPECT_THAT(changed_flags(options, config_of(saved)), HasSubstr("--moe-aux-loss-coeff [] (was [0.01])"));
}

// A list and a number, or two lists, that mean the same layers are the same model.
TEST_F(CheckpointArgs, TakeLayersOfExpertsAsTheyAreMeant) {
  const auto of = [&](const char* layers) {
    return with(kRope, {"--swiglu", "--disable-bias-linear", "--num-experts", "8", "--moe-layer-freq", layers});
  };
  const std::map<std::string, std::string> saved = config_of(of("2"));
  EXPECT_EQ(check_same_model(of("[1,0]"), "kept/step_7", saved), "");
  EXPECT_EQ(check_same_model(of("[1]+[0]"), "kept/step_7", saved), "");
  EXPECT_THAT(refused(of("[0,1]"), saved), HasSubstr(R"(expected --moe-layer-freq "2", got --moe-layer-freq "[0,1]")"));
}

// As many as expert-parallel ranks by default: at another such size the sums are others, and the user is told.
TEST_F(CheckpointArgs, ReportOtherCombineGroupsAlsoWhereTheyAreDefaults) {
  const Words experts = {"--swiglu", "--disable-bias-linear", "--num-experts", "8", "--expert-model-parallel-size"};
  const auto of = [&](const Words& more) {
    Words flags = experts;
    flags.insert(flags.end(), more.begin(), more.end());
    return with(kRope, flags);
  };
  const auto saved = config_of(of({"2"}));
  EXPECT_THAT(changed_flags(of({"4"}), saved), HasSubstr("--moe-combine-groups 4 (was 2)"));
  EXPECT_THAT(changed_flags(of({"1"}), saved), HasSubstr("--moe-combine-groups 1 (was 2)"));
  EXPECT_THAT(changed_flags(of({"2", "--moe-combine-groups", "8"}), saved), HasSubstr("groups 8 (was 2)"));
  EXPECT_THAT(changed_flags(of({"1", "--moe-combine-groups", "2"}), saved), Not(HasSubstr("combine-groups")));
  EXPECT_THAT(changed_flags(of({"2"}), saved), Not(HasSubstr("combine-groups")));
}

TEST_F(CheckpointArgs, WinOverFilesAndYieldToTheCommandLine) {
  const Options saved = with(kRope, {"--rotary-base", "5e5"});
  write("run.toml", "[model]\nnum-layers = 2\nrotary-base = 10000\nnorm-epsilon = 1e-6\nhidden-size = 64\n");
  Words flags = run_;
  flags.insert(flags.end(), {"--config", "run.toml"});
  const Parsed parsed = parse(flags, saved);
  EXPECT_EQ(parsed.options.model.rotary_base, 5e5);
  EXPECT_EQ(parsed.replaced, "--rotary-base 500000 (10000 in run.toml:3), --norm-epsilon 1e-05 (1e-06 in run.toml:4)");
  flags.insert(flags.end(), {"--rotary-base", "20000"});
  const Options explicit_base = parse(flags, saved).options;
  EXPECT_EQ(explicit_base.model.rotary_base, 20000);
  EXPECT_EQ(origin(explicit_base, "rotary-base"), "command line");
  EXPECT_EQ(refused(explicit_base, config_of(saved)),
            "--load kept/step_7: different from its training: expected --rotary-base 500000, got --rotary-base 20000; "
            "remove them, as --use-checkpoint-args uses the checkpoint's values, or start a new run from these weights "
            "with --finetune");
  flags.emplace_back("--finetune");
  EXPECT_EQ(check_same_model(parse(flags, saved).options, "kept/step_7", config_of(saved)),
            "--rotary-base 20000 (was 500000)");
}

TEST_F(CheckpointArgs, ALongerSequenceWithoutATableOfPositions) {
  Words flags = run_;
  flags.insert(flags.end(), {"--finetune", "--seq-length", "64"});
  const Options longer = parse(flags, train_options(kRope)).options;
  EXPECT_EQ(longer.model.max_position_embeddings, 64);
  EXPECT_EQ(parse(flags, with(kRope, {"--max-position-embeddings", "4096"})).options.model.max_position_embeddings,
            4096);
  EXPECT_THAT(error_of(ExitCode::kUsage, [&] { parse(flags, train_options({})); }),
              HasSubstr("--max-position-embeddings and --seq-length"));
}

TEST_F(CheckpointArgs, ADamagedConfigurationIsExit4) {
  Config config = config_of(train_options({}));
  config["num-layers"] = "\"two\"";
  FlagParser parser(App::kTrain);
  parser.read(run_);
  EXPECT_THAT(error_of(ExitCode::kFormat, [&] { parser.finish(&config); }),
              HasSubstr("configuration of the checkpoint:"));
  // A value that holds a line of its own.
  config = {{"num-layers", "2\nno-such-flag = 1"}};
  parser.read(run_, 0);
  EXPECT_THAT(error_of(ExitCode::kFormat, [&] { parser.finish(&config); }), HasSubstr("no-such-flag"));
}

TEST_F(CheckpointArgs, NeedACheckpoint) {
  EXPECT_EQ(train_outcome({"--use-checkpoint-args"}),
            "exit 2: --use-checkpoint-args and --load: expected --use-checkpoint-args only with --load, got "
            "--use-checkpoint-args alone; use --load, or remove --use-checkpoint-args");
}

}  // namespace
}  // namespace megalith::test
