// A layer of experts that thread ranks share out: its verbs on each rank's own tokens, and what all ranks have
// together.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "moe/moe_layer.h"

namespace megalith::test {

// Whom all tokens choose.
enum class Routing { kOwn, kFirstRank, kLastRank };

struct RankLayerCase {
  MoeConfig moe;
  DType dtype = DType::kFp32;
  int ranks = 1;
  int copies = 1;  // of them have parts of the same experts
  int layers = 1;  // of the model, all with experts, of which this one is the last
  MoeTokenDispatcher way = MoeTokenDispatcher::kAllToAll;
  bool overlap = false;
  bool waits_behind = false;
  bool delay_weights = false;  // each backward_weight after the last backward_data
  bool recompute_shared = false;
  std::int64_t tokens = 16;  // of all ranks, in sequences of 4
  Routing routing = Routing::kOwn;
  int seed = 1;         // of the tokens
  bool replay = false;  // verbs captured before there are any tokens, then replayed with others, then with these
  bool check_hazards = false;
  std::int64_t suppressed_wait = -1;
};

struct RankLayerResult {
  using Gradients = std::map<std::string, std::vector<float>>;  // of whole parameters, by name

  std::vector<std::vector<float>> outputs;      // out, residual, gradients of the inputs: [tokens, H] of all ranks
  Gradients experts;                            // each part from its rank
  Gradients dense;                              // sums over the ranks
  std::vector<float> sums;                      // of the step, likewise
  std::vector<std::int32_t> rows_sent, needed;  // rank after rank, as in Microbatch, of all layers
  std::vector<std::int32_t> expert_counts;      // likewise
  std::int64_t hazards = 0, waits = 0;          // of rank 0, known also where the run threw
  std::int64_t waits_of_dispatch = 0;           // likewise, of its backward_data

  std::map<std::string, std::vector<std::vector<float>>> dense_of_each;  // by rank
  std::vector<std::vector<float>> sums_of_each;
};

inline constexpr std::int64_t kRankLayerHidden = 8;

RankLayerResult run_rank_layer(const RankLayerCase& test);

// Bit for bit.
void expect_same_rows(const RankLayerResult& a, const RankLayerResult& b);     // outputs
void expect_same_experts(const RankLayerResult& a, const RankLayerResult& b);  // these and gradients of experts
void expect_same(const RankLayerResult& a, const RankLayerResult& b);          // everything that is numbers of floats

// To rounding, each tensor relative to its norm.
void expect_near(const RankLayerResult::Gradients& a, const RankLayerResult::Gradients& b, double tolerance);
void expect_near_rows(const RankLayerResult& a, const RankLayerResult& b, double tolerance);

}  // namespace megalith::test
