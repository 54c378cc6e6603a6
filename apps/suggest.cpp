#include "apps/suggest.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <future>
#include <limits>
#include <optional>
#include <utility>

#include "apps/flags.h"
#include "core/base/error.h"
#include "core/base/take_part.h"

namespace megalith {

namespace {

constexpr std::int64_t kMostTokens = 65'536;  // of a microbatch, more of which make no GEMM faster

// Layouts forecast concurrently; a constant, so that the answer is the same everywhere.
constexpr std::size_t kTogether = 4;

constexpr const char* kSlower = "slower than those listed";
constexpr const char* kTooSlow = "slower than those listed, even at the fastest rate of all";
constexpr const char* kDoesNotDivide = "heads, width, layers, experts or batch do not divide";
constexpr const char* kTooLarge = "need more memory, even where all layers are recomputed";

struct Layout {
  std::int64_t tp = 1;
  std::int64_t pp = 1;
  std::int64_t ep = 1;
  std::int64_t chunks = 1;
  bool zero_bubble = false;
  std::int64_t micro_batch_size = 1;
  ShardingStrategy sharding = ShardingStrategy::kNoShard;
  bool overlaps = false;     // tensor-parallel collectives with products
  double least_seconds = 0;  // that a step takes
};

std::vector<std::int64_t> divisors_of(std::int64_t number, std::int64_t most) {
  std::vector<std::int64_t> divisors;
  for (std::int64_t d = 1; d <= std::min(number, most); ++d)
    if (number % d == 0) divisors.push_back(d);
  return divisors;
}

// Whether ranks hold copies of anything, as tensor-parallel ones may of experts.
bool has_replicas(const ModelConfig& model, std::int64_t world, const Layout& layout) {
  return world > layout.tp * layout.pp || (model.moe.num_experts > 0 && world > layout.ep * layout.pp);
}

Options with_layout(Options options, const Layout& layout, RecomputeGranularity recompute) {
  ParallelOptions& parallel = options.parallel;
  parallel.tensor_model_parallel_size = layout.tp;
  parallel.sequence_parallel = layout.tp > 1 && options.model.seq_length % layout.tp == 0;
  parallel.tp_comm_overlap = layout.overlaps;
  parallel.pipeline_model_parallel_size = layout.pp;
  parallel.expert_model_parallel_size = layout.ep;
  parallel.moe_shared_expert_overlap |= layout.ep > 1 && options.model.moe.shared_expert_intermediate_size > 0;
  parallel.num_virtual_stages_per_pipeline_rank = layout.chunks > 1 ? layout.chunks : 0;
  if (layout.zero_bubble) parallel.pipeline_schedule = PipelineSchedule::kZbH1;
  parallel.overlap_grad_reduce = has_replicas(options.model, parallel.world_size, layout);
  parallel.use_distributed_optimizer = layout.sharding == ShardingStrategy::kOptim;
  if (layout.sharding == ShardingStrategy::kOptimGradsParams)
    parallel.data_parallel_sharding_strategy = layout.sharding;
  parallel.overlap_param_gather = layout.sharding != ShardingStrategy::kNoShard;
  TrainingOptions& train = options.train;
  train.micro_batch_size = layout.micro_batch_size;
  train.recompute_granularity = recompute;
  if (recompute == RecomputeGranularity::kSelective) train.recompute_modules = {"mlp_act", "layernorm"};
  return options;
}

// Flags that --suggest chooses, all but --micro-batch-size.
bool is_of_layout(const ConfigEntry& entry) {
  constexpr std::array<std::string_view, 13> kOthers = {"world-size",
                                                        "expert-tensor-parallel-size",
                                                        "moe-token-dispatcher-type",
                                                        "moe-expert-rank-capacity-factor",
                                                        "loss-chunk-size",
                                                        "fine-grained-activation-offloading",
                                                        "offload-modules",
                                                        "activation-offload-fraction",
                                                        "offload-mb-per-layer",
                                                        "offload-distance",
                                                        "offload-slowdown",
                                                        "min-offload-bytes",
                                                        "min-offloaded-tensor-size"};
  return (entry.group == "parallel" || entry.group == "memory") &&
         std::ranges::find(kOthers, entry.name) == kOthers.end();
}

// The flags that make these options of those that `effective` still describes.
std::vector<std::string> flags_of(Options options) {
  const std::vector<ConfigEntry> before = options.effective;
  update_effective(options);
  std::vector<std::string> flags;
  for (std::size_t i = 0; i < before.size(); ++i) {
    std::string value = options.effective[i].value;
    const bool is_chosen = is_of_layout(before[i]) && value != before[i].value;
    if (!is_chosen && before[i].name != "micro-batch-size") continue;
    flags.push_back("--" + before[i].name);
    if (value == "true") continue;
    std::erase_if(value, [](char c) { return std::string_view("[\",]").find(c) != std::string_view::npos; });
    for (std::string_view rest = value; !rest.empty();) flags.emplace_back(take_part(rest, ' '));
  }
  return flags;
}

// Do the flags fit together, as those of a command line must?
bool is_legal(const Options& options, int world) {
  try {
    check(App::kPlan, options);
    run_config(options, world).schedule();
    return true;
  } catch (const Error& error) {
    if (error.code() != ExitCode::kUsage) throw;
    return false;
  }
}

class Search {
 public:
  Search(const Options& options, int world, const SuggestSpec& spec) : options_(options), world_(world), spec_(spec) {
    double fastest = 0;
    for (const Rates::GemmPoint& point : spec.rates->gemm) fastest = std::max(fastest, point.flops);
    for (const Rates::AttentionPoint& point : spec.rates->attention)
      fastest = std::max({fastest, point.forward, point.backward});
    const double tokens = static_cast<double>(options.train.global_batch_size * options.model.seq_length);
    busy_seconds_ = flops_per_token(options.model) * tokens / (fastest * world);
  }

