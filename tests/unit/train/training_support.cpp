#include "tests/unit/train/training_support.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <utility>

#include "apps/config/parallel_options.h"
#include "apps/config/training_options.h"
#include "apps/run/own_model.h"
#include "core/device/copy.h"
#include "tests/support/download.h"
#include "tests/thread_ranks/thread_communicator.h"

namespace megalith::test {

Words tiny_flags() { return small_run() + words("--mock-data --log-interval 1000 --device cpu"); }

Words llama_flags() {
  return words(
      "--swiglu --normalization RMSNorm --position-embedding-type rope --disable-bias-linear "
      "--group-query-attention --num-query-groups 2 --untie-embeddings-and-output-weights --qk-layernorm");
}

std::vector<Words> recompute_modes() {
  const Words full = words("--recompute-granularity full --recompute-method");
  const Words selective = words("--recompute-granularity selective --recompute-modules");
  return {full + words("uniform"),
          full + words("uniform --recompute-num-layers 2"),
          full + words("block --recompute-num-layers 1"),
          selective + words("core_attn"),
          selective + words("layernorm"),
          selective + words("mlp"),
          selective + words("mlp_act"),
          selective + words("core_attn layernorm mlp_act"),
          selective + words("core_attn layernorm mlp --recompute-num-layers 1")};
}

void expect_same_run(const RunResult& a, const RunResult& b) {
  EXPECT_FALSE(a.losses.empty());
  EXPECT_EQ(a.losses, b.losses);
  EXPECT_EQ(a.grad_norms, b.grad_norms);
  EXPECT_EQ(a.validation_losses, b.validation_losses);
  EXPECT_EQ(a.squares, b.squares);
  EXPECT_TRUE(a.weights == b.weights);
}

void expect_same_state(const RunResult& run, const RunResult& want) {
  expect_same_run(run, want);
  EXPECT_TRUE(run.gradients == want.gradients);
  EXPECT_TRUE(run.copies_agree);
  EXPECT_TRUE(run.memory_as_planned);
  EXPECT_EQ(run.hazards, 0);
  EXPECT_EQ(run.code, ExitCode::kOk);
}

std::int64_t expect_moved(const RunResult& run, std::int64_t times) {
  std::int64_t slots = 0;
  for (const RankActivity& rank : run.ranks) {
    slots += rank.slots;
    EXPECT_EQ(rank.offload.offloads, times * rank.slots);
    EXPECT_EQ(rank.offload.reloads, times * rank.slots);
    EXPECT_EQ(rank.offload.bytes_out, times * rank.slot_bytes);
    EXPECT_EQ(rank.offload.bytes_back, times * rank.slot_bytes);
  }
  return slots;
}

void expect_losses_near(const RunResult& got, const RunResult& want, double tolerance) {
  EXPECT_FALSE(want.loss_values.empty());
  ASSERT_EQ(got.loss_values.size(), want.loss_values.size());
  for (std::size_t i = 0; i < want.loss_values.size(); ++i)
    EXPECT_NEAR(got.loss_values[i] / want.loss_values[i], 1, tolerance) << "step " << i + 1;
}

void expect_norms_near(const RunResult& got, const RunResult& want, double tolerance) {
  EXPECT_FALSE(want.grad_norms.empty());
  ASSERT_EQ(got.grad_norms.size(), want.grad_norms.size());
  for (std::size_t i = 0; i < want.grad_norms.size(); ++i)
    EXPECT_NEAR(number_of_hex(got.grad_norms[i]) / number_of_hex(want.grad_norms[i]), 1, tolerance) << "step " << i + 1;
}

double norm_of_difference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double squares = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    squares += std::pow(static_cast<double>(a[i]) - b[i], 2);
  return std::sqrt(squares);
}
double norm(const std::vector<float>& a) { return norm_of_difference(a, std::vector<float>(a.size())); }

void expect_gradients_near(const RunResult& got, const RunResult& want, double tolerance,
                           const std::string& no_gradient) {
  EXPECT_FALSE(want.gradients.empty());
  EXPECT_EQ(got.gradients.size(), want.gradients.size());
  for (const auto& [name, gradient] : want.gradients) {
    ASSERT_TRUE(got.gradients.contains(name)) << name;
    EXPECT_GT(norm(gradient), 0) << name;
    const bool is_zero = !no_gradient.empty() && name.ends_with(no_gradient);
    EXPECT_LE(norm_of_difference(got.gradients.at(name), gradient), is_zero ? 1e-8 : tolerance * norm(gradient))
        << name;
  }
  EXPECT_TRUE(got.copies_agree);
}

