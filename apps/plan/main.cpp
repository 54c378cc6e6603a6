// plan: what a run would take, for any number of ranks, without running it: layout, parameters, memory by owner, FLOPs,
// communication, and with a machine's rates the time of a step; or which layouts would be the fastest.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <optional>

#include "apps/checkpoint/run_tokenizer.h"
#include "apps/config/logging_options.h"
#include "apps/config/machine_facts.h"
#include "apps/config/parallel_options.h"
#include "apps/config/program_options.h"
#include "apps/config/training_options.h"
#include "apps/flags/complete_options.h"
#include "apps/flags/flags.h"
#include "apps/flags/rates.h"
#include "apps/forecast/forecast.h"
#include "apps/forecast/suggest.h"
#include "apps/plan/plan_experts.h"
#include "apps/plan/plan_json.h"
#include "apps/plan/plan_page.h"
#include "apps/program/program.h"
#include "apps/report/report_page.h"
#include "apps/run/own_model.h"
#include "apps/summary/offload_report.h"
#include "apps/summary/planned_graphs.h"
#include "apps/summary/printed_actions.h"
#include "apps/summary/sharding_words.h"
#include "core/base/counted.h"
#include "core/base/error.h"
#include "core/base/machine/cpu_check.h"
#include "core/base/machine/host_memory.h"
#include "core/model/config.h"
#include "parallel/pipeline_parallel/simulator.h"

