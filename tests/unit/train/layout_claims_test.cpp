// The guarantees of every layout, as one table of claims and layouts. Each layout trains the model of one rank and
// repeats without hazards. Schedules and recomputation change no bit; any other layout loads its checkpoints.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <functional>
#include <map>
#include <mutex>

#include "tests/support/tier.h"
#include "tests/unit/train/layouts.h"
#include "tests/unit/train/moe/moe_families.h"

namespace megalith::test {
namespace {

// A run that many layouts are compared with, once.
const RunResult& of_one_rank(const Words& flags) {
  static std::map<Words, RunResult> runs;
  const auto [run, is_new] = runs.try_emplace(flags);
  if (is_new) run->second = train({.flags = flags});
  return run->second;
}

// Letters, digits and underscores, as in test names.
std::string identifier(std::string name) {
  std::ranges::replace_if(
      name, [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return name;
}

std::vector<Layout> claimed_layouts() {
  return {{.data = 2},
          {.data = 4},
          {.pipeline = 2},
          {.pipeline = 4},
          {.pipeline = 2, .data = 2, .sharing = Sharing::kOverlapped},
          {.tensor = 2},
          {.tensor = 2, .sequence = true},
          {.tensor = 4},
          {.tensor = 4, .sequence = true},
          {.tensor = 2, .sequence = true, .data = 2},
          {.context = 2},
          {.context = 2, .communication = "a2a"},
          {.context = 2, .communication = "all_gather"},
          {.context = 4},
          {.tensor = 2, .context = 2},
          {.tensor = 2, .sequence = true, .context = 2},
          {.pipeline = 2, .context = 2},
          {.data = 2, .context = 2},
          {.tensor = 2, .sequence = true, .pipeline = 2, .context = 2}};
}

using FamilyAndLayout = std::tuple<Family, Layout>;

class EachLayout : public testing::TestWithParam<FamilyAndLayout> {
 protected:
  void SetUp() override {
    if (layout().communication == "a2a" && family().name == "qwen2") GTEST_SKIP() << "one head of keys for two ranks";
  }
  const Family& family() const { return std::get<0>(GetParam()); }
  const Layout& layout() const { return std::get<1>(GetParam()); }
  Words model() const { return sizes_for(layout()) + family().flags + kDropout; }
  // Microbatches of two sequences, of 16 tokens.
  Words model_of_two_sequences() const {
    return model() + Words{"--micro-batch-size", "2", "--seq-length", "16", "--global-batch-size", "8"};
  }
};
INSTANTIATE_TEST_SUITE_P(Claims, EachLayout,
                         testing::Combine(testing::ValuesIn(families()), testing::ValuesIn(claimed_layouts())),
                         [](const testing::TestParamInfo<FamilyAndLayout>& info) {
                           const std::string& family = std::get<0>(info.param).name;
                           return identifier(family + "_" + std::get<1>(info.param).name());
                         });

TEST_P(EachLayout, HasTheLossesAndNormsOfOneRankOverTwentySteps) {
  const Words flags = model() + Words{"--train-iters", "20", "--lr-warmup-iters", "2"};
  const RunResult& want = of_one_rank(flags);
  const RunResult got = train(flags, layout());
  ASSERT_EQ(want.loss_values.size(), 20u);
  expect_losses_near(got, want);
  expect_norms_near(got, want, 1e-4);
  expect_acted(want, {}, sizes_of(layout()), {.steps = 20}, sizeof(float));
  expect_acted(got, layout(), sizes_of(layout()), {.steps = 20}, sizeof(float));
}

TEST_P(EachLayout, HasTheWeightsAndGradientsOfOneRankInOneStep) {
  const Words flags = model_of_two_sequences() + Words{"--train-iters", "1"};
  const auto weights_before = [&](const Way& way) {
    Tensors weights;
    std::mutex mutex;
    const RunResult run = train({.flags = flags + way.flags, .ranks = way.ranks, .prepare = [&](Trainer& trainer, int) {
                                   const std::lock_guard lock(mutex);
                                   EXPECT_TRUE(put_slices(trainer.rank(), &Parameter::weight, weights));
                                 }});
    return std::pair(run, weights);
  };
  const auto [one, before_one] = weights_before({});
  const auto [many, before_many] = weights_before(way_of(layout()));
  EXPECT_FALSE(before_one.empty());
  EXPECT_TRUE(before_many == before_one);
  const bool cuts_products = layout().tensor * layout().context > 1;  // products are then added up in parts
  expect_gradients_near(many, one, cuts_products ? 5e-6 : 2e-6, family().no_gradient);
  expect_norms_near(many, one, 1e-5);
}

TEST_P(EachLayout, RepeatsItsBitsWithoutAHazard) {
  const Words chunks = layout().context > 1 ? Words{"--loss-chunk-size", "5"} : Words{};
  const Words flags = model_of_two_sequences() + layout().flags() + chunks +
                      words(
                          "--train-iters 2 --check-hazards --eval-interval 1 --eval-iters 1 --ddp-bucket-size 1 "
                          "--overlap-grad-reduce");
  const auto run = [&] { return train({.flags = flags, .ranks = layout().ranks()}); };
  expect_same_state(run(), run());
}

struct Scheduled {
  Layout layout;
  std::size_t family = 1;
  int one_of_schedules = one_of(2);  // in the quick tier, and the others in the next layout
};

TEST(LayoutClaims, EverySchedulesBitsAreTheSameWithoutAHazard) {
  int number = 0;
  for (const Scheduled& row :
       {Scheduled{{.tensor = 2, .sequence = true, .pipeline = 2, .data = 2, .sharing = Sharing::kOptimizer}},
        Scheduled{{.tensor = 4, .pipeline = 2}},
        Scheduled{{.tensor = 2, .sequence = true, .overlap = true, .pipeline = 4}},
        Scheduled{{.tensor = 2, .sequence = true, .overlap = true, .pipeline = 2, .context = 2}},
        Scheduled{{.pipeline = 2, .sharing = Sharing::kOptimizer, .context = 2, .communication = "a2a"}},
        Scheduled{{.pipeline = 2}, 0, 1}, Scheduled{{.pipeline = 2}, 1, 1}, Scheduled{{.pipeline = 4}, 0, 1},
        Scheduled{{.pipeline = 2, .data = 2, .sharing = Sharing::kOverlapped}, 0, 1}}) {
    Layout layout = row.layout;
    const Words flags = sizes_for(layout) + families()[row.family].flags + kDropout + kEvaluations +
                        Words{"--train-iters", "2", "--check-hazards", "--ddp-bucket-size", "1"};
    RunResult first;
    ++number;
    for (const std::string& name : schedules()) {
      if (number++ % row.one_of_schedules != 0) continue;
      layout.schedule = name;
      SCOPED_TRACE(layout.name());
      const RunResult run = train(flags, layout);
      EXPECT_GT(run.event_waits, layout.tensor * layout.context > 1 ? 100 : 50);
      for (const RankActivity& did : run.ranks) EXPECT_GT(did.transfer.sent, 0);
      expect_acted(run, layout, sizes_of(layout), {.steps = 2, .evaluations = 1}, sizeof(float));
      if (first.losses.empty()) first = run;
      expect_same_state(run, first);
      EXPECT_TRUE(run.whole_state == first.whole_state);
    }
  }
}

class Recomputation : public testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(
    Claims, Recomputation,
    testing::Values(Way{"gpt2"},  //
                    Way{"llama", llama_flags()}, Way{"bf16", {"--bf16"}},
                    Way{"pp2", stages(2) + words("--num-layers 4"), 2},
                    Way{"pp2_zb_v", stages(2) + schedule("zb-v") + words("--num-layers 4"), 2},
                    Way{"gpt2_tp2", tensor_ranks(2), 2},
                    Way{"gpt2_tp2_sp", Layout{.tensor = 2, .sequence = true}.flags(), 2},
                    Way{"llama_tp2", llama_flags() + tensor_ranks(2), 2},
                    Way{"llama_tp2_sp", llama_flags() + Layout{.tensor = 2, .sequence = true}.flags(), 2},
                    Way{"llama_bf16_cp2", llama_flags() + words("--bf16") + Layout{.context = 2}.flags(), 2},
                    Way{"llama_bf16_cp2_a2a",
                        llama_flags() + words("--bf16") + Layout{.context = 2, .communication = "a2a"}.flags(), 2}),
    [](const auto& way) { return way.param.name; });

TEST_P(Recomputation, ChangesNoBitAndSavesMemory) {
  const Words flags = kDropout + Words{"--train-iters", "3"};
  const RunResult plain = train(flags, GetParam());
  for (const Words& mode : recompute_modes()) {
    SCOPED_TRACE(testing::PrintToString(mode));
    const RunResult recomputed = train(flags + mode, GetParam());
    expect_same_state(recomputed, plain);
    EXPECT_LT(recomputed.arena_planned, plain.arena_planned);
  }
}

// Runs that save after step `step`, end and are resumed.
struct Checkpoints {
  std::string name;
  Words flags = {};
  std::vector<Way> ways = {};
  int step = 3;
  double tolerance = 1e-5;  // for losses in another layout than the saving one
  // Whether layout `to` loads the checkpoint of `from`; all do, if there is no function.
  std::function<bool(std::size_t from, std::size_t to)> loads = nullptr;
};
void PrintTo(const Checkpoints& one, std::ostream* out) { *out << one.name; }

bool the_same(std::size_t from, std::size_t to) { return from == to; }

std::vector<Way> ways_of(const std::vector<Layout>& layouts) {
  std::vector<Way> ways;
  std::ranges::transform(layouts, std::back_inserter(ways), way_of);
  return ways;
}

const Words kDistributed = {"--use-distributed-optimizer"};
const Words kOverlapped = words("--overlap-grad-reduce --ddp-bucket-size 1 --overlap-param-gather");
const Words kUnitsOfAll = strategy("optim_grads_params") + words("--fsdp-embedding-and-head sharded");
// A batch that 1 to 4 replicas divide.
const Words kBatchOf12 =
    words("--hidden-size 16 --seq-length 8 --micro-batch-size 1 --global-batch-size 12 --hidden-dropout 0.1");
const Words kBatchOf8 =
    words("--hidden-size 16 --seq-length 8 --micro-batch-size 1 --global-batch-size 8 --hidden-dropout 0.1");
// 257 words with tensor parallelism: some rows are padding.
const Words kPadded = words("--make-vocab-size-divisible-by 100");

Checkpoints of_pipeline() {
  return {.name = "pipeline",
          .flags = kBatchOf8 + words("--num-layers 4"),
          .ways = {{"pp2_dp2", stages(2), 4},
                   {"one"},
                   {"pp4", stages(4), 4},
                   {"pp2_zb_v", stages(2) + schedule("zb-v"), 2}},
          .loads = [](std::size_t from, std::size_t) { return from == 0; }};
}

Checkpoints of_replicas() {
  return {.name = "replicas",
          .flags = llama_flags() + kDropout + words("--lr-warmup-iters 2"),
          .ways = {{"one"}, {"dp2", {}, 2}, {"dp4", {}, 4}}};
}

Checkpoints of_tensor() {
  return {.name = "tensor",
          .flags = kPadded,
          .ways = ways_of(
              {{}, {.tensor = 2, .sequence = true}, {.tensor = 4}, {.tensor = 2, .sequence = true, .data = 2}})};
}

Checkpoints of_context() {
  return {.name = "context",
          .ways = ways_of({{}, {.context = 2}, {.context = 4}, {.context = 2, .communication = "a2a"}})};
}

// Layouts that are resumed by themselves.
Checkpoints of_bf16() {
  return {.name = "bf16",
          .flags = kDropout + words("--bf16"),
          .ways = {{"dp2", llama_flags() + words("--lr-warmup-iters 2"), 2},
                   {"narrow", words("--main-grads-dtype bf16 --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16"), 2},
                   {"narrow_llama",
                    llama_flags() + words("--main-grads-dtype bf16 --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16"), 2},
                   {"tp4_sp", llama_flags() + Layout{.tensor = 4, .sequence = true}.flags(), 4}},
          .loads = the_same};
}

Checkpoints of_optimizer() {
  return {.name = "optimizer",
          .flags = kBatchOf12 + kDistributed,
          .ways = {{"dp3", words("--bf16") + kOverlapped, 3},
                   {"tp2_dp2", tensor_ranks(2) + llama_flags() + words("--hidden-size 32") + kOverlapped, 4},
                   {"pp2_dp2", stages(2) + words("--bf16"), 4}},
          .loads = the_same};
}

std::vector<Way> optimizer_ways() {
  return {{"dp2", {}, 2},
          {"zero_dp3", kDistributed, 3},
          {"zero_tp2_dp3", kDistributed + tensor_ranks(2), 6},
          {"zero_dp4", kDistributed + kOverlapped, 4},
          {"zero_pp2_dp2", kDistributed + stages(2), 4}};
}
Checkpoints of_optimizer_bf16() {
  return {.name = "optimizer_bf16",
          .flags = kBatchOf12 + kPadded + words("--bf16 --train-iters 4"),
          .ways = optimizer_ways(),
          .tolerance = 2e-3};
}
Checkpoints of_optimizer_fp32() {
  std::vector<Way> ways = optimizer_ways();
  ways.resize(3);  // in the others slices are the same
  return {.name = "optimizer_fp32", .flags = kBatchOf12 + kPadded + words("--train-iters 4"), .ways = ways};
}

Checkpoints of_instances() {
  const auto instances = [](int count) {
    return Words{"--num-distributed-optimizer-instances", std::to_string(count)};
  };
  return {
      .name = "instances",
      .flags = kBatchOf8 + words("--bf16 --train-iters 3"),
      .ways = {{"hybrid_2", kDistributed + instances(2), 4},
               {"outer", strategy("optim_grads_params") + instances(2) + words("--outer-dp-sharding-strategy optim"), 4,
                words("--async-save")},
               {"hybrid_4", kDistributed + instances(4), 8},
               {"one"}},
      .step = 2,
      .tolerance = 2e-3,
      .loads = [](std::size_t from, std::size_t) { return from < 2; }};
}

Checkpoints of_strategies() {
  const Words last = kUnitsOfAll + words("--fsdp-reduce-grads last");
  return {.name = "strategies",
          .flags = kBatchOf8 + words("--num-layers 4 --untie-embeddings-and-output-weights --bf16 --train-iters 4"),
          .ways = {{"no_shard", {}, 2},
                   {"optim", strategy("optim"), 2},
                   {"gradients", strategy("optim_grads"), 4},
                   {"each", kUnitsOfAll, 2, words("--async-save")},
                   {"last_tp2", last + tensor_ranks(2), 8},
                   {"each_pp2", kUnitsOfAll + stages(2), 4}},
          .step = 2,
          .tolerance = 2e-3,
          .loads = [](std::size_t from, std::size_t to) {
            const std::size_t number = to < from ? to : to - 1;  // among the others
            return from == to || number % static_cast<std::size_t>(one_of(3)) == 0;
          }};
}

// Fourteen pairs in fp32, seven more with main parameters and a padded vocabulary, whose row counts per rank differ.
Checkpoints of_combined(const std::string& name, const Words& model, const std::vector<std::size_t>& distances,
                        double tolerance) {
  const std::vector<Way> ways =
      ways_of({{},
               {.tensor = 2, .sequence = true, .pipeline = 2, .data = 2, .sharing = Sharing::kOptimizer},
               {.tensor = 2, .pipeline = 2, .schedule = "interleaved"},
               {.tensor = 4, .sequence = true, .pipeline = 2, .schedule = "zb-v"},
               {.pipeline = 4, .data = 2, .schedule = "zb-h1", .sharing = Sharing::kOverlapped},
               {.tensor = 2, .sequence = true, .pipeline = 4, .schedule = "interleaved"},
               {.tensor = 2, .sequence = true, .data = 2, .context = 2}});
  const auto loads = [distances, count = ways.size()](std::size_t from, std::size_t to) {
    if (from % static_cast<std::size_t>(one_of(4)) != 0) return false;
    return from == to || std::ranges::count(distances, (to + count - from) % count) > 0;
  };
  const Words sizes = words(
      "--num-layers 8 --hidden-size 16 --seq-length 8 --micro-batch-size 1 --global-batch-size 4 --hidden-dropout 0.1 "
      "--train-iters 3 --lr-warmup-iters 1");
  return {.name = name, .flags = model + sizes, .ways = ways, .step = 2, .tolerance = tolerance, .loads = loads};
}

// Experts whose weights and gradients are shards, loaded by ranks that hold them unsharded and by stages.
Checkpoints of_experts(const Family& family) {
  const Layout sharded{.tensor = 2, .sequence = true, .data = 2, .sharing = Sharing::kUnits};
  return {.name = family.name,
          .flags = sizes_for({}) + family.flags + words("--bf16 --train-iters 6"),
          .ways = ways_of({sharded, {}, {.tensor = 2, .sequence = true, .pipeline = 2}}),
          .step = 2,
          .tolerance = 2e-3,
          .loads = [](std::size_t from, std::size_t) { return from == 0; }};
}

class EachCheckpoint : public testing::TestWithParam<Checkpoints> {
 protected:
  static void expect_resumed(const RunResult& saved, const RunResult& rest, const RunResult& unbroken) {
    EXPECT_EQ(saved.losses + rest.losses, unbroken.losses);
    EXPECT_EQ(saved.grad_norms + rest.grad_norms, unbroken.grad_norms);
    EXPECT_TRUE(same_bits(rest.weights, unbroken.weights));
    EXPECT_TRUE(same_bits(rest.whole_state, unbroken.whole_state));
  }
};
INSTANTIATE_TEST_SUITE_P(Claims, EachCheckpoint,
                         testing::Values(of_pipeline(), of_replicas(), of_tensor(), of_context(), of_bf16(),
                                         of_optimizer(), of_optimizer_bf16(), of_optimizer_fp32(), of_instances(),
                                         of_strategies(), of_combined("gpt2", {}, {1, 2}, 1e-5),
                                         of_combined("qwen2_in_bf16", families()[2].flags + kPadded + words("--bf16"),
                                                     {3}, 1e-3),
                                         of_experts(moe_families()[0]), of_experts(moe_families()[1])),
                         [](const auto& one) { return one.param.name; });

TEST_P(EachCheckpoint, GoesFromAnyLayoutToAnyOther) {
  const auto& [name, flags, ways, step, tolerance, loads] = GetParam();
  const auto steps = static_cast<std::size_t>(step);
  const TestFolder scratch;
  for (std::size_t from = 0; from < ways.size(); ++from) {
    if (loads && !loads(from, from)) continue;
    const std::string folder = scratch.path(ways[from].name);
    const RunResult unbroken = train(flags, ways[from]);
    const Words saving = ways[from].saving + Words{"--exit-interval", std::to_string(step), "--save", folder};
    const RunResult saved = train(flags + saving, ways[from]);
    EXPECT_EQ(saved.code, ExitCode::kStoppedOnRequest);
    ASSERT_EQ(saved.losses.size(), steps);
    for (std::size_t to = 0; to < ways.size(); ++to) {
      if (loads && !loads(from, to)) continue;
      SCOPED_TRACE(ways[from].name + " to " + ways[to].name);
      Tensors loaded;
      std::mutex mutex;
      const RunResult rest = train({.flags = flags + ways[to].flags + Words{"--load", folder},
                                    .ranks = ways[to].ranks,
                                    .prepare = [&](Trainer& trainer, int) {
                                      const std::lock_guard lock(mutex);
                                      EXPECT_TRUE(put_state(trainer.rank(), loaded));
                                    }});
      EXPECT_TRUE(same_bits(loaded, saved.whole_state));
      EXPECT_TRUE(rest.copies_agree);
      ASSERT_EQ(rest.loss_values.size() + steps, unbroken.loss_values.size());
      for (std::size_t i = 0; i < rest.loss_values.size(); ++i)
        EXPECT_NEAR(rest.loss_values[i] / unbroken.loss_values[i + steps], 1, tolerance) << "step " << i + steps + 1;
      if (to == from) expect_resumed(saved, rest, unbroken);
    }
  }
}

}  // namespace
}  // namespace megalith::test
