#include "apps/forecast/suggest.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <future>
#include <limits>
#include <mutex>
#include <optional>
#include <utility>

#include "apps/config/memory_options.h"
#include "apps/config/optimizer_options.h"
#include "apps/config/parallel_options.h"
#include "apps/config/training_options.h"
#include "apps/flags/flags.h"
#include "apps/forecast/suggested_layout.h"
#include "core/base/error.h"
#include "core/base/side_by_side.h"
#include "core/base/take_part.h"
#include "core/model/config.h"

namespace megalith {

namespace {

constexpr std::int64_t kMaxTokens = 65'536;  // per microbatch; more tokens make no GEMM faster

// Spare layouts in addition to those listed, in case full forecasts show that some do not fit.
constexpr std::size_t kSpare = 2;

// A bound misses the end of a step. After this number of forecasts, other layouts are assumed to exceed their bounds by
// at least kMissing of the least excess seen.
constexpr int kLearnsFrom = 16;
constexpr double kMissing = 0.9;

// Granularities by increasing recomputation, which costs time.
constexpr std::array kLessFirst = {RecomputeGranularity::kNone, RecomputeGranularity::kSelective,
                                   RecomputeGranularity::kFull};

constexpr const char* kSlower = "slower than the listed layouts";
constexpr const char* kTooSlow = "slower than the listed layouts, by the time of a few layers";
constexpr const char* kDoesNotDivide = "heads, hidden size, layers, experts or batch size do not divide";
constexpr const char* kTooLarge = "need more memory, even with full recomputation";

std::vector<std::int64_t> divisors_of(std::int64_t number, std::int64_t most) {
  std::vector<std::int64_t> divisors;
  for (std::int64_t d = 1; d <= std::min(number, most); ++d)
    if (number % d == 0) divisors.push_back(d);
  return divisors;
}

// Flags that turn the options of `effective` into these options.
std::vector<std::string> flags_of(Options options) {
  const std::vector<ConfigEntry> before = options.effective;
  update_effective(options);
  std::vector<std::string> flags;
  for (std::size_t i = 0; i < before.size(); ++i) {
    std::string value = options.effective[i].value;
    const bool is_chosen = before[i].suggested && value != before[i].value;
    if (!is_chosen && before[i].name != "micro-batch-size") continue;
    flags.push_back("--" + before[i].name);
    if (value == "true") continue;
    std::erase_if(value, [](char c) { return std::string_view("[\",]").find(c) != std::string_view::npos; });
    for (std::string_view rest = value; !rest.empty();) flags.emplace_back(take_part(rest, ' '));
  }
  return flags;
}

// True if the flags fit together, as a command line requires.
bool is_legal(const Options& options, int world) {
  try {
    check_layout(options);
    check_stages(options.train, run_config(options, world));
    return true;
  } catch (const Error& error) {
    if (error.code() != ExitCode::kUsage) throw;
    return false;
  }
}

class Search {
 public:
  Search(const Options& options, int world, const SuggestSpec& spec)
      : options_(options),
        world_(world),
        spec_(spec),
        most_(spec.count + kSpare),
        bounds_(options, world, *spec.rates) {}

  Suggestions run() {
    const std::vector<Candidate> all = candidates();
    for (auto next = all.begin(); next != all.end();) {
      report("layouts", static_cast<std::size_t>(next - all.begin()), all.size());
      std::vector<std::future<Outcome>> work;
      const double bound = this->bound();
      for (; next != all.end() && work.size() < kForecastsTogether; ++next) {
        ++found_.tried;
        if (next->least_seconds == std::numeric_limits<double>::infinity()) {
          ++found_.dropped[kTooLarge];
        } else if (next->least_seconds * (1 + excess_) >= bound) {
          ++found_.dropped[kTooSlow];
        } else {
          work.push_back(
              std::async(std::launch::async, [this, layout = next->layout, bound] { return look_at(layout, bound); }));
        }
      }
      for (std::future<Outcome>& outcome : work) take(outcome.get());
    }
    finish();
    return std::move(found_);
  }

 private:
  struct Candidate {
    SuggestedLayout layout;
    double least_seconds = 0;  // lower bound of a step, with any overlap
  };
  struct Found {
    Suggestion listed;
    SuggestedLayout layout;
    RecomputeGranularity recompute = RecomputeGranularity::kNone;
    bool whole = false;  // forecast of all microbatches, with a memory layout
  };
  struct Outcome {  // result of one layout
    std::vector<Found> found;
    std::vector<const char*> dropped;  // one reason per layout
    std::vector<double> excesses;      // fractions by which forecasts exceed their bounds
    int tried_overlaps = 0;
  };

