#include "apps/plan/plan_tables.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "apps/config/dispatcher_choice.h"
#include "apps/config/parallel_options.h"
#include "apps/config/training_options.h"
#include "apps/cost/expert_rows.h"
#include "apps/flags/complete_options.h"
#include "apps/run/own_model.h"
#include "apps/summary/offload_report.h"
#include "apps/summary/planned_graphs.h"
#include "apps/summary/sharding_words.h"
#include "core/base/counted.h"
#include "core/base/text/units.h"
#include "parallel/pipeline_parallel/simulator.h"

namespace megalith {

namespace {

// Columns of a name, a number, and a note.
const std::vector<Table::Column> kNumbers = {{.width = 29, .is_text = true}, {.width = 15}};
const std::vector<Table::Column> kBytes = {{.width = 25, .is_text = true}, {.width = 16}};

std::string mib_text(double bytes) {
  const double value = mib(bytes);
  return value >= 0.005 ? fmt::format("{:.2f} MiB", value) : fmt::format("{} MiB", bytes > 0 ? "<0.01" : "0");
}
std::string mib_text(std::size_t bytes) { return mib_text(static_cast<double>(bytes)); }

std::string describe_layers(const std::vector<GptPart>& parts) {
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

// Table of the ranks: one line per tensor-parallel group, whose ranks are adjacent.
Table mesh_table(const MeshSizes& mesh) {
  constexpr int kMaxLines = 64;
  if (mesh.world() == 1) return {};
  const bool shared = mesh.cp > 1;  // sequences are split
  Table table{.title = fmt::format("mesh (rank = tp + {} x ({}dp + {} x pp){})", mesh.tp,
                                   shared ? fmt::format("cp + {} x (", mesh.cp) : "", mesh.dp, shared ? ")" : "")};
  const auto tp = static_cast<int>(mesh.tp);
  const int groups = static_cast<int>(mesh.world()) / tp;
  for (int group = 0; group < std::min(groups, kMaxLines); ++group) {
    const std::vector<int> ranks = group_of(mesh, group * tp, {Axis::kTp});
    const MeshCoordinates first = coordinates_of(mesh, ranks.front()), last = coordinates_of(mesh, ranks.back());
    table.add({}, fmt::format("pp {:<3} dp {:<5} {}tp {:<7} {}", first.pp, first.dp,
                              shared ? fmt::format("cp {:<3} ", first.cp) : "",
                              tp == 1 ? std::string("0") : fmt::format("{} to {}", first.tp, last.tp),
                              tp == 1 ? fmt::format("rank {}", ranks.front())
                                      : fmt::format("ranks {} to {}", ranks.front(), ranks.back())));
  }
  if (groups > kMaxLines) table.add({}, fmt::format("and {} in this order", counted(groups - kMaxLines, "more group")));
  return table;
}

void add_sharding(Table& table, const Options& options, const MeshSizes& mesh, bool knows_memory) {
  const ShardingStrategy of_experts = options.parallel.expert_sharding();
  if (of_experts != options.parallel.sharding())
    table.add({"experts"}, " " + describe_sharding(of_experts, sharers_of_experts(options, mesh)));
  if (options.parallel.sharding() != ShardingStrategy::kOptimGradsParams) return;
  const bool open = may_shard_ends(options) && !knows_memory;
  table.add({"fully sharded"}, sharers(options, mesh) == 1 ? " no effect (sharding group of one rank)"
                               : open ? " embedding and head unsharded if memory suffices (--rates decides)"
                                      : " " + describe_ends(options));
}

Table layout_table(const Options& options, const RunConfig& config, bool knows_memory) {
  const MeshSizes& mesh = config.mesh;
  const TrainingOptions& train = options.train;
  Table table{.title = "layout", .columns = kNumbers};
  const auto add = [&table](const char* name, const auto& value, const std::string& note = "") {
    table.add({name, fmt::to_string(value)}, note);
  };
  add("ranks", mesh.world(),
      fmt::format(" ({}{}dp {}{})", mesh.tp > 1 ? fmt::format("tp {} x ", mesh.tp) : "",
                  mesh.cp > 1 ? fmt::format("cp {} x ", mesh.cp) : "", mesh.dp,
                  mesh.pp > 1 ? fmt::format(" x pp {}", mesh.pp) : ""));
  if (knows_memory) add("computed on", options.device == DeviceType::kCuda ? "GPUs" : "CPUs (--device cpu)");
  add("sequences per step", train.global_batch_size,
      fmt::format(" = {} x {} x {}", counted(mesh.dp, "data-parallel rank"),
                  counted(config.microbatches, "microbatch", "microbatches"), train.micro_batch_size));
  if (!train.rampup_batch_size.empty()) {
    add("batch size ramp from", train.rampup_batch_size[0],
        fmt::format(" by {} over {} (--rampup-batch-size)", train.rampup_batch_size[1],
                    counted(train.rampup_batch_size[2], "sample")));
  }
  if (!train.batch_stages.empty()) {
    add("batch size from", train.batch_stages.front().batch,
        fmt::format(" in {} (--step-batch-size-schedule)", counted(std::ssize(train.batch_stages), "stage")));
  }
  add("tokens per step", train.global_batch_size * options.model.seq_length);
  if (mesh.cp > 1) {
    const std::int64_t length = options.model.seq_length;
    add("tokens of a sequence per rank", length / mesh.cp, fmt::format(" = 2 chunks of {}", length / mesh.cp / 2));
  }
  add_sharding(table, options, mesh, knows_memory);
  return table;
}

Table pipeline_table(const RunConfig& config) {
  const PipelineLayout& pipeline = config.pipeline;
  if (pipeline.placement.num_parts() == 1) return {};
  Table table{.title = "pipeline", .columns = kNumbers};
  table.add({"schedule", std::string(name_of(pipeline.kind))},
            fmt::format(", {} per stage", counted(pipeline.placement.num_chunks, "chunk")));
  table.add({"bubble, at F = B = W", fmt::format("{:.1f}%", 100 * simulate(config.schedule(), {}).bubble_share())});
  const std::int64_t ranks = config.mesh.world() / config.mesh.pp;
  for (int stage = 0; stage < pipeline.placement.num_stages; ++stage)
    table.add({}, fmt::format("stage {:<4} ranks {:>5} to {:<5} {}", stage, stage * ranks, (stage + 1) * ranks - 1,
                              describe_layers(pipeline.parts_of(stage))));
  return table;
}

Table parameter_table(const Options& options) {
  const ParameterCount count = count_parameters(options);
  const bool has_experts = options.model.moe.num_experts > 0;
  Table table{.title = "parameters", .columns = kNumbers};
  const auto add = [&table](const char* name, std::int64_t value, bool shown = true) {
    if (shown) table.add({name, fmt::to_string(value)});
  };
  add("embedding", count.embedding);
  add("attention", count.attention);
  add("mlp", count.mlp);
  add("router", count.router, has_experts);
  add("experts", count.experts, has_experts);
  add("norms", count.norm);
  add("own", count.own, count.own > 0);
  add("output layer", count.output);
  add("total", count.total);
  add("active", count.active(), has_experts);
  return table;
}

Table memory_table(const MemoryUse& use, const StepPlans& plans, const std::string& whose) {
  Table table{.title = "memory per rank" + whose, .columns = kBytes};
  const auto add = [&table](const std::string& name, std::size_t bytes) { table.add({name, mib_text(bytes)}); };
  const auto add_some = [&](const std::string& name, std::size_t bytes) {
    if (bytes > 0) add(name, bytes);
  };
  for (int c = 0; c < kNumMemoryCategories; ++c)
    add_some(std::string(name_of(static_cast<MemoryCategory>(c))), use.persistent[static_cast<std::size_t>(c)]);
  add("step arena", use.arena);
  add("  alive at peak memory", plans.train.live_bytes);
  for (const auto& [kind, bytes] : use.activations) add_some("    kept " + kind, bytes);
  add_some("    temporary", use.arena_live[static_cast<std::size_t>(MemoryCategory::kWorkspace)]);
  add_some("  evaluation step", plans.evaluate.peak_bytes);
  add("total", use.total());
  return table;
}

// Adds the communication of sharded units in a step; with rates also the compute stream's waits for them.
void add_units(Table& table, const Forecast& forecast) {
  for (const StageForecast& stage : forecast.stages) {
    const auto describe = [&](const char* verb, const AxisVolume& volume, double exposed) {
      const std::string waits = volume.seconds > 0 ? fmt::format(", exposed {:.2f} ms", 1e3 * exposed) : "";
      return fmt::format("{} {:.0f} times, {:.2f} GiB sent{}", verb, volume.calls, gib(volume.sent), waits);
    };
    const StepWork& work = stage.work;
    if (work.gathers.calls + work.reductions.calls == 0) continue;
    // With --fsdp-reduce-grads last all gradients are reduced together, as without units.
    const std::string reduced = work.reductions.calls == 0
                                    ? "reduced once per step, in the lines above"
                                    : describe("reduced", work.reductions, stage.times.exposed_reductions);
    table.add({},
              fmt::format("units{}: {}; {}", forecast.stages.size() > 1 ? fmt::format(" of stage {}", stage.stage) : "",
                          describe("gathered", work.gathers, stage.times.exposed_gathers), reduced));
  }
}

Table flops_table(const Options& options, const Forecast& forecast) {
  const StageForecast& most =
      *std::ranges::max_element(forecast.stages, {}, [](const StageForecast& stage) { return stage.work.flops; });
  const double tokens = static_cast<double>(options.train.global_batch_size * options.model.seq_length);
  const double per_token = flops_per_token(options, forecast.config.marks.pairs);
  Table table{.title = "FLOPs", .columns = kNumbers};
  table.add({"per token (causal, 6 N)", fmt::format("{:.4e}", per_token)});
  table.add({"per step, all ranks", fmt::format("{:.4e}", per_token * tokens)});
  table.add({"per step and rank, launched", fmt::format("{:.4e}", most.work.flops)},
            fmt::format(" (with recompute) in {:.0f} ops", most.work.ops));
  return table;
}

Table communication_table(const Forecast& forecast) {
  const std::vector<StageForecast>& stages = forecast.stages;
  if (std::ranges::all_of(stages, [](const StageForecast& stage) { return stage.work.volumes.empty(); })) return {};
  const bool many = stages.size() > 1;
  Table table{.title = "communication per rank and step: payload, and bytes sent in a ring",
              .columns = {{.width = 10, .is_text = true, .head = "axis"},
                          {.width = 8, .head = "calls"},
                          {.width = 5, .is_text = true, .head = " "},
                          {.width = 16, .head = "payload"},
                          {.width = 16, .head = "sent"},
                          {.width = 13, .head = "in sequence"}}};
  if (many) table.columns.insert(table.columns.begin(), {.width = 17, .is_text = true, .head = "stages"});
  for (std::size_t s = 0; s < stages.size();) {
    std::size_t end = s;  // stages with equal communication share lines
    while (end < stages.size() && stages[end].work.volumes == stages[s].work.volumes) ++end;
    for (const auto& [axis, volume] : stages[s].work.volumes) {
      std::vector<std::string> cells;
      if (many) cells.push_back(end - s > 1 ? fmt::format("stage {} to {}", s, end - 1) : fmt::format("stage {}", s));
      cells.insert(cells.end(), {axis, fmt::format("{:.0f}", volume.calls), volume.calls == 1 ? "call" : "calls",
                                 mib_text(volume.bytes), mib_text(volume.sent)});
      if (volume.seconds > 0) cells.push_back(fmt::format("{:.2f} ms", 1e3 * volume.seconds));
      table.add(std::move(cells));
    }
    s = end;
  }
  add_units(table, forecast);
  return table;
}

Table step_table(const Forecast& forecast, const Rates* rates) {
  if (!forecast.step) {
    Table unknown{.title = "step time"};
    unknown.add({}, "unknown: give the machine's rates with --rates, such as configs/rates/h200.toml");
    return unknown;
  }
  const StepForecast& step = *forecast.step;
  Table table{.title = "step, forecast by the rates of " + rates->device, .columns = kNumbers};
  const auto ms = [&table](const char* name, double seconds) {
    table.add({name, fmt::format("{:.2f}", 1e3 * seconds)}, " ms");
  };
  ms("time", step.seconds);
  table.add({"tokens/s, all ranks", fmt::format("{:.0f}", step.tokens_per_second)});
  table.add({"TFLOP/s per rank", fmt::format("{:.1f}", step.tflops_per_rank)});
  ms("host, enqueue", step.host_seconds);
  ms("forward and backward", step.pipeline_seconds);
  table.add({"pipeline bubble", fmt::format("{:.1f}", 100 * step.bubble_share)}, " %");
  const auto& stages = forecast.simulation.stages;
  for (std::size_t s = 0; stages.size() > 1 && s < stages.size(); ++s)
    table.add({}, fmt::format("  stage {:<4} busy {:>11.2f} ms, idle {:>5.1f} %", s, 1e3 * stages[s].busy,
                              100 * (1 - stages[s].busy / step.pipeline_seconds)));
  return table;
}

std::string describe_way(const Options& options, const Forecast& forecast) {
  switch (forecast.dispatcher) {
    case MoeTokenDispatcher::kAllGather: return "allgather: each token to all ranks";
    case MoeTokenDispatcher::kFlex: return "flex: ranks read the tokens that chose them from each other's memory";
    default: break;
  }
  const bool padded = options.device == DeviceType::kCuda;
  return fmt::format("alltoall: each token to the ranks that it chose{}", padded ? ", in equal parts" : "");
}

// Number of MoE layers of a stage.
std::int64_t layers_of(const Options& options, const Forecast& forecast, int stage) {
  const ModelConfig& model = options.model;
  std::int64_t layers = 0;
  for (const GptPart& part : forecast.config.pipeline.parts_of(stage))
    layers += moe_layers_before(model, part.first_layer + part.num_layers) - moe_layers_before(model, part.first_layer);
  return layers;
}

struct Way {
  const char* name;
  AxisVolume volume;
};
std::vector<Way> ways_of(const StepWork& work) {
  return {{"forward, dispatch", work.forward.out},
          {"forward, return", work.forward.home},
          {"backward, dispatch", work.backward.out},
          {"backward, return", work.backward.home}};
}

}  // namespace

Table experts_table(const Options& options, const Forecast& forecast) {
  const std::optional<ExpertRows> rows = expert_rows(options, forecast.config);
  if (!rows) return {};
  const MeshSizes& mesh = forecast.config.mesh;
  Table table{.title = fmt::format("experts: {} of {} on a rank (etp {} x ep {}, {})", rows->sizes.local_experts(),
                                   rows->sizes.experts, mesh.etp, mesh.ep, counted(mesh.edp, "copy", "copies")),
              .columns = {{.width = 27, .is_text = true}, {.width = 15}}};
  const auto add = [&table](const char* name, double mean, std::int64_t room) {
    table.add({name, fmt::format("{:.0f}", mean)}, fmt::format(", capacity {}", room));
  };
  table.add({}, "per layer and microbatch, with uniform routing");
  table.add({"  tokens of the rank", fmt::to_string(rows->sizes.tokens)});
  add("  tokens that arrive", rows->mean.arrived, rows->room.arrived);
  add("  rows of its experts", rows->mean.rows, rows->room.rows);
  table.add({}, describe_way(options, forecast));
  if (std::string overlap = describe_overlap(options, forecast.config); !overlap.empty())
    table.add({}, std::move(overlap));
  for (const StageForecast& stage : forecast.stages) {
    const auto each = static_cast<double>(layers_of(options, forecast, stage.stage) * forecast.config.microbatches);
    if (each == 0) continue;
    if (forecast.stages.size() > 1) table.add({}, fmt::format("stage {}", stage.stage));
    for (const auto& [name, volume] : ways_of(stage.work)) {
      const std::string seconds = volume.seconds > 0 ? fmt::format(", {:.2f} ms", 1e3 * volume.seconds) : "";
      table.add({fmt::format("  {}", name)},
                fmt::format(" {:>12.2f} MiB per layer and microbatch, {:.2f} GiB per step{}", mib(volume.sent) / each,
                            gib(volume.sent), seconds));
    }
    if (forecast.step) table.add({"  exposed", fmt::format("{:.2f}", 1e3 * stage.times.exposed_rows)}, " ms per step");
  }
  return table;
}

Table copies_table(const Forecast& forecast) {
  Table table;
  for (const StageForecast& stage : forecast.stages) {
    const std::string whose = forecast.stages.size() > 1 ? fmt::format(" of stage {}", stage.stage) : "";
    const StepTimes* const times = forecast.step ? &stage.times : nullptr;
    if (std::string line = describe_copies(stage.plans, forecast.config.microbatches, times, whose); !line.empty())
      table.add({}, std::move(line));
  }
  return table;
}

std::vector<Table> plan_tables(const Options& options, const Forecast& forecast, const Rates* rates) {
  const RunConfig& config = forecast.config;
  std::vector<Table> tables = {layout_table(options, config, rates != nullptr), mesh_table(config.mesh),
                               pipeline_table(config), parameter_table(options)};
  for (const StageForecast& stage : forecast.stages) {
    const StepPlans& plans = stage.plans;
    const std::string whose = config.mesh.pp > 1 ? fmt::format(" of stage {}", stage.stage) : "";
    tables.push_back(memory_table(stage.memory, plans, whose));
    if (plans.checkpoint_staging > 0) {
      tables.push_back({.title = "host memory per rank" + whose, .columns = kBytes});
      tables.back().add({"checkpoint staging", mib_text(plans.checkpoint_staging)});
    }
    std::ranges::move(offload_tables(plans, whose), std::back_inserter(tables));
    tables.push_back(graphs_table(plans.graphs, options, whose));
  }
  for (Table& table :
       std::vector{flops_table(options, forecast), communication_table(forecast), experts_table(options, forecast),
                   copies_table(forecast), step_table(forecast, rates)})
    tables.push_back(std::move(table));
  std::erase_if(tables, [](const Table& table) { return table.rows.empty(); });
  return tables;
}

std::vector<Table> suggestion_tables(const Options& options, const Rates& rates, double memory,
                                     const Suggestions& found) {
  Table best{.title = fmt::format("layouts of {} of {} with {:.1f} GiB each, of which libraries use {:.1f}",
                                  counted(options.parallel.world_size, "rank"), rates.device, gib(memory),
                                  gib(rates.device_reserve)),
             .columns = {{.width = 10, .head = "step ms"},
                         {.width = 12, .head = "tokens/s"},
                         {.width = 8, .head = "TFLOP/s"},
                         {.width = 8, .head = "bubble %"},
                         {.width = 8, .head = "GiB"},
                         {.head = " flags"}},
             .prints_heads = true};
  for (const Suggestion& suggestion : found.best) {
    const StepForecast& step = suggestion.step;
    best.add({fmt::format("{:.1f}", 1e3 * step.seconds), fmt::format("{:.0f}", step.tokens_per_second),
              fmt::format("{:.1f}", step.tflops_per_rank), fmt::format("{:.1f}", 100 * step.bubble_share),
              fmt::format("{:.1f}", gib(step.max_memory)), fmt::format(" {}", fmt::join(suggestion.flags, " "))});
  }
  if (found.best.empty()) best.add({}, "no layout fits");
  Table dropped{.title = fmt::format("of {} layouts, dropped:", found.tried), .columns = {{.width = 6}}};
  for (const auto& [reason, count] : found.dropped) dropped.add({fmt::to_string(count)}, " " + reason);
  return {std::move(best), std::move(dropped)};
}

}  // namespace megalith