bool same_bits(const Tensors& a, const Tensors& b) {
  return std::ranges::equal(a, b, [](const auto& x, const auto& y) {
    return x.first == y.first && x.second.size() == y.second.size() &&
           std::memcmp(x.second.data(), y.second.data(), x.second.size() * sizeof(float)) == 0;
  });
}

namespace {

// A rank's part of a unit's flat buffer: its elements from `begin` on.
struct Held {
  Tensor flat;
  std::int64_t begin = 0;
};

// Puts them under `prefix` and their logical names into `whole`; false if other bits were there.
bool put(Rank& rank, const ParameterUnit& unit, const Held& held, const std::string& prefix, Tensors& whole) {
  bool agrees = true;
  const std::vector<float> values = download(rank.streams.compute, held.flat);
  for (const Parameter* parameter : unit.parameters) {
    std::int64_t at = parameter->offset - held.begin;
    for (std::size_t i = 0; i < parameter->parts.size(); ++i) {
      const LogicalTensor& part = parameter->parts[i];
      std::vector<float>& to = whole[prefix + part.name];
      to.resize(static_cast<std::size_t>(part.global_shape.numel()), std::nanf(""));
      const std::int64_t columns = parameter->row_elements(), whole_columns = elements_of_row(part.global_shape);
      for (std::int64_t row = 0; row < part.live_rows(); ++row) {
        const std::int64_t from = at + row * columns;
        const std::int64_t first = std::clamp<std::int64_t>(-from, 0, columns);
        const std::int64_t last = std::clamp<std::int64_t>(std::ssize(values) - from, first, columns);
        const std::int64_t begin = part.global_row_of(row) * whole_columns + part.global_column;
        float* const into =
            std::span(to).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(columns)).data();
        for (std::int64_t c = first; c < last; ++c) {
          const float value = values.data()[from + c];
          agrees = agrees && (std::isnan(into[c]) || into[c] == value);
          into[c] = value;
        }
      }
      at += part.rows * columns;
    }
  }
  return agrees;
}

Held weights_of(const ParameterUnit& unit) {
  return unit.resident_weights ? Held{unit.weights} : Held{unit.weight_shard, unit.shard.range(unit.numel).begin};
}

}  // namespace

ModelState read_state(Rank& rank) {
  ModelState state;
  put_state(rank, state);
  return state;
}

bool put_state(Rank& rank, Tensors& whole) {
  bool agrees = true;
  const std::vector<ParameterUnit>& units = rank.model.gpt.parameters->units();
  for (std::size_t u = 0; u < units.size(); ++u) {
    const AdamWOptimizer::UnitState& state = rank.optimizer.adamw.units()[u];
    agrees = put(rank, units[u], weights_of(units[u]), "param/", whole) && agrees;
    agrees = put(rank, units[u], {state.main_params, state.begin}, "main_param/", whole) && agrees;
    agrees = put(rank, units[u], {state.exp_avg, state.begin}, "exp_avg/", whole) && agrees;
    agrees = put(rank, units[u], {state.exp_avg_sq, state.begin}, "exp_avg_sq/", whole) && agrees;
  }
  return agrees;
}

bool put_slices(Rank& rank, Tensor Parameter::*kind, Tensors& whole) {
  bool agrees = true;
  for (const ParameterUnit& unit : rank.model.gpt.parameters->units()) {
    const Held held = kind == &Parameter::weight
                          ? weights_of(unit)
                          : Held{unit.owned_grads, unit.owned.range(unit.numel).begin};  // reduced only there
    agrees = put(rank, unit, held, "", whole) && agrees;
  }
  return agrees;
}

namespace {

std::string field(const std::string& line, const std::string& key) {
  const std::string quoted = "\"" + key + "\":";
  std::size_t begin = line.find(quoted);
  if (begin == std::string::npos) return "";
  begin += quoted.size();
  while (line[begin] == ' ' || line[begin] == '"') ++begin;
  return line.substr(begin, line.find_first_of("\",}", begin) - begin);
}

}  // namespace

void read_metrics(const std::string& path, RunResult& result) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    result.losses.push_back(field(line, "lm_loss_hex"));
    result.grad_norms.push_back(field(line, "grad_norm_hex"));
    result.loss_values.push_back(std::strtod(result.losses.back().c_str(), nullptr));
    result.balancing_losses.push_back(std::strtod(field(line, "load_balancing_loss").c_str(), nullptr));
    result.z_losses.push_back(std::strtod(field(line, "z_loss").c_str(), nullptr));
    if (field(line, "skipped") == "true") ++result.skipped_steps;
    const std::string validation = field(line, "validation_loss"), regrows = field(line, "expert_room_regrows");
    if (!validation.empty()) result.validation_losses.push_back(validation);
    if (!regrows.empty()) result.regrows.push_back(std::stoi(regrows));
  }
}

