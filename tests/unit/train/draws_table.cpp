// Values that can be drawn.
#include <algorithm>

#include "tests/unit/train/draws.h"
#include "tests/unit/train/moe/moe_families.h"

namespace megalith::test {

namespace {

using enum Bits;
using Values = std::vector<Row::Value>;

// One value a line; the first is nothing of it.
Values lines(const Words& all) {
  Values values = {{}};
  for (const std::string& line : all) values.push_back({words(line)});
  return values;
}

Values of_families() {
  Values values;
  for (const Family& family : families()) values.push_back({family.flags});
  for (const Family& family : moe_families()) values.push_back({family.flags});
  values.push_back({llama_flags() + words("--ffn-hidden-size 32 --num-experts 8 --moe-ffn-hidden-size 16 "
                                          "--moe-router-topk 3 --moe-layer-freq 2 --moe-z-loss-coeff 0.01 "
                                          "--moe-router-pre-softmax")});
  values.push_back(
      {words("--position-embedding-type rope --squared-relu --apply-layernorm-1p --ffn-hidden-size 32 "
             "--num-experts 4 --moe-ffn-hidden-size 16")});
  return values;
}
constexpr int kDenseFamilies = 3;
bool has_experts(const Draw& draw) { return draw.at("family") >= kDenseFamilies; }
bool has_shared_expert(const Draw& draw) { return has_experts(draw) && draw.at("family") < kDenseFamilies + 2; }

// Sums of each microbatch over the replicas have an order, and those of instances another.
Values of_sharings() {
  Values values;
  for (int i = 0; i < kNumSharings; ++i) {
    const Layout layout{.sharing = static_cast<Sharing>(i)};
    const bool each = layout.sums_each_microbatch(), in_instances = layout.sharing == Sharing::kUnitsOfTwoInstances;
    const Words none = Layout{}.flags();
    Words flags = layout.flags();
    flags.erase(flags.begin(), flags.begin() + static_cast<std::ptrdiff_t>(none.size()));
    values.push_back({flags, in_instances ? 6 : each ? 3 : 0});
  }
  return values;
}
Sharing sharing_of(const Draw& draw) { return static_cast<Sharing>(draw.at("sharing")); }
bool gathers_units(const Draw& draw) { return Layout{.sharing = sharing_of(draw)}.gathers_units(); }
bool reduces_each_microbatch(const Draw& draw) {
  return sharing_of(draw) == Sharing::kUnits || sharing_of(draw) == Sharing::kUnitsOfTwoInstances;
}

Values of_offloads() {
  Values values = {{}};
  for (const char* kinds : {"core_attn", "attn_norm qkv_linear core_attn attn_proj mlp_norm fc1 act fc2", "fc1 act",
                            "layer_input", "qkv_linear attn_proj:1-2 mlp_norm", "expert_fc1 moe_act",
                            "expert_fc1 moe_act expert_fc2 attn_norm core_attn", "fused_group_mlp"})
    values.push_back({offload(words(kinds))});
  values.push_back({offload({"auto"}) + Words{"--rates", MEGALITH_SOURCE_DIR "/configs/rates/h200.toml"}});
  return values;
}

// Documents of mock data, and packs of chats. One token in 22 of mock data ends a document.
Values of_documents() {
  const std::string marked = "--tokenizer-type null --vocab-size 7 --reset-position-ids --reset-attention-mask";
  Values values =
      lines({"--dataloader-inter-document-masking", "--dataloader-inter-document-masking --calculate-per-token-loss",
             marked, marked + " --eod-mask-loss", marked + " --eod-mask-loss --calculate-per-token-loss"});
  for (const char* packs : {"short", "long"})
    values.push_back({words("--mock-data=false --sft --split 70,30 --data-path") +
                      Words{std::string(MEGALITH_SOURCE_DIR "/tests/golden/packs/") + packs}});
  return values;
}

const auto with = [](std::string_view row) { return [row](const Draw& draw) { return draw.at(row) > 0; }; };
const auto both = [](auto one, auto other) {
  return [one, other](const Draw& draw) { return one(draw) && other(draw); };
};
bool has_several_ranks(const Draw& draw) { return draw.ranks > 1; }

std::vector<Row> rows_of_models() {
  return {
      {"family", kModel, of_families()},
      {"layers", kModel, {{words("--num-layers 4")}, {words("--num-layers 8")}}},
      {"tokens",
       kModel,
       {{words("--micro-batch-size 1 --seq-length 8")},
        {words("--micro-batch-size 2 --seq-length 64")},
        {words("--micro-batch-size 1 --seq-length 64")}}},
      {"batch", kModel, {{words("--global-batch-size 8")}, {words("--global-batch-size 16")}}},
      {"dtype", kModel,
       lines({"--bf16", "--bf16 --main-grads-dtype bf16", "--bf16 --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16"})},
      {"dropout", kModel, lines({"--hidden-dropout 0.1"})},
      {"vocabulary", kModel, lines({"--make-vocab-size-divisible-by 100"})},
      {"loss chunks", kModel, lines({"--loss-chunk-size 4", "--loss-chunk-size 3"})},
      {"clip", kModel, lines({"--clip-grad 0.1", "--clip-grad 0"})},
      {"documents", kModel, of_documents()},
      {"evaluations", kModel, lines({"--eval-interval 2 --eval-iters 1", "--eval-interval 1 --eval-iters 2"})},
      {"NaN steps", kModel, lines({"--lr 1e38 --max-skipped-steps 8"})},
      {"balancing", kModel,
       lines({"--moe-router-load-balancing-type aux_loss seq_aux_loss --moe-aux-loss-coeff 0.1 0.05"}), has_experts},
      // Balances over the microbatches so far, which differ between ranks.
      {"global balancing", kModel, lines({"--moe-router-load-balancing-type global_aux_loss --moe-aux-loss-coeff 0.1"}),
       has_experts, true},
      {"capacity", kModel,
       lines({"--moe-expert-capacity-factor 1", "--moe-expert-capacity-factor 0.7 --moe-token-drop-policy position"}),
       has_experts, true},
  };
}

std::vector<Row> rows_of_layouts() {
  return {
      {"tp", kLayout, lines({"--tensor-model-parallel-size 2", "--tensor-model-parallel-size 4"}), has_several_ranks},
      {"sequence", kLayout, lines({"--sequence-parallel", "--sequence-parallel --tp-comm-overlap"}), with("tp")},
      {"pp", kLayout, lines({"--pipeline-model-parallel-size 2", "--pipeline-model-parallel-size 4"}),
       has_several_ranks},
      {"cp", kLayout,
       lines({"--context-parallel-size 2", "--context-parallel-size 2 --cp-comm-type a2a",
              "--context-parallel-size 2 --cp-comm-type all_gather"}),
       has_several_ranks},
      {"ep", kLayout, lines({"--expert-model-parallel-size 2", "--expert-model-parallel-size 4"}),
       both(has_several_ranks, has_experts)},
      {"etp", kLayout, lines({"--expert-tensor-parallel-size 2"}), both(has_several_ranks, has_experts)},
      {"combine groups", kLayout, lines({"--moe-combine-groups 4"}), with("ep")},
      {"schedule", kSame,
       lines({"--pipeline-schedule gpipe", "--pipeline-schedule interleaved --num-virtual-stages-per-pipeline-rank 2",
              "--pipeline-schedule zb-h1", "--pipeline-schedule zb-v", "--pipeline-schedule dualpipe-v"})},
      {"delayed weights", kSame, lines({"--delay-wgrad-compute"}),
       [](const Draw& draw) { return draw.at("schedule") <= 2; }},
      {"sharing", kSame, of_sharings(), has_several_ranks},
      {"ends", kLayout, lines({"--fsdp-embedding-and-head sharded", "--fsdp-embedding-and-head whole"}),
       reduces_each_microbatch},
      {"unit slots", kSame,
       lines({"--fsdp-unit-slots 1 --fsdp-prefetch 0", "--fsdp-unit-slots 3 --fsdp-prefetch 2",
              "--fsdp-gradient-slots 1"}),
       gathers_units},
      {"buckets", kSame, lines({"--ddp-bucket-size 1000", "--ddp-bucket-size 300"}), with("sharing")},
      {"windows", kModel, lines({"--window-size 5 0", "--window-size 12 0 --window-attn-skip-freq 2"}),
       [](const Draw& draw) { return draw.at("cp") == 0 || draw.at("cp") == 2; }},
  };
}

std::vector<Row> rows_of_steps() {
  return {
      {"graphs", kSame,
       lines({"--cuda-graph-impl local", "--cuda-graph-impl local --cuda-graph-modules attn",
              "--cuda-graph-impl local --cuda-graph-modules mlp",
              "--cuda-graph-impl local --cuda-graph-modules attn mlp",
              "--cuda-graph-impl local --cuda-graph-modules attn moe_router moe_preprocess",
              "--cuda-graph-impl local --cuda-graph-modules moe_router",
              "--cuda-graph-impl local --cuda-graph-modules attn moe"})},
      {"warm-up", kSame, lines({"--cuda-graph-warmup-steps 2"}), with("graphs")},
      {"recomputation", kSame,
       lines({"--recompute-granularity full",
              "--recompute-granularity full --recompute-method uniform --recompute-num-layers 2",
              "--recompute-granularity full --recompute-method block --recompute-num-layers 1",
              "--recompute-granularity selective",
              "--recompute-granularity selective --recompute-modules layernorm mlp_act",
              "--recompute-granularity selective --recompute-modules core_attn mlp --recompute-num-layers 1",
              "--recompute-granularity selective --recompute-modules moe_act layernorm",
              "--recompute-granularity selective --recompute-modules shared_experts core_attn",
              "--recompute-granularity selective --recompute-modules moe"})},
      {"offload", kSame, of_offloads()},
      {"offload share", kSame,
       lines({"--activation-offload-fraction 0.5", "--activation-offload-fraction 0.2", "--min-offload-bytes 512"}),
       with("offload")},
      {"offload distance", kSame, lines({"--offload-distance 0", "--offload-distance 1", "--offload-distance 2"}),
       with("offload")},
      {"fusion", kSame, lines({"--moe-grouped-gemm --use-transformer-engine-op-fuser"}), has_experts},
      {"dispatcher", kSame, lines({"--moe-token-dispatcher-type allgather", "--moe-token-dispatcher-type alltoall"}),
       with("ep")},
      {"shared expert", kSame, lines({"--moe-shared-expert-overlap"}), has_shared_expert},
      {"overlap", kSame, lines({"--overlap-moe-expert-parallel-comm"}),
       [](const Draw& draw) { return draw.at("ep") > 0 || draw.at("etp") > 0; }},
      // A capacity is at least 128 rows: 64 tokens of a rank need more.
      {"room", kSame, lines({"--moe-expert-rank-capacity-factor 0.2", "--moe-expert-rank-capacity-factor 8"}),
       with("ep")},
  };
}

std::vector<Row> make_rows() {
  std::vector<Row> all = rows_of_models();
  for (const std::vector<Row>& more : {rows_of_layouts(), rows_of_steps()})
    all.insert(all.end(), more.begin(), more.end());
  return all;
}

}  // namespace

const std::vector<Row>& rows() {
  static const std::vector<Row> all = make_rows();
  return all;
}

}  // namespace megalith::test
