// plan: what a run would take, for any number of ranks, without running it: layout, parameters, memory by owner, FLOPs.
#include <fmt/format.h>

#include <cstdio>

#include "apps/flags.h"
#include "apps/model_builder.h"
#include "apps/program.h"
#include "apps/trainer.h"
#include "core/base/cpu_check.h"

namespace megalith {

namespace {

std::string mib(std::size_t bytes) { return fmt::format("{:>12.2f} MiB", static_cast<double>(bytes) / (1 << 20)); }

void print_layout(const Options& options, int world) {
  const MeshSizes sizes = mesh_sizes(options, world);
  const std::int64_t microbatches = count_microbatches(options.train, static_cast<int>(sizes.dp));
  fmt::print("layout\n");
  fmt::print("  ranks                         {:>15} (tp {} dp {})\n", world, sizes.tp, sizes.dp);
  fmt::print("  sequences per step            {:>15} = {} replicas x {} microbatches x {}\n",
             options.train.global_batch_size, sizes.dp, microbatches, options.train.micro_batch_size);
  fmt::print("  tokens per step               {:>15}\n", options.train.global_batch_size * options.model.seq_length);
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

void print_memory(const MemoryUse& use, const StepPlans& plans) {
  fmt::print("memory per rank\n");
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
}

ExitCode forecast(int argc, char** argv) {
  Options options = parse_options(App::kPlan, argc, argv);
  const int world = static_cast<int>(options.parallel.world_size);
  complete_options(options, tokenizer_of(options), static_cast<int>(mesh_sizes(options, world).dp));
  CategoryBytes persistent{};
  const StepPlans plans = plan_steps(options, 0, world, &persistent);
  print_layout(options, world);
  print_parameters(options.model);
  print_memory(memory_use(plans, persistent), plans);
  const double tokens = static_cast<double>(options.train.global_batch_size * options.model.seq_length);
  fmt::print("FLOPs\n");
  fmt::print("  per token (causal, 6 N)       {:>15.4e}\n", flops_per_token(options.model));
  fmt::print("  per step, all ranks           {:>15.4e}\n", flops_per_token(options.model) * tokens);
  fmt::print("  per step and rank, launched   {:>15.4e} (recompute included) in {} ops\n", plans.train_flops,
             plans.train_ops);
  return ExitCode::kOk;
}

}  // namespace

}  // namespace megalith

int main(int argc, char** argv) {
  megalith::require_cpu_baseline();
  return megalith::run_program("plan", [&] { return megalith::forecast(argc, argv); });
}
