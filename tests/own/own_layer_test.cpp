// A user's layer, flags and hook (own.cpp) in training. Offload, recomputation and graphs give the bits of the run that
// keeps everything, in layers of experts too. Every layout gives the losses of one rank.
#include <gtest/gtest.h>

#include "apps/flags/flags.h"
#include "apps/run/own_model.h"
#include "apps/train/run_setup.h"
#include "tests/support/error_of.h"
#include "tests/support/matchers.h"
#include "tests/unit/train/training_support.h"

namespace megalith::test {
namespace {

const Words kAdapters = words("--num-layers 4 --adapter-rank 8 --adapter-init-std 0.5 --train-iters 3");
const Words kExperts = llama_flags() + words(
                                           "--ffn-hidden-size 32 --num-experts 4 --moe-router-topk 2 "
                                           "--moe-ffn-hidden-size 16");

StepPlans plans_of(const Words& flags) {
  const Words all = tiny_flags() + kAdapters + flags;
  return prepare_run(parse_flags(App::kTrain, all, 0, own_options()).options, 0, 1).plans;
}

// Slots of kind `own` that move, or that stay for a reason.
std::int64_t own_slots(const StepPlans& plans, const std::string& reason = "") {
  std::int64_t slots = 0;
  for (const OffloadChosen::Row& row : plans.offload.rows) {
    if (row.kind == SlotKind::kOwn && row.reason == reason) slots += row.slots;
  }
  return slots;
}

TEST(OwnLayer, HasTheSameBitsOffloadedRecomputedAndInGraphs) {
  const Words moved = offload({"own"});
  for (const Words& model : {Words{}, kExperts}) {
    const RunResult keep = train({.flags = kAdapters + model});
    for (const auto& [way, moves] : {std::pair{moved + Words{"--check-hazards"}, true},
                                     {words("--recompute-granularity selective --recompute-modules own"), false},
                                     {words("--cuda-graph-impl local --cuda-graph-modules own"), false},
                                     {moved + words("--cuda-graph-impl local --cuda-graph-modules layer"), true}}) {
      SCOPED_TRACE(testing::PrintToString(model + way));
      const RunResult run = train({.flags = kAdapters + model + way});
      expect_same_state(run, keep);
      EXPECT_EQ(run.ranks[0].offload.offloads > 0, moves);
    }
  }
}

// Not as without it: it trains.
TEST(OwnLayer, ChangesWhatIsTrained) {
  const RunResult with = train({.flags = kAdapters}),
                  without = train({.flags = words("--num-layers 4 --train-iters 3")});
  EXPECT_EQ(with.losses.front(), without.losses.front());  // y = x at the start
  EXPECT_NE(with.losses.back(), without.losses.back());
  EXPECT_EQ(with.weights.size(), without.weights.size() + 8);
}

TEST(OwnLayer, ItsLossesAreThoseOfOneRankUnderEveryLayout) {
  const RunResult one = train({.flags = kAdapters});
  for (const auto& [layout, ranks] :
       {std::pair{"--tensor-model-parallel-size 2", 2},
        {"--tensor-model-parallel-size 2 --sequence-parallel --tp-comm-overlap", 2},
        {"--pipeline-model-parallel-size 2", 2},
        {"--data-parallel-sharding-strategy optim_grads_params --use-distributed-optimizer", 2}}) {
    SCOPED_TRACE(layout);
    const RunResult run = train({.flags = kAdapters + words(layout), .ranks = ranks});
    EXPECT_TRUE(run.copies_agree);
    expect_losses_near(run, one);
  }
}

TEST(OwnLayer, PlanSaysWhatMovesAndWhyTheOthersStay) {
  for (const Words& model : {Words{}, kExperts}) {
    const Words moved = model + offload({"own"});
    const std::int64_t all = own_slots(plans_of(moved));
    EXPECT_EQ(all, 9);  // input, hidden and activated of each layer but the last, which is needed again at once
    EXPECT_EQ(own_slots(plans_of(moved + Words{"--adapter-pins-input"})), 6);
    EXPECT_EQ(own_slots(plans_of(moved + Words{"--adapter-pins-input"}), "its layer marks it never_offload"), 4);
    EXPECT_EQ(own_slots(plans_of(model + offload({"core_attn"})), "not in --offload-modules"), 12);
    EXPECT_EQ(own_slots(plans_of(model + offload({"own:1-2"}))), 6);
  }
}

TEST(OwnLayer, GraphsOfItAloneAreOnesOfEachLayer) {
  const auto graphs = [](const char* modules) {
    return plans_of(words("--cuda-graph-impl local --cuda-graph-modules") + words(modules)).graphs;
  };
  EXPECT_GT(graphs("own").graphs, 0);
  EXPECT_EQ(graphs("own").graphs % 4, 0);
  EXPECT_EQ(graphs("own").graphs, graphs("mlp").graphs);
  EXPECT_EQ(graphs("mlp own").graphs, 2 * graphs("mlp").graphs);
}

// The plan has the hook, in the middle of a layer.
TEST(OwnLayer, PlanSeesItsHooks) {
  const Words graphs = words("--cuda-graph-impl local --cuda-graph-modules layer --adapter-says hello");
  EXPECT_THAT(error_of(ExitCode::kInternal, [&] { plans_of(graphs); }), HasSubstr("layer 0 own"));
}

TEST(OwnLayer, ItsParametersAndFlopsAreCounted) {
  Options options = parse_flags(App::kTrain, tiny_flags() + kAdapters, 0, own_options()).options;
  const std::int64_t elements = 4 * 2 * 8 * options.model.hidden_size;
  EXPECT_EQ(count_parameters(options).own, elements);
  EXPECT_EQ(count_parameters(options).total, count_parameters(options.model).total + elements);
  EXPECT_DOUBLE_EQ(flops_per_token(options), flops_per_token(options.model) + 6.0 * static_cast<double>(elements));
}

TEST(OwnLayer, FlagsThatNameItNeedIt) {
  const auto error = [](const std::string& flags) {
    return error_of(ExitCode::kUsage, [&] { parse_flags(App::kTrain, tiny_flags() + words(flags), 0, own_options()); });
  };
  for (const std::string with : {"", "--adapter-rank 0"}) {
    EXPECT_THAT(error(with + " --fine-grained-activation-offloading --offload-modules own"),
                HasSubstr("add a custom layer that keeps tensors"));
    EXPECT_THAT(error(with + " --cuda-graph-impl local --cuda-graph-modules own"),
                HasSubstr("own only with custom layers"));
    EXPECT_THAT(error(with + " --recompute-granularity selective --recompute-modules own"),
                HasSubstr("own only with custom layers"));
  }
  EXPECT_THAT(error("--adapter-rank 8 --recompute-granularity selective --recompute-modules own "
                    "--fine-grained-activation-offloading --offload-modules own"),
              HasSubstr("own, which is recomputed: nothing that can move is kept"));
  EXPECT_THAT(error("--adapter-rank 9 --tensor-model-parallel-size 2"),
              HasSubstr("an --adapter-rank that 2 divides, got 9"));
  EXPECT_THAT(error("--adapter-rank -1"), HasSubstr("--adapter-rank: expected"));
}

TEST(OwnFlags, ABadDeclarationIsAnErrorOfTheProgram) {
  const auto error = [](OwnFlag flag) {
    return error_of(ExitCode::kInternal, [&] { FlagParser(App::kTrain, {.flags = {flag}}); });
  };
  EXPECT_THAT(error({.name = "lr", .unit = "X", .help = "", .value = 1.0}), HasSubstr("a unique name"));
  EXPECT_THAT(error({.name = "My_Flag", .unit = "X", .help = "", .value = 1.0}), HasSubstr("lowercase letters"));
  EXPECT_THAT(error({.name = "mine", .unit = "", .help = "", .value = 1.0}), HasSubstr("a unit for a value"));
  EXPECT_THAT(error({.name = "mine", .unit = "", .help = "", .value = true}), HasSubstr("off by default"));
}

}  // namespace
}  // namespace megalith::test