  // Candidates by increasing lower bound of the time. Drops layouts whose flags do not fit together or whose state
  // alone is too large.
  std::vector<Candidate> candidates() {
    std::vector<Candidate> all;
    const std::int64_t experts = options_.model.moe.num_experts;
    const std::int64_t max_ep = experts == 0 ? 1 : std::min<std::int64_t>(experts, spec_.rates->host_ranks);
    for (const std::int64_t tp : divisors_of(world_, spec_.rates->host_ranks)) {
      for (const std::int64_t pp : divisors_of(world_ / tp, options_.model.num_layers)) {
        for (const std::int64_t ep : divisors_of(world_ / pp, max_ep)) add_layouts(all, {.tp = tp, .pp = pp, .ep = ep});
      }
    }
    std::atomic<std::size_t> done = 0;
    side_by_side(all.size(), kForecastsTogether, [&](std::size_t i) {
      all[i].least_seconds = least_seconds(all[i].layout);
      report("bounds", ++done, all.size());
    });
    std::stable_sort(all.begin(), all.end(),
                     [](const Candidate& a, const Candidate& b) { return a.least_seconds < b.least_seconds; });
    return all;
  }

  // Lower bound with the least recomputation that may fit; infinity if nothing fits. Overlap does not reduce memory.
  double least_seconds(SuggestedLayout layout) {
    for (const RecomputeGranularity recompute : kLessFirst) {
      if (!may_fit(layout, recompute)) continue;
      const double seconds = bounds_.seconds(layout, recompute);
      layout.overlaps = can_overlap(options_.model, layout);
      const double overlapped = std::min(seconds, bounds_.seconds(layout, recompute));
      layout.pairs = can_pair(options_.model, layout);
      return std::min(overlapped, bounds_.seconds(layout, recompute));
    }
    return std::numeric_limits<double>::infinity();
  }
  bool may_fit(const SuggestedLayout& layout, RecomputeGranularity recompute) {
    return bounds_.memory(layout, recompute) <= static_cast<double>(spec_.max_memory);
  }

  // Adds all layouts of these parallel sizes.
  void add_layouts(std::vector<Candidate>& all, SuggestedLayout layout) {
    const bool asks_for_slots = options_.optimizer.megatron_fsdp_grad_comm_dtype != GradientDType::kAuto;
    for (std::int64_t micro = 1; micro == 1 || micro * options_.model.seq_length <= kMaxTokens; micro *= 2) {
      layout.micro_batch_size = micro;
      for (const ShardingStrategy sharding : {ShardingStrategy::kOptim, ShardingStrategy::kNoShard,
                                              ShardingStrategy::kOptimGrads, ShardingStrategy::kOptimGradsParams}) {
        if (sharding != ShardingStrategy::kNoShard && !has_replicas(options_.model, world_, layout)) continue;
        layout.sharding = sharding;
        const bool each_microbatch = sharding != ShardingStrategy::kNoShard && sharding != ShardingStrategy::kOptim;
        if (each_microbatch ? !asks_for_slots && !asks_for_memory(layout) : asks_for_slots) continue;
        const auto add = [&](std::int64_t chunks, bool zero_bubble) {
          layout.chunks = chunks;
          layout.zero_bubble = zero_bubble;
          for (SuggestedLayout one = layout; const std::int64_t instances : instances_of(layout)) {
            one.instances = instances;
            add_if_legal(all, one);
          }
        };
        add(1, false);
        if (layout.pp == 1) continue;
        add(1, true);
        for (std::int64_t chunks = 2; chunks * layout.pp <= options_.model.num_layers && chunks <= 8; chunks *= 2)
          add(chunks, false);
      }
    }
  }

  // Instance counts: one, and for replicas on several hosts one per host, so that only sums of shards cross the
  // network.
  std::vector<std::int64_t> instances_of(const SuggestedLayout& layout) const {
    const std::int64_t ranks = world_ / layout.pp, of_host = spec_.rates->host_ranks;
    if (layout.sharding == ShardingStrategy::kNoShard || ranks <= of_host || ranks % of_host != 0) return {1};
    return {1, ranks / of_host};
  }