  Suggestions run() {
    const std::vector<Layout> all = layouts();
    for (auto next = all.begin(); next != all.end();) {
      std::vector<std::future<Outcome>> work;
      const double bound = this->bound();
      for (; next != all.end() && work.size() < kTogether; ++next) {
        ++found_.tried;
        if (!fits_at_all(*next)) {
          ++found_.dropped[kTooLarge];
        } else if (next->least_seconds >= bound) {
          ++found_.dropped[kTooSlow];
        } else {
          work.push_back(
              std::async(std::launch::async, [this, layout = *next, bound] { return look_at(layout, bound); }));
        }
      }
      for (std::future<Outcome>& outcome : work) take(outcome.get());
    }
    return std::move(found_);
  }

 private:
  struct Outcome {  // of one layout
    std::vector<Suggestion> found;
    std::vector<const char*> dropped;  // a reason each
    bool tried_overlap = false;
  };

  // The ones first that may be the fastest. Those whose flags do not fit together are dropped.
  std::vector<Layout> layouts() {
    std::vector<Layout> layouts;
    const std::int64_t experts = options_.model.moe.num_experts;
    const std::int64_t most_ep = experts == 0 ? 1 : std::min<std::int64_t>(experts, spec_.rates->host_ranks);
    for (const std::int64_t tp : divisors_of(world_, spec_.rates->host_ranks)) {
      for (const std::int64_t pp : divisors_of(world_ / tp, options_.model.num_layers)) {
        for (const std::int64_t ep : divisors_of(world_ / pp, most_ep))
          add_layouts(layouts, {.tp = tp, .pp = pp, .ep = ep});
      }
    }
    std::stable_sort(layouts.begin(), layouts.end(),
                     [](const Layout& a, const Layout& b) { return a.least_seconds < b.least_seconds; });
    return layouts;
  }

  // Of these sizes.
  void add_layouts(std::vector<Layout>& layouts, Layout layout) {
    for (std::int64_t micro = 1; micro == 1 || micro * options_.model.seq_length <= kMostTokens; micro *= 2) {
      layout.micro_batch_size = micro;
      for (const ShardingStrategy sharding :
           {ShardingStrategy::kOptim, ShardingStrategy::kNoShard, ShardingStrategy::kOptimGradsParams}) {
        if (sharding != ShardingStrategy::kNoShard && !has_replicas(options_.model, world_, layout)) continue;
        layout.sharding = sharding;
        if (sharding == ShardingStrategy::kOptimGradsParams && !asks_for_memory(layout)) continue;
        const auto add = [&](std::int64_t chunks, bool zero_bubble) {
          layout.chunks = chunks;
          layout.zero_bubble = zero_bubble;
          add_legal(layouts, layout);
        };
        add(1, false);
        if (layout.pp == 1) continue;
        add(1, true);
        for (std::int64_t chunks = 2; chunks * layout.pp <= options_.model.num_layers && chunks <= 8; chunks *= 2)
          add(chunks, false);
      }
    }
  }

  void add_legal(std::vector<Layout>& layouts, Layout layout) {
    const std::int64_t dp = world_ / (layout.tp * layout.pp);
    const std::int64_t step = dp * layout.micro_batch_size;
    if (options_.train.global_batch_size % step != 0 ||
        !is_legal(with_layout(options_, layout, RecomputeGranularity::kNone), world_)) {
      ++found_.tried;
      ++found_.dropped[kDoesNotDivide];
      return;
    }
    // A stage works for each microbatch, and waits at least for one of each other stage: for a chunk of it, or with W
    // put off for a third.
    const double microbatches = static_cast<double>(options_.train.global_batch_size / step);
    const double share = layout.zero_bubble ? 1.0 / 3 : 1.0 / static_cast<double>(layout.chunks);
    layout.least_seconds = busy_seconds_ * (1 + static_cast<double>(layout.pp - 1) * share / microbatches);
    layouts.push_back(layout);
  }