namespace megalith {

namespace {

std::string mib(double bytes) {
  const double value = bytes / (1 << 20);
  return value >= 0.005 ? fmt::format("{:>12.2f} MiB", value) : fmt::format("{:>12} MiB", bytes > 0 ? "<0.01" : "0");
}
std::string mib(std::size_t bytes) { return mib(static_cast<double>(bytes)); }

std::string said_layers(const std::vector<GptPart>& parts) {
  std::string text;
  for (const GptPart& part : parts) {
    std::string chunk = part.has_embedding ? "embedding" : "";
    const auto add = [&chunk](const std::string& more) { chunk += (chunk.empty() ? "" : ", ") + more; };
    if (part.num_layers == 1) add(fmt::format("layer {}", part.first_layer));
    if (part.num_layers > 1)
      add(fmt::format("layers {} to {}", part.first_layer, part.first_layer + part.num_layers - 1));
    if (part.has_head) add("loss");
    text += (text.empty() ? "" : " | ") + (chunk.empty() ? std::string("nothing") : chunk);
  }
  return text;
}

// Which rank is what: a line for each tensor-parallel group, whose ranks are neighbours.
void print_mesh(const MeshSizes& mesh) {
  constexpr int kMostLines = 64;
  if (mesh.world() == 1) return;
  const bool shared = mesh.cp > 1;  // sequences
  fmt::print("mesh (rank = tp + {} x ({}dp + {} x pp){})\n", mesh.tp, shared ? fmt::format("cp + {} x (", mesh.cp) : "",
             mesh.dp, shared ? ")" : "");
  const auto tp = static_cast<int>(mesh.tp);
  const int groups = static_cast<int>(mesh.world()) / tp;
  for (int group = 0; group < std::min(groups, kMostLines); ++group) {
    const std::vector<int> ranks = group_of(mesh, group * tp, {Axis::kTp});
    const MeshCoordinates first = coordinates_of(mesh, ranks.front()), last = coordinates_of(mesh, ranks.back());
    fmt::print(
        "  pp {:<3} dp {:<5} {}tp {:<7} {}\n", first.pp, first.dp, shared ? fmt::format("cp {:<3} ", first.cp) : "",
        tp == 1 ? std::string("0") : fmt::format("{} to {}", first.tp, last.tp),
        tp == 1 ? fmt::format("rank {}", ranks.front()) : fmt::format("ranks {} to {}", ranks.front(), ranks.back()));
  }
  if (groups > kMostLines) fmt::print("  and {} in this order\n", counted(groups - kMostLines, "more group"));
}

// As training decides it: by the memory that --rates gives a device.
void decide_on_ends(Options& options, const Rates& rates, Forecast& forecast) {
  const auto room = static_cast<std::size_t>(rates.device_memory - rates.device_reserve);
  const std::size_t whole = forecast.step->most_memory;
  if (!may_shard_ends(options) || whole <= room) return;
  Options with_shards = options;
  with_shards.machine.ends_exceed_memory = true;
  Forecast sharded = make_forecast(with_shards, static_cast<int>(options.parallel.world_size), {.rates = &rates});
  if (sharded.step->most_memory >= whole) return;
  options = std::move(with_shards);
  forecast = std::move(sharded);
}

void print_sharding(const Options& options, const MeshSizes& mesh, bool knows_memory) {
  const ShardingStrategy of_experts = options.parallel.expert_sharding();
  if (of_experts != options.parallel.sharding())
    fmt::print("  experts                       {}\n", said_sharding(of_experts, sharers_of_experts(options, mesh)));
  if (options.parallel.sharding() != ShardingStrategy::kOptimGradsParams) return;
  if (sharers(options, mesh) == 1) {
    fmt::print("  fully sharded                 in vain: one copy of each, nothing to share out\n");
    return;
  }
  const bool open = may_shard_ends(options) && !knows_memory;
  fmt::print("  fully sharded                 {}\n",
             open ? "embedding and head whole, unless the device has no room: --rates tells" : said_ends(options));
}

void print_layout(const Options& options, const RunConfig& config, bool knows_memory) {
  const MeshSizes& mesh = config.mesh;
  fmt::print("layout\n");
  fmt::print("  ranks                         {:>15} ({}{}dp {}{})\n", mesh.world(),
             mesh.tp > 1 ? fmt::format("tp {} x ", mesh.tp) : "", mesh.cp > 1 ? fmt::format("cp {} x ", mesh.cp) : "",
             mesh.dp, mesh.pp > 1 ? fmt::format(" x pp {}", mesh.pp) : "");
  if (knows_memory)
    fmt::print("  computed on                   {:>15}\n",
               options.device == DeviceType::kCuda ? "GPUs" : "CPUs (--device cpu)");
  fmt::print("  sequences per step            {:>15} = {} x {} x {}\n", options.train.global_batch_size,
             counted(mesh.dp, "data-parallel rank"), counted(config.microbatches, "microbatch", "microbatches"),
             options.train.micro_batch_size);
  if (!options.train.rampup_batch_size.empty()) {
    fmt::print("  before that                   {:>15} and {} more at a time, over {} (--rampup-batch-size)\n",
               options.train.rampup_batch_size[0], options.train.rampup_batch_size[1],
               counted(options.train.rampup_batch_size[2], "sample"));
  }
  fmt::print("  tokens per step               {:>15}\n", options.train.global_batch_size * options.model.seq_length);
  if (mesh.cp > 1) {
    const std::int64_t length = options.model.seq_length;
    fmt::print("  tokens of a sequence per rank {:>15} = 2 chunks of {}\n", length / mesh.cp, length / mesh.cp / 2);
  }
  print_sharding(options, mesh, knows_memory);
  print_mesh(mesh);
  const PipelineLayout& pipeline = config.pipeline;
  if (pipeline.placement.num_parts() == 1) return;
  const Schedule schedule = config.schedule();
  fmt::print("pipeline\n");
  fmt::print("  schedule                      {:>15}, {} a stage\n", name_of(pipeline.kind),
             counted(pipeline.placement.num_chunks, "chunk"));
  fmt::print("  idle, at F = B = W            {:>14.1f}%\n", 100 * simulate(schedule, {}).bubble_share());
  for (int stage = 0; stage < pipeline.placement.num_stages; ++stage) {
    const std::int64_t ranks = mesh.world() / mesh.pp;
    fmt::print("  stage {:<4} ranks {:>5} to {:<5} {}\n", stage, stage * ranks, (stage + 1) * ranks - 1,
               said_layers(pipeline.parts_of(stage)));
  }
}

void print_parameters(const Options& options) {
  const ParameterCount count = count_parameters(options);
  fmt::print("parameters\n");
  for (const auto& [name, value] : {std::pair{"embedding", count.embedding},
                                    {"attention", count.attention},
                                    {"mlp", count.mlp},
                                    {"router", count.router},
                                    {"experts", count.experts},
                                    {"norms", count.norm},
                                    {"own", count.own},
                                    {"output layer", count.output},
                                    {"total", count.total},
                                    {"active", count.active()}}) {
    const bool is_of_moe =
        name == std::string_view("router") || name == std::string_view("experts") || name == std::string_view("active");
    if (is_of_moe && options.model.moe.num_experts == 0) continue;
    if (name == std::string_view("own") && value == 0) continue;
    fmt::print("  {:<29} {:>15}\n", name, value);
  }
}

void print_memory(const MemoryUse& use, const StepPlans& plans, const std::string& whose) {
  fmt::print("memory per rank{}\n", whose);
  for (int c = 0; c < kNumMemoryCategories; ++c) {
    const std::size_t bytes = use.persistent[static_cast<std::size_t>(c)];
    if (bytes > 0) fmt::print("  {:<25} {}\n", name_of(static_cast<MemoryCategory>(c)), mib(bytes));
  }
  fmt::print("  {:<25} {}\n", "step arena", mib(use.arena));
  fmt::print("    fullest moment, alive   {}\n", mib(plans.train.live_bytes));
  const auto print_part = [](const std::string& name, std::size_t bytes) {
    if (bytes > 0) fmt::print("      {:<21} {}\n", name, mib(static_cast<double>(bytes)));
  };
  for (const auto& [kind, bytes] : use.activations) print_part("kept " + kind, bytes);
  print_part("temporary", use.arena_live[static_cast<std::size_t>(MemoryCategory::kWorkspace)]);
  if (plans.evaluate.peak_bytes > 0) fmt::print("    evaluation step         {}\n", mib(plans.evaluate.peak_bytes));
  fmt::print("  {:<25} {}\n", "total", mib(use.total()));
  if (plans.checkpoint_staging == 0) return;
  fmt::print("host memory per rank{}\n", whose);
  fmt::print("  {:<25} {}\n", "checkpoint staging", mib(plans.checkpoint_staging));
}

// Of sharded units, in a step; with rates also how long the compute stream waits for them.
void print_units(const Forecast& forecast) {
  constexpr double kGib = 1024.0 * 1024 * 1024;
  for (const StageForecast& stage : forecast.stages) {
    const auto said = [&](const char* verb, const AxisVolume& volume, double exposed) {
      const std::string waits = volume.seconds > 0 ? fmt::format(", exposed {:.2f} ms", 1e3 * exposed) : "";
      return fmt::format("{} {:.0f} times, {:.2f} GiB sent{}", verb, volume.calls, volume.sent / kGib, waits);
    };
    const StepWork& work = stage.work;
    if (work.gathers.calls + work.reductions.calls == 0) continue;
    // With --fsdp-reduce-grads last the gradients of all units are reduced together, as without units.
    const std::string reduced = work.reductions.calls == 0
                                    ? "reduced once a step, in the lines above"
                                    : said("reduced", work.reductions, stage.times.exposed_reductions);
    fmt::print("  units{}: {}; {}\n", forecast.stages.size() > 1 ? fmt::format(" of stage {}", stage.stage) : "",
               said("gathered", work.gathers, stage.times.exposed_gathers), reduced);
  }
}

void print_work(const Options& options, const Forecast& forecast) {
  const auto most =
      std::max_element(forecast.stages.begin(), forecast.stages.end(),
                       [](const StageForecast& a, const StageForecast& b) { return a.work.flops < b.work.flops; });
  const double tokens = static_cast<double>(options.train.global_batch_size * options.model.seq_length);
  fmt::print("FLOPs\n");
  fmt::print("  per token (causal, 6 N)       {:>15.4e}\n", flops_per_token(options));
  fmt::print("  per step, all ranks           {:>15.4e}\n", flops_per_token(options) * tokens);
  fmt::print("  per step and rank, launched   {:>15.4e} (recompute included) in {:.0f} ops\n", most->work.flops,
             most->work.ops);
  if (std::all_of(forecast.stages.begin(), forecast.stages.end(),
                  [](const StageForecast& stage) { return stage.work.volumes.empty(); }))
    return;
  fmt::print("communication of a rank in a step: payload, and bytes sent where a ring carries it\n");
  for (std::size_t s = 0; s < forecast.stages.size();) {
    std::size_t end = s;  // stages that communicate alike share their lines
    while (end < forecast.stages.size() && forecast.stages[end].work.volumes == forecast.stages[s].work.volumes) ++end;
    std::string stages;
    if (forecast.stages.size() > 1)
      stages = fmt::format("stage {:<12}", end - s > 1 ? fmt::format("{} to {}", s, end - 1) : fmt::format("{}", s));
    for (const auto& [axis, volume] : forecast.stages[s].work.volumes) {
      fmt::print("  {}{:<10} {:>8.0f} {:<5} {} {}", stages, axis, volume.calls, volume.calls == 1 ? "call" : "calls",
                 mib(volume.bytes), mib(volume.sent));
      fmt::print("{}\n", volume.seconds > 0 ? fmt::format(" {:>10.2f} ms", 1e3 * volume.seconds) : "");
    }
    s = end;
  }
  print_units(forecast);
}

// Between device and host, in a step.
void print_copies(const Forecast& forecast) {
  for (const StageForecast& stage : forecast.stages) {
    const std::string whose = forecast.stages.size() > 1 ? fmt::format(" of stage {}", stage.stage) : "";
    fmt::print(
        "{}", printed_copies(stage.plans, forecast.config.microbatches, forecast.step ? &stage.times : nullptr, whose));
  }
}

void print_step(const Forecast& forecast, const std::string& device) {
  if (!forecast.step) {
    fmt::print("step time\n  unknown: name the machine's rates with --rates, such as configs/rates/h200.toml\n");
    return;
  }
  const StepForecast& step = *forecast.step;
  fmt::print("step, forecast by the rates of {}\n", device);
  fmt::print("  time                          {:>15.2f} ms\n", 1e3 * step.seconds);
  fmt::print("  tokens/s, all ranks           {:>15.0f}\n", step.tokens_per_second);
  fmt::print("  TFLOP/s and rank              {:>15.1f}\n", step.tflops_per_rank);
  fmt::print("  host, to enqueue it           {:>15.2f} ms\n", 1e3 * step.host_seconds);
  fmt::print("  forward and backward          {:>15.2f} ms\n", 1e3 * step.pipeline_seconds);
  fmt::print("  bubble of these               {:>15.1f} %\n", 100 * step.bubble_share);
  if (forecast.simulation.stages.size() == 1) return;
  for (std::size_t s = 0; s < forecast.simulation.stages.size(); ++s) {
    const double busy = forecast.simulation.stages[s].busy;
    fmt::print("    stage {:<4} works {:>11.2f} ms, waits {:>5.1f} %\n", s, 1e3 * busy,
               100 * (1 - busy / step.pipeline_seconds));
  }
}

void print_suggestions(const Options& options, const Rates& rates) {
  constexpr double kGib = 1024.0 * 1024 * 1024;
  const double memory =
      options.forecast.device_memory_gib > 0 ? options.forecast.device_memory_gib * kGib : rates.device_memory;
  if (memory <= rates.device_reserve) {
    refuse_usage("--device-memory-gib",
                 {.expected = fmt::format("more than the {:.1f} GiB that libraries take", rates.device_reserve / kGib),
                  .got = fmt::format("{}", options.forecast.device_memory_gib),
                  .remedy = "see device-reserve-gib of --rates"});
  }
  const Suggestions found =
      suggest_layouts(options, static_cast<int>(options.parallel.world_size),
                      {.rates = &rates, .most_memory = static_cast<std::size_t>(memory - rates.device_reserve)});
  fmt::print("layouts of {} of {} with {:.1f} GiB each, of which libraries take {:.1f}\n",
             counted(options.parallel.world_size, "rank"), rates.device, memory / kGib, rates.device_reserve / kGib);
  fmt::print("  {:>10} {:>12} {:>8} {:>8} {:>8}  flags\n", "step ms", "tokens/s", "TFLOP/s", "bubble %", "GiB");
  for (const Suggestion& suggestion : found.best) {
    const StepForecast& step = suggestion.step;
    fmt::print("  {:>10.1f} {:>12.0f} {:>8.1f} {:>8.1f} {:>8.1f}  {}\n", 1e3 * step.seconds, step.tokens_per_second,
               step.tflops_per_rank, 100 * step.bubble_share, static_cast<double>(step.most_memory) / kGib,
               fmt::join(suggestion.flags, " "));
  }
  if (found.best.empty()) fmt::print("  none fits\n");
  fmt::print("of {} layouts, left out:\n", found.tried);
  for (const auto& [reason, count] : found.dropped) fmt::print("  {:>6} {}\n", count, reason);
}

ExitCode forecast(int argc, char** argv) {
  Options options = parse_options(App::kPlan, argc, argv, own_options());
  const int world = static_cast<int>(options.parallel.world_size);
  std::optional<Rates> rates;
  if (!options.forecast.rates.empty()) {
    rates = read_rates(options.forecast.rates);
    if (options.is_default("device")) options.device = DeviceType::kCuda;  // rates mostly are of GPUs
    options.machine.host_share = share_of_rank(static_cast<std::size_t>(rates->host_memory),
                                               static_cast<std::size_t>(std::min(world, rates->host_ranks)));
  }
  if (options.forecast.suggest) {
    refuse_layout_flags(options);
    complete_options(options, tokenizer_of(options), 1);  // the sizes of the model; the layout is looked for
    print_suggestions(options, *rates);
    return ExitCode::kOk;
  }
  const RunConfig config = complete_options(options, tokenizer_of(options), world);
  Forecast forecast;
  if (rates || !options.logging.print_actions)
    forecast = make_forecast(options, world, {.rates = rates ? &*rates : nullptr});
  std::vector<StepGraphs> graphs;
  for (const StageForecast& stage : forecast.stages) graphs.push_back(stage.plans.graphs);
  if (!graphs.empty()) check_captured_modules(options, graphs);
  if (rates) decide_on_ends(options, *rates, forecast);
  if (options.logging.print_actions) {
    fmt::print("{}", printed_actions(options, config));
    if (rates) print_copies(forecast);
    return ExitCode::kOk;
  }
  print_layout(options, config, rates.has_value());
  print_parameters(options);
  for (const StageForecast& stage : forecast.stages) {
    const std::string whose = config.mesh.pp > 1 ? fmt::format(" of stage {}", stage.stage) : "";
    print_memory(stage.memory, stage.plans, whose);
    fmt::print("{}", printed_offload(stage.plans, whose));
    fmt::print("{}", printed(stage.plans.graphs, options, whose));
  }
  print_work(options, forecast);
  fmt::print("{}", printed_experts(options, forecast));
  print_copies(forecast);
  print_step(forecast, rates ? rates->device : "");
  const auto write = [](const std::string& file, const std::string& text, const char* flag) {
    write_report(file, text, flag);
    fmt::print("{}\n", file);
  };
  if (!options.forecast.json.empty()) write(options.forecast.json, plan_json(options, forecast), "--json");
  if (!options.forecast.html.empty())
    write(options.forecast.html, plan_page(options, forecast, rates->device), "--html");
  return ExitCode::kOk;
}

}  // namespace

}  // namespace megalith

int main(int argc, char** argv) {
  megalith::require_cpu_baseline();
  return megalith::run_program("plan", [&] { return megalith::forecast(argc, argv); });
}
