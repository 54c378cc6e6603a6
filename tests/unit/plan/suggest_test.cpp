#include "apps/forecast/suggest.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "apps/config/memory_options.h"
#include "apps/config/parallel_options.h"
#include "apps/forecast/suggested_layout.h"
#include "core/base/error.h"
#include "tests/support/error_of.h"
#include "tests/support/matchers.h"
#include "tests/support/tier.h"
#include "tests/unit/plan/plan_support.h"

namespace megalith::test {
namespace {

// Enough for any layout.
constexpr std::size_t kPlenty = std::size_t{1} << 40;

Suggestions suggest(const Rates& rates, std::size_t memory, int world = 8, std::size_t count = 10) {
  Options options = complete(plan_flags(), 1);
  options.parallel.world_size = world;
  return suggest_layouts(options, world, {.rates = &rates, .max_memory = memory, .count = count});
}

TEST(Suggest, ListsTheFastestFirstAndEachLayoutOnce) {
  const Rates rates = parse_rates(round_rates(), "rates.toml");
  const Suggestions found = suggest(rates, kPlenty);
  ASSERT_EQ(found.best.size(), 10u);
  EXPECT_TRUE(std::is_sorted(found.best.begin(), found.best.end(),
                             [](const Suggestion& a, const Suggestion& b) { return a.step.seconds < b.step.seconds; }));
  int dropped = 0;
  for (const auto& [reason, count] : found.dropped) dropped += count;
  EXPECT_EQ(found.tried, static_cast<int>(found.best.size()) + dropped);
  std::vector<Words> flags;
  for (const Suggestion& suggestion : found.best) flags.push_back(suggestion.flags);
  std::sort(flags.begin(), flags.end());
  EXPECT_EQ(std::adjacent_find(flags.begin(), flags.end()), flags.end());
}

TEST(Suggest, GivesFlagsThatForecastTheSame) {
  const Rates rates = parse_rates(round_rates(), "rates.toml");
  const Suggestions found = suggest(rates, kPlenty);
  bool is_parallel = false;
  for (const Suggestion& suggestion : found.best) {
    SCOPED_TRACE(testing::PrintToString(suggestion.flags));
    const Options options = complete(plan_flags() + suggestion.flags, 8);
    const Forecast forecast = make_forecast(options, 8, {.rates = &rates});
    EXPECT_NEAR(forecast.step->seconds, suggestion.step.seconds, 1e-9 * suggestion.step.seconds);
    expect_memory_of_suggestion(forecast.step->max_memory, suggestion.step.max_memory);
    is_parallel = is_parallel || options.parallel.tensor_model_parallel_size > 1 ||
                  options.parallel.pipeline_model_parallel_size > 1;
  }
  EXPECT_TRUE(is_parallel);
}

// No layout that the search left out as too slow is faster than one that it lists.
TEST(Suggest, FindsTheSameBestWhateverItLeavesOut) {
  const Rates rates = parse_rates(round_rates(), "rates.toml");
  const Suggestions few = suggest(rates, kPlenty, 4, 3);
  const Suggestions all = suggest(rates, kPlenty, 4, 1000);
  ASSERT_EQ(few.best.size(), 3u);
  ASSERT_GT(all.best.size(), 10u);
  for (std::size_t i = 0; i < few.best.size(); ++i)
    EXPECT_DOUBLE_EQ(few.best[i].step.seconds, all.best[i].step.seconds);
}

// A forecast would also reject each layout that the search rejects by its bounds.
TEST(Suggest, BoundsAreBelowTheForecasts) {
  const Rates rates = parse_rates(round_rates(), "rates.toml");
  Options options =
      complete(plan_flags() + Words{"--bf16", "--num-experts", "4", "--moe-layer-freq", "[0]*1+[1]*3", "--swiglu",
                                    "--disable-bias-linear", "--untie-embeddings-and-output-weights"},
               1);
  constexpr int kRanks = 4;
  options.parallel.world_size = kRanks;
  LayoutBounds bounds(options, kRanks, rates);
  double closest = 0;
  int looked_at = 0;
  const auto look_at = [&](const SuggestedLayout& layout, RecomputeGranularity recompute) {
    SCOPED_TRACE(fmt::format("tp {} pp {} ep {} chunks {} zero bubble {} micro {} sharding {} x {} recompute {}",
                             layout.tp, layout.pp, layout.ep, layout.chunks, layout.zero_bubble,
                             layout.micro_batch_size, static_cast<int>(layout.sharding), layout.instances,
                             static_cast<int>(recompute)));
    const Forecast forecast =
        make_forecast(with_layout(options, layout, recompute), kRanks, {.rates = &rates, .one_of_equal = true});
    EXPECT_LE(bounds.seconds(layout, recompute), forecast.step->seconds);
    EXPECT_LE(bounds.memory(layout, recompute), static_cast<double>(forecast.step->max_memory));
    closest = std::max(closest, bounds.seconds(layout, recompute) / forecast.step->seconds);
    ++looked_at;
  };
  for (const auto& [tp, pp, ep] : {std::array{1, 1, 1}, {2, 1, 1}, {1, 1, 4}, {1, 2, 2}, {2, 2, 1}, {1, 4, 1}}) {
    for (const ShardingStrategy sharding : {ShardingStrategy::kOptim, ShardingStrategy::kNoShard,
                                            ShardingStrategy::kOptimGrads, ShardingStrategy::kOptimGradsParams}) {
      SuggestedLayout layout{.tp = tp, .pp = pp, .ep = ep, .micro_batch_size = 2, .sharding = sharding};
      if (sharding != ShardingStrategy::kNoShard && !has_replicas(options.model, kRanks, layout)) continue;
      for (const RecomputeGranularity recompute :
           {RecomputeGranularity::kNone, RecomputeGranularity::kSelective, RecomputeGranularity::kFull})
        look_at(layout, recompute);
      if (tp * pp * ep == 1 && sharding != ShardingStrategy::kNoShard) {
        layout.instances = 2;
        look_at(layout, RecomputeGranularity::kNone);
        layout.instances = 1;
      }
      if (pp == 1) continue;
      layout.zero_bubble = true;
      look_at(layout, RecomputeGranularity::kNone);
      layout.zero_bubble = false;
      layout.chunks = 4 / pp;
      if (layout.chunks > 1) look_at(layout, RecomputeGranularity::kNone);
    }
  }
  EXPECT_GT(looked_at, 40);
  EXPECT_GT(closest, 0.9);
}

// Two hosts of four ranks: shards that stay within a host send less over the network.
TEST(Suggest, HostsWithASlowNetworkHoldAllSharesEach) {
  const Rates rates = rates_with({"network-gbps = 1"});
  const Suggestions found = suggest(rates, kPlenty, 8, 1000);
  int pairs = 0;
  double best = 1;
  for (const Suggestion& suggestion : found.best) {
    Words one = suggestion.flags;  // the same of one instance
    const auto flag = std::ranges::find(one, "--num-distributed-optimizer-instances");
    if (flag == one.end()) continue;
    EXPECT_EQ(*(flag + 1), "2");
    one.erase(flag, flag + 2);
    const auto twin = std::ranges::find(found.best, one, &Suggestion::flags);
    ASSERT_NE(twin, found.best.end());
    EXPECT_LE(suggestion.step.seconds, 1.0001 * twin->step.seconds);
    best = std::min(best, suggestion.step.seconds / twin->step.seconds);
    ++pairs;
  }
  EXPECT_GT(pairs, 3);
  EXPECT_LT(best, 0.8);
}

bool shards_weights(const Suggestion& suggestion) {
  return std::ranges::find(suggestion.flags, "optim_grads_params") != suggestion.flags.end();
}

// Sharded weights appear if memory is short; otherwise, less memory leaves fewer and slower layouts.
TEST(Suggest, KeepsWithinTheMemory) {
  const Rates rates = parse_rates(round_rates(), "rates.toml");
  const Suggestions plenty = suggest(rates, kPlenty, 4, 1000);
  std::size_t most = 0;
  for (const Suggestion& suggestion : plenty.best) most = std::max(most, suggestion.step.max_memory);
  double best = plenty.best.front().step.seconds;
  std::size_t listed = plenty.best.size();
  int number = 0;
  for (const double share : {0.75, 0.5, 0.35, 0.25}) {
    if (++number % one_of(2) != 0) continue;
    const auto limit = static_cast<std::size_t>(share * static_cast<double>(most));
    Suggestions found = suggest(rates, limit, 4, 1000);
    for (const Suggestion& suggestion : found.best) EXPECT_LE(suggestion.step.max_memory, limit);
    std::erase_if(found.best, shards_weights);
    EXPECT_LE(found.best.size(), listed);
    if (found.best.empty()) break;
    EXPECT_GE(found.best.front().step.seconds, best);
    best = found.best.front().step.seconds;
    listed = found.best.size();
  }
  EXPECT_LT(listed, plenty.best.size());
  const Suggestions none = suggest(rates, 1000, 4);
  EXPECT_TRUE(none.best.empty());
  EXPECT_GT(none.dropped.at("need more memory, even with full recomputation"), 0);
}

TEST(Suggest, GradientsOfSlotsAskForASlot) {
  const Rates rates = parse_rates(round_rates(), "rates.toml");
  const Words sent{"--bf16", "--megatron-fsdp-grad-comm-dtype", "bf16"};
  Options options = complete(plan_flags() + sent + Words{"--suggest", "--rates", "rates.toml"}, 1);
  options.parallel.world_size = 4;
  const Suggestions found = suggest_layouts(options, 4, {.rates = &rates, .max_memory = kPlenty, .count = 5});
  EXPECT_EQ(found.best.size(), 5u);
  for (const Suggestion& suggestion : found.best) {
    SCOPED_TRACE(testing::PrintToString(suggestion.flags));
    const Options run = complete(plan_flags() + sent + suggestion.flags, 4);
    EXPECT_GE(run.parallel.max_sharding(), ShardingStrategy::kOptimGrads);
  }
}

TEST(Suggest, OfOneRankHasNoParallelFlags) {
  const Rates rates = parse_rates(round_rates(), "rates.toml");
  for (const Suggestion& suggestion : suggest(rates, kPlenty, 1).best)
    EXPECT_THAT(suggestion.flags, testing::Each(testing::Not(HasSubstr("parallel"))));
}

TEST(Suggest, RefusesFlagsOfTheLayout) {
  EXPECT_NO_THROW(refuse_layout_flags(parse_flags(App::kPlan, plan_flags()).options));
  for (const Words& flags : {Words{"--tensor-model-parallel-size", "2"}, Words{"--use-distributed-optimizer"},
                             Words{"--recompute-granularity", "full"}}) {
    EXPECT_THAT(
        error_of(ExitCode::kUsage, [&] { refuse_layout_flags(parse_flags(App::kPlan, plan_flags() + flags).options); }),
        HasSubstr(flags.front()));
  }
}

TEST(Suggest, FlagsNeedEachOther) {
  for (const auto& [flags, part] :
       {std::pair{Words{"--suggest"}, "--rates"},
        {Words{"--html", "x.html"}, "--rates"},
        {Words{"--device-memory-gib", "80"}, "--rates"},
        {Words{"--suggest", "--rates", "r.toml", "--html", "x.html"}, "--html"},
        {Words{"--suggest", "--rates", "r.toml", "--global-batch-size", "0"}, "--global-batch-size"}}) {
    EXPECT_THAT(error_of(ExitCode::kUsage, [&] { parse_flags(App::kPlan, plan_flags() + flags); }), HasSubstr(part));
  }
}

}  // namespace
}  // namespace megalith::test