  void add_if_legal(std::vector<Candidate>& all, const SuggestedLayout& layout) {
    const std::int64_t step = world_ / (layout.tp * layout.pp) * layout.micro_batch_size;
    if (options_.train.global_batch_size % step != 0 ||
        !is_legal(with_layout(options_, layout, RecomputeGranularity::kNone), world_)) {
      ++found_.tried;
      ++found_.dropped[kDoesNotDivide];
    } else if (bounds_.states(layout) > static_cast<double>(spec_.max_memory)) {
      ++found_.tried;
      ++found_.dropped[kTooLarge];
    } else {
      all.push_back({.layout = layout});
    }
  }

  // True if optimizer shards leave less than half of the memory to activations. Only then gathers of weights and
  // reductions of gradients in each microbatch may pay off.
  bool asks_for_memory(SuggestedLayout layout) const {
    layout.sharding = ShardingStrategy::kOptim;
    return 2 * bounds_.states(layout) > static_cast<double>(spec_.max_memory);
  }

  // Forecasts the layout, also with each overlap if that may be among the best. An overlap hides at most the
  // collectives of its axis, and takes more memory. `bound`: seconds of a step.
  Outcome look_at(SuggestedLayout layout, double bound) {
    Outcome outcome;
    const std::optional<Forecast> plain = try_recomputing(layout, bound, outcome);
    const bool is_too_large = !plain && outcome.dropped.back() == kTooLarge;
    const auto try_if = [&](bool possible, const char* axis, bool SuggestedLayout::*overlap) {
      if (!possible || is_too_large || (plain && seconds_hidden(*plain, axis) >= bound)) return;
      layout.*overlap = true;
      ++outcome.tried_overlaps;
      try_recomputing(layout, bound, outcome);
    };
    try_if(can_overlap(options_.model, layout), "tp", &SuggestedLayout::overlaps);
    const bool has_pairs = !plain || plain->config.microbatches > 1;
    try_if(has_pairs && can_pair(options_.model, layout), "dispatch", &SuggestedLayout::pairs);
    return outcome;
  }

  void report(const char* phase, std::size_t done, std::size_t all) {
    if (!spec_.progress) return;
    const std::lock_guard lock(progress_mutex_);
    spec_.progress(phase, done, all);
  }

  static Suggestion suggestion_of(const Options& options, const Forecast& forecast) {
    Suggestion suggestion{.flags = flags_of(options), .step = *forecast.step};
    for (const StageForecast& stage : forecast.stages) {
      const StepTimes& times = stage.times;
      double exposed = times.exposed_gathers + times.exposed_reductions + times.exposed_rows;
      const auto tensor = stage.work.volumes.find("tp");
      if (tensor != stage.work.volumes.end() && !options.parallel.tp_comm_overlap) exposed += tensor->second.seconds;
      suggestion.exposed_seconds = std::max(suggestion.exposed_seconds, exposed);
    }
    return suggestion;
  }

  // Seconds of a step if all collectives of the axis were hidden.
  static double seconds_hidden(const Forecast& plain, const char* axis) {
    double left = 0;  // fraction of the stages' work outside of these collectives
    for (const StageForecast& stage : plain.stages) {
      const double busy = plain.simulation.stages[static_cast<std::size_t>(stage.stage)].busy;
      const auto volume = stage.work.volumes.find(axis);
      const double hidden = volume == stage.work.volumes.end() ? 0 : volume->second.seconds;
      left = std::max(left, busy > 0 ? 1 - hidden / busy : 1);
    }
    return left * plain.step->seconds;
  }

  // Forecast with the least recomputation that fits; nullopt if it is too slow or nothing fits.
  std::optional<Forecast> try_recomputing(const SuggestedLayout& layout, double bound, Outcome& outcome) {
    for (const RecomputeGranularity recompute : kLessFirst) {
      if (!may_fit(layout, recompute)) continue;
      const double least = bounds_.seconds(layout, recompute);
      if (least * (1 + excess_) >= bound) {
        outcome.dropped.push_back(kTooSlow);
        return std::nullopt;
      }
      const Options options = with_layout(options_, layout, recompute);
      Forecast forecast = this->forecast(options, /*whole=*/false, bound);
      if (!forecast.step) continue;
      outcome.excesses.push_back(forecast.step->seconds / least - 1);
      if (forecast.step->seconds < bound) {
        outcome.found.push_back({.listed = suggestion_of(options, forecast), .layout = layout, .recompute = recompute});
      } else {
        outcome.dropped.push_back(kSlower);
      }
      return forecast;
    }
    outcome.dropped.push_back(kTooLarge);
    return std::nullopt;
  }