  // Bytes of weights, gradients and moments alone, without slots of units.
  double least_memory(const Layout& layout) const {
    const TrainingOptions& train = options_.train;
    const auto units = static_cast<double>(size_of(options_.model.params_dtype) + size_of(train.main_grads_dtype));
    const auto moments = static_cast<double>(size_of(train.exp_avg_dtype) + size_of(train.exp_avg_sq_dtype));
    const auto bytes = [&](std::int64_t parameters, std::int64_t parts) {  // split into so many parts, each with copies
      const auto copies = static_cast<double>(world_ / parts);
      return static_cast<double>(parameters) / static_cast<double>(parts) *
             (units / (layout.sharding == ShardingStrategy::kOptimGradsParams ? copies : 1) +
              moments / (layout.sharding == ShardingStrategy::kNoShard ? 1 : copies));
    };
    const ParameterCount count = count_parameters(options_.model);
    return bytes(count.total - count.routed_experts, layout.tp * layout.pp) +
           bytes(count.routed_experts, layout.ep * layout.pp);
  }
  bool fits_at_all(const Layout& layout) const {
    return least_memory(layout) <= static_cast<double>(spec_.most_memory);
  }
  // Sharded weights are gathered in each microbatch: worth a look where shards of the optimizer's state leave less than
  // half of the memory to activations.
  bool asks_for_memory(Layout layout) const {
    layout.sharding = ShardingStrategy::kOptim;
    return 2 * least_memory(layout) > static_cast<double>(spec_.most_memory);
  }

  // With what overlaps, if that may bring the layout among the best: it hides the tensor-parallel collectives at most,
  // and takes more memory. `bound`: of a step's seconds.
  Outcome look_at(Layout layout, double bound) const {
    Outcome outcome;
    const std::optional<Forecast> plain = try_recomputing(layout, bound, outcome);
    if (!plain || layout.tp == 1 || options_.model.seq_length % layout.tp != 0) return outcome;
    double left = 0;  // share of the stages' work that is no such collective
    for (const StageForecast& stage : plain->stages) {
      const double busy = plain->simulation.stages[static_cast<std::size_t>(stage.stage)].busy;
      const auto volume = stage.work.volumes.find("tp");
      const double hidden = volume == stage.work.volumes.end() ? 0 : volume->second.seconds;
      left = std::max(left, busy > 0 ? 1 - hidden / busy : 1);
    }
    if (left * plain->step->seconds >= bound) return outcome;
    outcome.tried_overlap = true;
    layout.overlaps = true;
    try_recomputing(layout, bound, outcome);
    return outcome;
  }

  // Recomputation costs time, so less of it comes first. Nothing where no amount of it fits.
  std::optional<Forecast> try_recomputing(const Layout& layout, double bound, Outcome& outcome) const {
    for (const RecomputeGranularity recompute :
         {RecomputeGranularity::kNone, RecomputeGranularity::kSelective, RecomputeGranularity::kFull}) {
      const Options options = with_layout(options_, layout, recompute);
      ForecastSpec spec{
          .rates = spec_.rates, .one_of_alike = true, .most_recorded = 0, .most_memory = spec_.most_memory};
      Forecast forecast = make_forecast(options, world_, spec);
      if (forecast.step && forecast.step->seconds < bound && layout.pp > 1) {
        // The arena's layout may need a little more with all microbatches.
        spec.most_recorded = ForecastSpec{}.most_recorded;
        forecast = make_forecast(options, world_, spec);
      }
      if (!forecast.step) continue;
      if (forecast.step->seconds < bound) {
        outcome.found.push_back({.flags = flags_of(options), .step = *forecast.step});
      } else {
        outcome.dropped.push_back(kSlower);
      }
      return forecast;
    }
    outcome.dropped.push_back(kTooLarge);
    return std::nullopt;
  }

  // What a step must be faster than to be listed.
  double bound() const {
    return found_.best.size() < spec_.count ? std::numeric_limits<double>::infinity() : found_.best.back().step.seconds;
  }

  void take(Outcome outcome) {
    found_.tried += outcome.tried_overlap ? 1 : 0;
    for (const char* reason : outcome.dropped) ++found_.dropped[reason];
    for (Suggestion& suggestion : outcome.found) list(std::move(suggestion));
  }

  void list(Suggestion suggestion) {
    const auto place =
        std::upper_bound(found_.best.begin(), found_.best.end(), suggestion.step.seconds,
                         [](double seconds, const Suggestion& other) { return seconds < other.step.seconds; });
    found_.best.insert(place, std::move(suggestion));
    if (found_.best.size() <= spec_.count) return;
    found_.best.pop_back();
    ++found_.dropped[kSlower];
  }

  const Options& options_;
  int world_;
  SuggestSpec spec_;
  double busy_seconds_ = 0;  // of a step without waits, at the fastest rate
  Suggestions found_;
};

}  // namespace

void refuse_layout_flags(const Options& options) {
  for (const ConfigEntry& entry : options.effective) {
    if (!is_of_layout(entry) || entry.origin == "default" || entry.origin == "derived") continue;
    refuse_usage(fmt::format("--suggest and --{}", entry.name),
                 {.expected = "no layout flags: --suggest looks for the layout",
                  .got = fmt::format("--{} ({})", entry.name, entry.origin),
                  .remedy = "remove it"});
  }
}

Suggestions suggest_layouts(const Options& options, int world, const SuggestSpec& spec) {
  return Search(options, world, spec).run();
}

}  // namespace megalith
