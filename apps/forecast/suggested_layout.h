// Layout that --suggest considers, and lower bounds of its costs.
#pragma once

#include <cstdint>
#include <future>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "apps/config/memory_options.h"
#include "apps/config/options.h"
#include "apps/config/parallel_options.h"
#include "apps/forecast/layer_costs.h"
#include "parallel/cost/rates.h"

namespace megalith {

struct SuggestedLayout {
  std::int64_t tp = 1;
  std::int64_t pp = 1;
  std::int64_t ep = 1;
  std::int64_t chunks = 1;
  bool zero_bubble = false;
  std::int64_t micro_batch_size = 1;
  ShardingStrategy sharding = ShardingStrategy::kNoShard;
  std::int64_t instances = 1;  // groups of adjacent replicas, each of which holds all shards
  bool overlaps = false;       // tensor-parallel collectives with GEMMs
  bool pairs = false;          // exchanges of experts' rows with another microbatch
};

// True if ranks hold copies of any parameter, as tensor-parallel ranks may of experts.
bool has_replicas(const ModelConfig& model, std::int64_t world, const SuggestedLayout& layout);
// True if tensor-parallel collectives can overlap with GEMMs.
bool can_overlap(const ModelConfig& model, const SuggestedLayout& layout);
// True if exchanges of experts' rows can overlap with another microbatch.
bool can_pair(const ModelConfig& model, const SuggestedLayout& layout);
// Values of --recompute-modules that cost little time.
std::vector<std::string> cheap_modules(const Options& options);
Options with_layout(Options options, const SuggestedLayout& layout, RecomputeGranularity recompute);

// Lower bounds of a layout's costs from the costs of a few of its layers, without a recording. Pipelines, schedules and
// sharding do not change these costs. `options` and `rates` outlive it. Thread-safe.
class LayoutBounds {
 public:
  LayoutBounds(const Options& options, int world, const Rates& rates)
      : options_(options), world_(world), rates_(rates) {}

  double seconds(const SuggestedLayout& layout, RecomputeGranularity recompute);
  // Bytes of weights, gradients, main parameters and moments, without slots of units.
  double states(const SuggestedLayout& layout) const;
  double memory(const SuggestedLayout& layout, RecomputeGranularity recompute);  // bytes, with activations

 private:
  LayerCosts costs(const SuggestedLayout& layout, RecomputeGranularity recompute);
  double unit_seconds(const SuggestedLayout& layout) const;
  double microbatches(const SuggestedLayout& layout) const;

  using Key =
      std::tuple<std::int64_t, std::int64_t, std::int64_t, bool, bool, bool, std::int64_t, RecomputeGranularity>;
  const Options& options_;
  int world_;
  const Rates& rates_;
  std::mutex mutex_;
  std::map<Key, std::shared_future<LayerCosts>> costs_;  // guarded by mutex_
};

}  // namespace megalith