  Forecast forecast(const Options& options, bool whole, double max_seconds = 0) const {
    ForecastSpec spec{
        .rates = spec_.rates, .one_of_equal = true, .max_memory = spec_.max_memory, .max_seconds = max_seconds};
    if (!whole) spec.max_recorded = 0;
    spec.only_live_bytes = !whole;
    return make_forecast(options, world_, spec);
  }

  // Full forecast of a partly recorded schedule; with all microbatches the arena may need a little more memory.
  Outcome look_again(const Found& part) const {
    Outcome outcome;
    for (const RecomputeGranularity recompute : kLessFirst) {
      if (recompute < part.recompute) continue;
      const Options options = with_layout(options_, part.layout, recompute);
      const Forecast forecast = this->forecast(options, /*whole=*/true);
      if (!forecast.step) continue;
      outcome.found.push_back({.listed = suggestion_of(options, forecast), .whole = true});
      return outcome;
    }
    outcome.dropped.push_back(kTooLarge);
    return outcome;
  }

  // Seconds that a step must undercut to be kept.
  double bound() const {
    return best_.size() < most_ ? std::numeric_limits<double>::infinity() : best_.back().listed.step.seconds;
  }

  void take(Outcome outcome) {
    found_.tried += outcome.tried_overlaps;
    for (const char* reason : outcome.dropped) ++found_.dropped[reason];
    for (const double excess : outcome.excesses) least_excess_ = std::min(least_excess_, std::max(0.0, excess));
    forecasts_ += static_cast<int>(outcome.excesses.size());
    if (forecasts_ >= kLearnsFrom) excess_ = kMissing * least_excess_;
    for (Found& found : outcome.found) list(std::move(found));
  }

  void list(Found found) {
    const auto place =
        std::upper_bound(best_.begin(), best_.end(), found.listed.step.seconds,
                         [](double seconds, const Found& other) { return seconds < other.listed.step.seconds; });
    best_.insert(place, std::move(found));
    if (best_.size() <= most_) return;
    best_.pop_back();
    ++found_.dropped[kSlower];
  }

  // Makes full forecasts of the layouts to be listed.
  void finish() {
    const auto in_part = [](const Found& found) { return !found.whole; };
    while (true) {
      const auto end = best_.begin() + static_cast<std::ptrdiff_t>(std::min(best_.size(), spec_.count));
      std::vector<std::future<Outcome>> work;
      for (auto next = std::find_if(best_.begin(), end, in_part); next != end && work.size() < kForecastsTogether;
           next = std::find_if(next + 1, end, in_part))
        work.push_back(std::async(std::launch::async, [this, part = *next] { return look_again(part); }));
      if (work.empty()) break;
      std::size_t left = work.size();
      std::erase_if(best_, [&](const Found& found) { return in_part(found) && left > 0 && left-- > 0; });
      for (std::future<Outcome>& outcome : work) take(outcome.get());
    }
    for (Found& found : best_) {
      if (found_.best.size() < spec_.count) {
        found_.best.push_back(std::move(found.listed));
      } else {
        ++found_.dropped[kSlower];
      }
    }
  }

  const Options& options_;
  int world_;
  SuggestSpec spec_;
  std::size_t most_;  // number of layouts kept during the search
  LayoutBounds bounds_;
  std::mutex progress_mutex_;
  std::vector<Found> best_;  // fastest first
  int forecasts_ = 0;
  double excess_ = 0;  // assumed for layouts without a forecast
  double least_excess_ = std::numeric_limits<double>::infinity();
  Suggestions found_;
};

}  // namespace

void refuse_layout_flags(const Options& options) {
  for (const ConfigEntry& entry : options.effective) {
    if (!entry.suggested || entry.origin == "default" || entry.origin == "derived") continue;
    refuse_usage(fmt::format("--suggest and --{}", entry.name),
                 {.expected = "no layout flags, as --suggest chooses the layout",
                  .got = fmt::format("--{} ({})", entry.name, entry.origin),
                  .remedy = "remove it"});
  }
}

Suggestions suggest_layouts(const Options& options, int world, const SuggestSpec& spec) {
  return Search(options, world, spec).run();
}

}  // namespace megalith
