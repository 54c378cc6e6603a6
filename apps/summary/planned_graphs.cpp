#include "apps/summary/planned_graphs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "apps/config/memory_options.h"
#include "apps/config/options.h"
#include "apps/config/training_options.h"
#include "core/base/counted.h"
#include "core/base/error.h"
#include "core/base/text/units.h"
#include "core/layers/segment.h"

namespace megalith {

namespace {

// True if one of the graphs holds the module of --cuda-graph-modules.
bool hold(const StepGraphs& graphs, std::string_view module) {
  for (const auto& [name, kind] : {std::pair<std::string_view, SegmentModule>{"attn", SegmentModule::kAttention},
                                   {"mlp", SegmentModule::kMlp},
                                   {"moe_router", SegmentModule::kMoeRouter},
                                   {"moe_preprocess", SegmentModule::kMoeDispatch},
                                   {"moe", SegmentModule::kMoe},
                                   {"own", SegmentModule::kOwn}}) {
    if (name == module) return (graphs.modules >> static_cast<unsigned>(kind) & 1) != 0;
  }
  return graphs.graphs > 0;  // layer
}

std::string describe_capture(const MemoryOptions& memory) {
  return fmt::format("captured after {} (--cuda-graph-warmup-steps; Megatron-LM's default is 3){}",
                     counted(memory.cuda_graph_warmup_steps, "warmup step"),
                     memory.cuda_graph_impl == CudaGraphImpl::kLocal ? "" : "; transformer_engine means local here");
}

}  // namespace

void check_captured_modules(const Options& options, const std::vector<StepGraphs>& ranks) {
  if (options.memory.cuda_graph_impl == CudaGraphImpl::kNone || options.train.skip_train) return;
  for (const std::string& module : options.memory.cuda_graph_modules) {
    // No rows are dispatched if each rank has all experts.
    const std::string_view needed = module == "moe_preprocess" ? "moe_router" : std::string_view(module);
    if (std::ranges::any_of(ranks, [&](const StepGraphs& rank) { return hold(rank, needed); })) continue;
    refuse_usage(
        "--cuda-graph-modules",
        {.expected = "modules that run separately in a layer of some rank",
         .got = module + ", which no rank captures",
         .remedy = module == "layer"
                       ? "use --cuda-graph-impl none"
                       : fmt::format("remove {}, or use layer, which also captures fully recomputed layers", module)});
  }
}

std::string describe_graphs(const Options& options, const std::vector<StepGraphs>& ranks) {
  if (options.memory.cuda_graph_impl == CudaGraphImpl::kNone || options.train.skip_train || ranks.empty()) return "";
  std::vector<std::string> modules;
  for (const std::string& module : options.memory.cuda_graph_modules) {
    const auto holding = std::ranges::count_if(ranks, [&](const StepGraphs& rank) { return hold(rank, module); });
    modules.push_back(
        holding == std::ssize(ranks) ? module : fmt::format("{} on {} of {} ranks", module, holding, ranks.size()));
  }
  const auto [least, most] = std::ranges::minmax(ranks, {}, &StepGraphs::graphs);
  return fmt::format("{}; {}{} per rank, {}", fmt::join(modules, ", "),
                     least.graphs == most.graphs ? "" : fmt::format("{} to ", least.graphs),
                     counted(most.graphs, "graph"), describe_capture(options.memory));
}

Table graphs_table(const StepGraphs& graphs, const Options& options, const std::string& whose) {
  if (graphs.graphs == 0) return {};
  std::vector<std::string> modules;
  std::ranges::copy_if(options.memory.cuda_graph_modules, std::back_inserter(modules),
                       [&](const std::string& module) { return hold(graphs, module); });
  Table table{.title = "graphs per rank" + whose, .columns = {{.width = 25, .is_text = true}, {.width = 12}}};
  table.add({"of"}, fmt::format(" {}, {}", fmt::join(modules, " and "), describe_capture(options.memory)));
  const auto add = [&table](const char* name, std::int64_t count) { table.add({name, fmt::to_string(count)}); };
  add("captured", graphs.graphs);
  add("captured ops", graphs.captured_ops);
  add(options.device == DeviceType::kCuda ? "nodes on a GPU, about" : "nodes", graphs.nodes);
  table.add({"expected memory", fmt::format("{:.2f}", mib(graphs.bytes()))}, " MiB of a GPU");
  add("replays per step", graphs.replays);
  add("eager ops per step", graphs.eager_ops);
  return table;
}

}  // namespace megalith
