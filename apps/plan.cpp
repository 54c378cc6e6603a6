// plan: what a run would take, for any number of ranks, without running it: layout, parameters, memory by owner, FLOPs.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "apps/flags.h"
#include "apps/model_builder.h"
#include "apps/program.h"
#include "apps/trainer.h"
#include "core/base/cpu_check.h"
#include "parallel/pipeline_parallel/simulator.h"

namespace megalith {

namespace {

std::string mib(std::size_t bytes) { return fmt::format("{:>12.2f} MiB", static_cast<double>(bytes) / (1 << 20)); }

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
  fmt::print("mesh (rank = tp + {} x (dp + {} x pp))\n", mesh.tp, mesh.dp);
  const auto tp = static_cast<int>(mesh.tp);
  const int groups = static_cast<int>(mesh.world()) / tp;
  for (int group = 0; group < std::min(groups, kMostLines); ++group) {
    const std::vector<int> ranks = group_of(mesh, group * tp, {Axis::kTp});
    const MeshCoordinates first = coordinates_of(mesh, ranks.front()), last = coordinates_of(mesh, ranks.back());
    fmt::print(
        "  pp {:<3} dp {:<5} tp {:<7} {}\n", first.pp, first.dp,
        tp == 1 ? std::string("0") : fmt::format("{} to {}", first.tp, last.tp),
        tp == 1 ? fmt::format("rank {}", ranks.front()) : fmt::format("ranks {} to {}", ranks.front(), ranks.back()));
  }
  if (groups > kMostLines) fmt::print("  and {} more groups in this order\n", groups - kMostLines);
}

void print_layout(const Options& options, const MeshSizes& mesh) {
  const std::int64_t microbatches = count_microbatches(options.train, static_cast<int>(mesh.dp));
  fmt::print("layout\n");
  fmt::print("  ranks                         {:>15} ({}dp {}{})\n", mesh.world(),
             mesh.tp > 1 ? fmt::format("tp {} x ", mesh.tp) : "", mesh.dp,
             mesh.pp > 1 ? fmt::format(" x pp {}", mesh.pp) : "");
  fmt::print("  sequences per step            {:>15} = {} data-parallel ranks x {} microbatches x {}\n",
             options.train.global_batch_size, mesh.dp, microbatches, options.train.micro_batch_size);
  fmt::print("  tokens per step               {:>15}\n", options.train.global_batch_size * options.model.seq_length);
  print_mesh(mesh);
  const PipelineLayout pipeline = pipeline_layout(options);
  if (pipeline.placement.num_parts() == 1) return;
  const Schedule schedule = schedule_of(pipeline, microbatches);
  fmt::print("pipeline\n");
  fmt::print("  schedule                      {:>15}, {} chunks a stage\n", name_of(pipeline.kind),
             pipeline.placement.num_chunks);
  fmt::print("  idle, at F = B = W            {:>14.1f}%\n", 100 * simulate(schedule, {}).bubble_share());
  for (int stage = 0; stage < pipeline.placement.num_stages; ++stage) {
    const std::int64_t ranks = mesh.world() / mesh.pp;
    fmt::print("  stage {:<4} ranks {:>5} to {:<5} {}\n", stage, stage * ranks, (stage + 1) * ranks - 1,
               said_layers(pipeline.parts_of(stage)));
  }
}

void print_parameters(const ModelConfig& model) {
  const ParameterCount count = count_parameters(model);
  fmt::print("parameters\n");
  for (const auto& [name, value] : {std::pair{"embedding", count.embedding},
                                    {"attention", count.attention},
                                    {"mlp", count.mlp},
                                    {"norms", count.norm},
                                    {"output layer", count.output},
                                    {"total", count.total}}) {
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
  for (const auto& [kind, bytes] : use.activations) fmt::print("      {:<21} {}\n", "kept " + kind, mib(bytes));
  fmt::print("      {:<21} {}\n", "temporary",
             mib(use.arena_live[static_cast<std::size_t>(MemoryCategory::kWorkspace)]));
  fmt::print("    evaluation step         {}\n", mib(plans.evaluate.peak_bytes));
  fmt::print("  {:<25} {}\n", "total", mib(use.total()));
  if (plans.checkpoint_staging == 0) return;
  fmt::print("host memory per rank{}\n", whose);
  fmt::print("  {:<25} {}\n", "checkpoint staging", mib(plans.checkpoint_staging));
}

ExitCode forecast(int argc, char** argv) {
  Options options = parse_options(App::kPlan, argc, argv);
  const int world = static_cast<int>(options.parallel.world_size);
  complete_options(options, tokenizer_of(options), world);
  const MeshSizes mesh = mesh_sizes_of(options.parallel, world);
  print_layout(options, mesh);
  print_parameters(options.model);
  StepPlans most;  // of the stage that computes most
  for (int stage = 0; stage < mesh.pp; ++stage) {
    CategoryBytes persistent{};
    const int first_rank = static_cast<int>(stage * (mesh.world() / mesh.pp));
    const StepPlans plans = plan_steps(options, first_rank, world, &persistent);
    print_memory(memory_use(plans, persistent), plans, mesh.pp > 1 ? fmt::format(" of stage {}", stage) : "");
    if (plans.train_flops > most.train_flops) most = plans;
  }
  const double tokens = static_cast<double>(options.train.global_batch_size * options.model.seq_length);
  fmt::print("FLOPs\n");
  fmt::print("  per token (causal, 6 N)       {:>15.4e}\n", flops_per_token(options.model));
  fmt::print("  per step, all ranks           {:>15.4e}\n", flops_per_token(options.model) * tokens);
  fmt::print("  per step and rank, launched   {:>15.4e} (recompute included) in {} ops\n", most.train_flops,
             most.train_ops);
  return ExitCode::kOk;
}

}  // namespace

}  // namespace megalith

int main(int argc, char** argv) {
  megalith::require_cpu_baseline();
  return megalith::run_program("plan", [&] { return megalith::forecast(argc, argv); });
}