namespace {

void read_stage(Trainer& trainer, RunResult& result) {
  Rank& rank = trainer.rank();
  result.transfers[rank.stage()] = rank.transfer.stats();
  if (rank.model.gpt.words != nullptr && rank.model.gpt.words->weight.present())  // not of a sharded unit
    result.word_tables[rank.stage()] = download(rank.streams.compute, rank.model.gpt.words->weight);
}

void read_rank_0(Trainer& trainer, RunResult& result) {
  Rank& rank = trainer.rank();
  result.tensor_calls = rank.layers.tensor.communicator().stats().collectives;
  result.state = read_state(rank);
  result.event_waits = trainer.event_waits();
  result.buckets_reduced = rank.buckets.reducer->buckets_reduced();
  result.ranges_scattered = rank.buckets.reducer->ranges_scattered();
  result.buckets_gathered = rank.buckets.gatherer->buckets_gathered();
  result.ranges_gathered = rank.buckets.gatherer->ranges_gathered();
  result.data_calls = groups_of_steps(rank)[0]->stats().collectives;
  result.system_allocations_after = rank.memory.pool.system_allocations();
  result.arena_touched = rank.memory.arena.touched_bytes();
  result.arena_planned = trainer.plans().block_bytes();
  result.pool_peak = rank.memory.pool.peak_allocated_bytes();
  result.pool_reserved = rank.memory.pool.reserved_bytes();
}

std::vector<std::string> read_squares(Rank& rank) {
  const Tensor& squares = rank.optimizer.adamw.squares().tensors();
  std::vector<double> values(static_cast<std::size_t>(squares.numel()));
  copy_to_host(rank.streams.compute, values.data(), squares.data, squares.bytes());
  rank.streams.compute.synchronize();
  std::vector<std::string> hex;
  for (const double value : values) hex.push_back(fmt::format("{:a}", value));
  return hex;
}

RankActivity activity_of(Trainer& trainer) {
  Rank& rank = trainer.rank();
  RankActivity did = {.tensor_calls = rank.layers.tensor.communicator().stats().collectives,
                      .context_calls = rank.layers.context.communicator().stats().collectives,
                      .buckets_reduced = rank.buckets.reducer->buckets_reduced(),
                      .ranges_scattered = rank.buckets.reducer->ranges_scattered(),
                      .buckets_gathered = rank.buckets.gatherer->buckets_gathered(),
                      .units_gathered = rank.units.sharded ? rank.units.sharded->gathers() : 0,
                      .units_reduced = rank.units.sharded ? rank.units.sharded->reductions() : 0,
                      .transfer = rank.transfer.stats(),
                      .replays = rank.graphs ? rank.graphs->stats().replays : 0,
                      .arena_planned = trainer.plans().block_bytes(),
                      .host_planned = trainer.plans().host.peak_bytes};
  if (rank.offload) {
    did.offload = rank.offload->transfer.stats();
    for (const OffloadSlot& slot : rank.offload->points.slots) did.slot_bytes += static_cast<std::int64_t>(slot.bytes);
    did.slots = std::ssize(rank.offload->points.slots);
  }
  return did;
}

bool uses_memory_as_planned(Trainer& trainer, const Options& options) {
  Rank& rank = trainer.rank();
  if (rank.offload) {
    const bool regrew = !options.train.rampup_batch_size.empty() ||
                        trainer.plans().capacity_factor != options.parallel.moe_expert_rank_capacity_factor;
    if (rank.offload->host.touched_bytes() != trainer.plans().host.peak_bytes) return false;
    if (!regrew && rank.offload->pool.system_allocations() != 1) return false;
  }
  return rank.memory.arena.touched_bytes() == trainer.plans().block_bytes() &&
         rank.memory.pool.peak_allocated_bytes() == memory_use(trainer.plans()).total();
}

}  // namespace

