// A layer of experts that is sharded over thread ranks. The harness runs its verbs on each rank's tokens and joins the
// results of all ranks.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "moe/moe_layer.h"
#include "tests/support/mlp_kind.h"

namespace megalith::test {

// Experts that all tokens choose: by router, of the first rank, or of the last rank.
enum class Routing { kOwn, kFirstRank, kLastRank };

struct RankLayerCase {
  MoeConfig moe;
  DType dtype = DType::kFp32;
  int ranks = 1;
  int copies = 1;  // ranks that hold parts of the same experts
  int layers = 1;  // layers of the model, all with experts; the last one is tested
  MoeTokenDispatcher way = MoeTokenDispatcher::kAllToAll;
  bool overlap = false;
  bool waits_after_weights = false;
  bool delay_weights = false;  // run all backward_weight after the last backward_data
  bool recompute_shared = false;
  std::int64_t tokens = 16;  // over all ranks, in sequences of 4
  Routing routing = Routing::kOwn;
  int seed = 1;         // for the tokens
  bool replay = false;  // capture without tokens, then replay with other tokens and with these
  bool check_hazards = false;
  MlpKind kind = {};
  std::int64_t suppressed_wait = -1;
};

struct RankLayerResult {
  using Gradients = std::map<std::string, std::vector<float>>;  // of unsharded parameters; key: name

  std::vector<std::vector<float>> outputs;      // out, residual, gradients of the inputs: [tokens, H] over all ranks
  Gradients experts;                            // joined from the ranks' parts
  Gradients dense;                              // sums over the ranks
  std::vector<float> sums;                      // sums of the step over the ranks
  std::vector<std::int32_t> rows_sent, needed;  // by rank, for all layers, as in Microbatch
  std::vector<std::int32_t> expert_counts;      // by rank, for all layers
  std::int64_t hazards = 0, waits = 0;          // of rank 0; also set if the run threw
  std::int64_t waits_of_dispatch = 0;           // of rank 0, in Dispatch::backward_data

  std::map<std::string, std::vector<std::vector<float>>> dense_of_each;  // by rank
  std::vector<std::vector<float>> sums_of_each;
};

inline constexpr std::int64_t kRankLayerHidden = 8;

RankLayerResult run_rank_layer(const RankLayerCase& test);

// Expect equal bits.
void expect_same_rows(const RankLayerResult& a, const RankLayerResult& b);     // outputs
void expect_same_experts(const RankLayerResult& a, const RankLayerResult& b);  // outputs and gradients of experts
void expect_same(const RankLayerResult& a, const RankLayerResult& b);          // all floating-point results

// Expect equality within `tolerance`, relative to each tensor's norm.
void expect_near(const RankLayerResult::Gradients& a, const RankLayerResult::Gradients& b, double tolerance);
void expect_near_rows(const RankLayerResult& a, const RankLayerResult& b, double tolerance);

}  // namespace megalith::test
