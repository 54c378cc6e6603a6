#include "apps/train/banner.h"
#include "apps/config/dispatcher_choice.h"
#include "apps/flags/complete_options.h"

#include <gtest/gtest.h>

#include "apps/config/machine_facts.h"
#include "apps/config/parallel_options.h"
#include "apps/program/version.h"
#include "apps/summary/sharding_words.h"
#include "core/layers/segment.h"
#include "tests/support/words.h"
#include "tests/unit/apps/flags_support.h"

namespace megalith {
namespace {

std::string banner_of(const std::vector<std::string>& flags, const std::vector<RankFacts>& ranks) {
  Options options = test::train_options(flags);
  const RunConfig config = complete_options(options, tokenizer_of(options), static_cast<int>(ranks.size()));
  const std::string text = banner_text(options, config, ranks);
  const std::string first = version_line("train") + "\n";
  EXPECT_TRUE(text.starts_with(first)) << text;
  return text.substr(first.size());
}

TEST(Banner, OfOneRank) {
  EXPECT_EQ(
      banner_of({"--device", "cpu"},
                {{.host = "here", .device = "CPU", .bytes = 3 << 20, .owners = "optimizer 2.00, parameters 1.00"}}),
      "  ranks   1 on here, CPU\n"
      "  layout  tp 1 x cp 1 x dp 1 x pp 1, 1 microbatch of 1 sequence per step\n"
      "  model   126.7 k parameters (126720): 2 layers of hidden size 64, 4 heads, vocabulary 257, fp32\n"
      "  tokens  32 per step in sequences of 32, 3.2 k in 100 steps, from --mock-data\n"
      "  memory  rank 0 needs 3.00 MiB by forecast: optimizer 2.00, parameters 1.00\n");
}

TEST(Banner, OfRanksOnManyHosts) {
  std::vector<RankFacts> ranks;
  for (const char* host : {"a", "b", "c", "d", "e"}) {
    for (int i = 0; i < 4; ++i) ranks.push_back({.host = host, .device = "NVIDIA H200", .bytes = 1, .owners = ""});
  }
  ranks.resize(16);
  ranks[5] = {.host = "b", .device = "NVIDIA H200", .bytes = 5 << 20, .owners = "gradients 5.00"};
  const std::vector<std::string> flags = test::words(
      "--device cpu --bf16 --num-query-groups 2 --mock-data=false --data-path 1 x/a 2 x/b "
      "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --sequence-parallel "
      "--use-distributed-optimizer --num-distributed-optimizer-instances 2 --micro-batch-size 2 "
      "--global-batch-size 32 --train-iters 1");
  EXPECT_EQ(
      banner_of(flags, ranks),
      "  ranks   16 on 4 hosts (a: 4, b: 4, c: 4, d: 4), NVIDIA H200\n"
      "  layout  tp 2 x cp 1 x dp 4 x pp 2, schedule 1f1b, sequence parallel, distributed optimizer in 2 instances, 4 "
      "microbatches of 2 sequences per step\n"
      "  model   118.4 k parameters (118400): 2 layers of hidden size 64, 4 heads in 2 groups, vocabulary 257, bf16\n"
      "  tokens  1024 per step in sequences of 32, 1.0 k in 1 step, from \"x/a\", \"x/b\"\n"
      "  memory  at most, rank 5 needs 5.00 MiB by forecast: gradients 5.00\n");
}

TEST(Banner, SaysWhatGraphsHoldOnAllRanks) {
  constexpr unsigned kAttention = 1U << static_cast<unsigned>(SegmentModule::kAttention);
  constexpr unsigned kMlp = 1U << static_cast<unsigned>(SegmentModule::kMlp);
  const auto graphs_of = [](const std::vector<std::string>& flags, const std::vector<StepGraphs>& graphs) {
    std::vector<RankFacts> ranks(graphs.size());
    for (std::size_t r = 0; r < graphs.size(); ++r) ranks[r].graphs = graphs[r];
    const std::string text = banner_of(flags, ranks);
    const std::size_t at = text.find("  graphs  ");
    return at == std::string::npos ? "" : text.substr(at, text.find('\n', at) - at);
  };
  const StepGraphs both{.graphs = 4, .modules = kAttention | kMlp}, mlp{.graphs = 1, .modules = kMlp}, none;
  EXPECT_EQ(graphs_of({}, {none}), "");
  EXPECT_EQ(graphs_of({"--cuda-graph-impl", "local", "--cuda-graph-warmup-steps", "2"}, {both}),
            "  graphs  layer; 4 graphs per rank, captured after 2 warmup steps (--cuda-graph-warmup-steps; "
            "Megatron-LM's default is 3)");
  const std::vector<std::string> modules = {"--cuda-graph-impl", "transformer_engine", "--cuda-graph-modules", "attn",
                                            "mlp"};
  const std::string captured =
      " per rank, captured after 1 warmup step (--cuda-graph-warmup-steps; Megatron-LM's default is 3); "
      "transformer_engine means local here";
  EXPECT_EQ(graphs_of(modules, {both, both}), "  graphs  attn, mlp; 4 graphs" + captured);
  EXPECT_EQ(graphs_of(modules, {mlp, both}), "  graphs  attn on 1 of 2 ranks, mlp; 1 to 4 graphs" + captured);
  EXPECT_EQ(graphs_of(modules, {none, mlp}),
            "  graphs  attn on 0 of 2 ranks, mlp on 1 of 2 ranks; 0 to 1 graph" + captured);
}

TEST(Banner, SaysWhatBecomesOfEmbeddingAndHead) {
  const auto describe = [](const std::vector<std::string>& more, bool exceeds = false) {
    std::vector<std::string> flags = {"--data-parallel-sharding-strategy", "optim_grads_params"};
    flags.insert(flags.end(), more.begin(), more.end());
    Options options = test::train_options(flags);
    options.machine.ends_exceed_memory = exceeds;
    return describe_ends(options);
  };
  const std::string untied = "--untie-embeddings-and-output-weights", flag = "--fsdp-embedding-and-head";
  EXPECT_EQ(describe({}), "embedding and head unsharded, as they are tied");
  EXPECT_EQ(describe({untied}), "embedding and head unsharded: memory suffices, or shards need no less");
  EXPECT_EQ(describe({untied}, true), "embedding and head sharded, as device memory does not suffice");
  EXPECT_EQ(describe({untied, flag, "whole"}), "embedding and head unsharded, by --fsdp-embedding-and-head");
  EXPECT_EQ(describe({untied, flag, "sharded"}), "embedding and head sharded, by --fsdp-embedding-and-head");
  EXPECT_EQ(describe({untied, "--deterministic-mode"}), "embedding and head unsharded, by --deterministic-mode");
}

TEST(Banner, SaysWhereShardingHasNoEffect) {
  EXPECT_EQ(describe_sharding(ShardingStrategy::kNoShard, 1), "not sharded");
  EXPECT_EQ(describe_sharding(ShardingStrategy::kOptimGradsParams, 2), "fully sharded");
  EXPECT_EQ(describe_sharding(ShardingStrategy::kOptimGradsParams, 1),
            "fully sharded (no effect: sharding group of one rank)");
}

TEST(Banner, OwnersThatTakeNothingAreLeftOut) {
  MemoryUse use;
  use.arena = 1 << 20;
  use.persistent[static_cast<std::size_t>(MemoryCategory::kOptimizer)] = 3 << 20;
  use.persistent[static_cast<std::size_t>(MemoryCategory::kOther)] = 64;
  EXPECT_EQ(describe_owners(use), "optimizer 3.00, activations and temporaries 1.00");
}

// What is told of experts on four ranks.
std::string experts_of(const std::vector<std::string>& flags) {
  std::vector<std::string> all = {"--device", "cpu", "--num-experts", "4", "--swiglu", "--disable-bias-linear"};
  all.insert(all.end(), flags.begin(), flags.end());
  std::string text = banner_of(all, std::vector<RankFacts>(4));
  text = text.substr(text.find("\n  experts ") + 1);
  return text.substr(0, text.find('\n'));
}

TEST(Banner, SaysWhoHoldsExperts) {
  const std::string start =
      "  experts 2 of 4 per token, 158.8 k active parameters, grouped GEMM (--moe-grouped-gemm is always active)";
  const std::string etp_notice =
      "; --expert-tensor-parallel-size 1: each tensor-parallel rank has unsplit experts for its own rows "
      "(Megatron-LM's default is the tensor-parallel size)";
  const std::vector<std::string> tensor{"--tensor-model-parallel-size", "2", "--sequence-parallel"};
  std::vector<std::string> split = tensor;
  split.insert(split.end(), {"--expert-model-parallel-size", "2"});
  EXPECT_EQ(experts_of({}), start);
  EXPECT_EQ(experts_of(tensor), start + etp_notice);
  EXPECT_EQ(experts_of(split),
            start + "; split over etp 1 x ep 2, 2 copies, rows by alltoall (flex needs GPUs)" + etp_notice);
  EXPECT_EQ(experts_of({"--expert-tensor-parallel-size", "4", "--moe-token-dispatcher-type", "allgather"}),
            start + "; split over etp 4 x ep 1, 1 copy, rows by allgather");
  EXPECT_TRUE(experts_of({"--moe-shared-expert-overlap", "--moe-shared-expert-intermediate-size", "24"})
                  .ends_with("; --moe-shared-expert-overlap has no effect, as no rank waits for rows of others"));
}

TEST(Banner, SaysWhyRowsDoNotGoByFlex) {
  Options options;
  options.device = DeviceType::kCuda;
  for (const MoeTokenDispatcher asked : {MoeTokenDispatcher::kAuto, MoeTokenDispatcher::kFlex}) {
    options.parallel.moe_token_dispatcher_type = asked;
    options.machine.lacks_peer_access = false;
    EXPECT_EQ(describe_dispatcher(options), "rows by flex");
    options.machine.lacks_peer_access = true;
    EXPECT_EQ(describe_dispatcher(options), "rows by alltoall (flex needs GPUs that all map each other's memory)");
  }
  options.parallel.moe_token_dispatcher_type = MoeTokenDispatcher::kAllToAll;
  EXPECT_EQ(describe_dispatcher(options), "rows by alltoall");
}

}  // namespace
}  // namespace megalith