RunResult train(const RunRequest& request) {
  static const TestFolder shared_cache;  // the user's own cache is no business of a test's
  setenv("MEGALITH_CACHE", (request.cache.empty() ? shared_cache.path("cache") : request.cache).c_str(), 1);
  const TestFolder scratch;
  const Words flags = tiny_flags() + request.flags + Words{"--metrics-jsonl", scratch.path("metrics.jsonl")};
  const Options options = parse_flags(App::kTrain, flags, 0, own_options()).options;
  RunResult result;
  result.ranks.resize(static_cast<std::size_t>(request.ranks));
  std::map<int, std::vector<std::string>> squares;
  std::mutex mutex;
  const StopRequest stop;
  ThreadWorld world(request.ranks, std::chrono::seconds(60), true);
  world.run([&](Communicator& group) {
    const int index = group.rank();
    RunSetup setup = prepare_run(options, index, group.size());
    setup.customize = request.customize;
    if (request.host_bytes) setup.host_bytes = request.host_bytes;
    Trainer trainer(std::move(setup), group, stop);
    if (request.prepare) request.prepare(trainer, index);
    const ExitCode code = trainer.run();
    if (request.finish) request.finish(trainer, index);
    const std::lock_guard lock(mutex);
    if (trainer.hazards() != nullptr) result.hazards += trainer.hazards()->count();
    for (const auto& [kind, whole] :
         {std::pair{&Parameter::weight, &result.weights}, {&Parameter::main_grad, &result.gradients}})
      result.copies_agree = put_slices(trainer.rank(), kind, *whole) && result.copies_agree;
    result.copies_agree = put_state(trainer.rank(), result.whole_state) && result.copies_agree;
    Rank& rank = trainer.rank();
    result.ranks[static_cast<std::size_t>(index)] = activity_of(trainer);
    squares[index] = read_squares(rank);
    result.memory[index] = rank.memory.pool.allocated_by_category();
    result.memory_as_planned = uses_memory_as_planned(trainer, options) && result.memory_as_planned;
    if (groups_of_steps(rank)[0]->rank() == 0) read_stage(trainer, result);
    if (index != 0) return;
    result.planned_total = memory_use(trainer.plans()).total();
    result.code = code;
    read_rank_0(trainer, result);
  });
  read_metrics(scratch.path("metrics.jsonl"), result);
  if (!result.losses.empty()) result.squares = squares[0];  // otherwise there are none yet
  for (const auto& [rank, own] : squares)
    result.copies_agree = result.copies_agree && (result.squares.empty() || own == result.squares);
  return result;
}

SuppressedWaits suppress_each_wait(const Words& flags, int ranks, int stride, std::int64_t after) {
  const RunResult whole = train({.flags = flags, .ranks = ranks});
  EXPECT_EQ(whole.hazards, 0);
  SuppressedWaits waits{.all = whole.event_waits};
  for (std::int64_t ordinal = 0; ordinal < waits.all - after; ordinal += stride) {
    const Words suppressed = flags + Words{"--suppress-wait", std::to_string(ordinal)};
    try {
      if (train({.flags = suppressed, .ranks = ranks}).hazards == 0) waits.idle.push_back(ordinal);
    } catch (const Error&) {
      ++waits.refused;
    }
  }
  return waits;
}

void expect_each_wait_needed(std::int64_t at_least, const Words& flags, int ranks, int stride, std::int64_t after) {
  const SuppressedWaits waits = suppress_each_wait(flags, ranks, stride, after);
  EXPECT_GE(waits.all, at_least);
  EXPECT_TRUE(waits.idle.empty()) << testing::PrintToString(waits.idle) << " of " << waits.all;
  EXPECT_EQ(waits.refused, 0);
}

void expect_nothing_left_of_a_broken_step(RunRequest request, const BrokenAt& at) {
  const auto run = [&](bool breaks) {
    request.prepare = [at, breaks](Trainer& trainer, int) {
      SegmentRunner& runner = trainer.rank().runner;
      const auto throws = std::make_shared<bool>(false);  // the hook lives as long as the rank
      runner.hooks(at.segment).add(at.point, [throws, at](const HookContext& hook) {
        if (hook.microbatch == at.microbatch && std::exchange(*throws, false)) throw std::runtime_error("a hook's own");
      });
      BlankSamples samples(trainer.rank().config, 1e-3f);
      const auto step = [&] {
        trainer.step().train(samples.input);
        trainer.step().read_result();
      };
      step();
      ++samples.input.iteration;
      if (breaks) {
        *throws = true;
        EXPECT_THROW(step(), Error);
        EXPECT_FALSE(*throws);
      }
      step();
      runner.set_hooks(std::vector<HookTable>(static_cast<std::size_t>(runner.num_segments())));
    };
    return train(request);
  };
  const RunResult with = run(true);
  EXPECT_EQ(with.hazards, 0);
  expect_same_run(with, run(false));
}

}  // namespace megalith::test
