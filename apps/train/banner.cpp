#include "apps/train/banner.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <string_view>

#include "apps/config/data_options.h"
#include "apps/config/dispatcher_choice.h"
#include "apps/config/optimizer_options.h"
#include "apps/config/parallel_options.h"
#include "apps/config/run_length.h"
#include "apps/config/training_options.h"
#include "apps/metrics/metrics.h"
#include "apps/program/version.h"
#include "apps/run/own_model.h"
#include "apps/run/run_data.h"
#include "apps/run/step_plan.h"
#include "apps/summary/offload_report.h"
#include "apps/summary/planned_graphs.h"
#include "apps/summary/sharding_words.h"
#include "core/base/counted.h"
#include "core/base/text/text.h"
#include "core/base/text/units.h"
#include "core/device/cuda_device.h"
#include "core/optim/batch_ramp.h"
#include "parallel/mesh/hosts.h"

namespace megalith {

namespace {

constexpr std::size_t kMaxNames = 4;

// First names of a long list.
std::string listed(const std::vector<std::string>& names) {
  const std::size_t shown = names.size() > kMaxNames ? kMaxNames - 1 : names.size();
  std::string text =
      fmt::format("{}", fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "));
  if (shown < names.size()) text += fmt::format(" and {} more", names.size() - shown);
  return text;
}

std::string describe_ranks(const std::vector<RankFacts>& ranks) {
  std::vector<std::string> hosts, devices;  // in the order of the ranks
  std::map<std::string, int> ranks_of;
  for (const RankFacts& rank : ranks) {
    if (++ranks_of[rank.host] == 1) hosts.push_back(rank.host);
    if (std::find(devices.begin(), devices.end(), rank.device) == devices.end()) devices.push_back(rank.device);
  }
  for (std::string& host : hosts) {
    if (ranks_of.size() > 1) host += fmt::format(": {}", ranks_of[host]);
  }
  const std::string where = hosts.size() == 1 ? hosts[0] : fmt::format("{} hosts ({})", hosts.size(), listed(hosts));
  return fmt::format("{} on {}, {}", ranks.size(), where, listed(devices));
}

std::string describe_layout(const Options& options, const RunConfig& config) {
  const MeshSizes& mesh = config.mesh;
  const PipelineLayout& pipeline = config.pipeline;
  std::string text = fmt::format("tp {} x cp {} x dp {} x pp {}", mesh.tp, mesh.cp, mesh.dp, mesh.pp);
  if (pipeline.placement.num_parts() > 1) text += fmt::format(", schedule {}", name_of(pipeline.kind));
  if (pipeline.placement.num_chunks > 1) text += fmt::format(" of {} chunks per stage", pipeline.placement.num_chunks);
  if (options.parallel.sequence_parallel) text += ", sequence parallel";
  const ShardingStrategy sharding = options.parallel.sharding(), of_experts = options.parallel.expert_sharding();
  const std::int64_t ranks = sharers(options, mesh);
  if (sharding != ShardingStrategy::kNoShard) text += fmt::format(", {}", describe_sharding(sharding, ranks));
  if (sharding == ShardingStrategy::kOptimGradsParams && ranks > 1)
    text += fmt::format(" ({})", describe_ends(options));
  if (of_experts != sharding)
    text += fmt::format(", experts: {}", describe_sharding(of_experts, sharers_of_experts(options, mesh)));
  if (const std::int64_t instances = options.parallel.num_distributed_optimizer_instances; instances > 1)
    text += fmt::format(
        " in {} instances{}", instances,
        options.parallel.outer_dp_sharding_strategy == OuterSharding::kOptim ? " that shard the optimizer" : "");
  return text + fmt::format(", {} of {} per step", counted(config.microbatches, "microbatch", "microbatches"),
                            counted(config.sequences, "sequence"));
}

std::string describe_model(const Options& options) {
  const ModelConfig& model = options.model;
  const std::int64_t parameters = count_parameters(options).total;
  std::string text = fmt::format(
      "{} parameters ({}): {} of hidden size {}, {}", with_unit(static_cast<double>(parameters)), parameters,
      counted(model.num_layers, "layer"), model.hidden_size, counted(model.num_attention_heads, "head"));
  if (model.num_query_groups != model.num_attention_heads)
    text += fmt::format(" in {}", counted(model.num_query_groups, "group"));
  return text +
         fmt::format(", vocabulary {}, {}", model.vocab_size, model.params_dtype == DType::kBf16 ? "bf16" : "fp32") +
         (options.optimizer.grad_reduce_in_bf16 ? "; --grad-reduce-in-bf16 means --main-grads-dtype bf16" : "");
}

// Text about a growing batch size.
std::string describe_ramp(const Options& options) {
  const TrainingOptions& train = options.train;
  if (!train.grows()) return "";
  const std::int64_t first = batch_after(train, 0);
  const std::int64_t last = train.batch_stages.empty() ? train.rampup_batch_size[2] : train.batch_stages.back().samples;
  return fmt::format(", from {} over {} ({}),", first * options.model.seq_length, counted(last, "sample"),
                     train.growth_flag());
}

std::string describe_tokens(const Options& options) {
  const TrainingOptions& train = options.train;
  const std::int64_t step = train.global_batch_size * options.model.seq_length;
  std::vector<std::string> prefixes;
  if (!options.data.mock_data) {
    const DataOptions& data = options.data;
    std::vector<std::string> paths = data_path_of(data);
    for (const auto* of_split : {&data.train_data_path, &data.valid_data_path, &data.test_data_path})
      if (paths.empty()) paths = *of_split;
    for (const std::string& prefix : prefixes_of(paths)) prefixes.push_back(escaped_short(prefix));
  }
  const RunEnd end = end_of_run(train, {});
  const double all = static_cast<double>(end.at.samples) * static_cast<double>(options.model.seq_length);
  return fmt::format(
      "{} per step{} in sequences of {}, {}, from {}", step, describe_ramp(options), options.model.seq_length,
      train.skip_train ? "evaluation only" : fmt::format("{} in {}", with_unit(all), counted(end.at.steps, "step")),
      prefixes.empty() ? "--mock-data" : listed(prefixes));
}

// Text about documents and masks of samples.
std::string describe_marks(const Options& options, const RunConfig& config) {
  const MarkedSamples& marks = config.marks;
  if (!marks.any()) return "";
  std::vector<std::string> parts;
  if (marks.documents > 0) {
    const double full = std::pow(static_cast<double>(config.seq_length), 2);
    parts.push_back(
        fmt::format("at most {} each, between which there is no attention", counted(marks.documents, "document")));
    if (marks.pairs > 0)
      parts.push_back(fmt::format("attention costs {:.2f} of that without documents", marks.pairs / full));
  }
  if (marks.restarts_positions) parts.emplace_back("positions restart");
  parts.emplace_back(options.train.calculate_per_token_loss ? "loss as a mean over trained tokens"
                                                            : "loss as a mean over microbatches of their means");
  return fmt::format("{}", fmt::join(parts, "; "));
}

std::string describe_experts(const Options& options, const RunConfig& config) {
  const MoeConfig& moe = options.model.moe;
  if (moe.num_experts == 0) return "";
  const ParameterCount count = count_parameters(options);
  std::string text = fmt::format("{} of {} per token, {} active parameters, ", moe.router_topk, moe.num_experts,
                                 with_unit(static_cast<double>(count.active())));
  text += moe.use_transformer_engine_op_fuser ? "fused grouped GEMM" : "grouped GEMM";
  if (!moe.grouped_gemm) text += " (--moe-grouped-gemm is always active)";
  if (moe.expert_capacity_factor != 0)
    text += fmt::format("; capacity {} x the mean rows of a rank's microbatch", moe.expert_capacity_factor);
  if (moe.pad_expert_input_to_capacity) text += "; --moe-pad-expert-input-to-capacity has no effect";
  const MeshSizes& mesh = config.mesh;
  if (mesh.etp * mesh.ep > 1)
    text += fmt::format("; split over etp {} x ep {}, {}, {}", mesh.etp, mesh.ep, counted(mesh.edp, "copy", "copies"),
                        describe_dispatcher(options));
  if (const std::string overlap = describe_overlap(options, config); !overlap.empty()) text += "; " + overlap;
  if (mesh.tp > 1 && options.is_default("expert-tensor-parallel-size"))
    text +=
        "; --expert-tensor-parallel-size 1: each tensor-parallel rank has unsplit experts for its own rows "
        "(Megatron-LM's default is the tensor-parallel size)";
  if (options.parallel.moe_shared_expert_overlap && mesh.etp * mesh.ep == 1)
    text += "; --moe-shared-expert-overlap has no effect, as no rank waits for rows of others";
  return text;
}

std::string describe_memory(const std::vector<RankFacts>& ranks) {
  const auto most = std::max_element(ranks.begin(), ranks.end(),
                                     [](const RankFacts& a, const RankFacts& b) { return a.bytes < b.bytes; });
  return fmt::format("{}rank {} needs {:.2f} MiB by forecast: {}", ranks.size() > 1 ? "at most, " : "",
                     most - ranks.begin(), mib(most->bytes), most->owners);
}

// Text about the offload of each stage's first rank.
std::string describe_offloads(const std::vector<RankFacts>& ranks, std::int64_t stages) {
  std::string text;
  for (std::size_t stage = 0; stage < static_cast<std::size_t>(stages); ++stage) {
    const RankFacts& first = ranks[stage * ranks.size() / static_cast<std::size_t>(stages)];
    if (first.offload.empty()) continue;
    const std::string whose = stages > 1 ? fmt::format("stage {}: ", stage) : "";
    text += fmt::format("  {:<8}{}{}\n", "offload", whose, first.offload);
  }
  return text;
}

}  // namespace

std::string device_name(const Options& options) {
  return options.device == DeviceType::kCuda ? cuda_facts(use_cuda_device()).name : "CPU";
}

std::string describe_owners(const MemoryUse& use) {
  constexpr double kShown = 0.005;
  std::string text;
  for (const auto& [bytes, name] : use.owners()) {
    if (mib(bytes) >= kShown) text += fmt::format("{}{} {:.2f}", text.empty() ? "" : ", ", name, mib(bytes));
  }
  return text;
}

std::string banner_text(const Options& options, const RunConfig& config, const std::vector<RankFacts>& ranks,
                        const std::vector<std::string>& notices) {
  std::vector<StepGraphs> graphs;
  graphs.reserve(ranks.size());
  for (const RankFacts& rank : ranks) graphs.push_back(rank.graphs);
  std::string text = version_line("train") + "\n";
  for (const auto& [label, line] : {std::pair<std::string_view, std::string>{"ranks", describe_ranks(ranks)},
                                    {"layout", describe_layout(options, config)},
                                    {"model", describe_model(options)},
                                    {"experts", describe_experts(options, config)},
                                    {"tokens", describe_tokens(options)},
                                    {"samples", describe_marks(options, config)},
                                    {"graphs", describe_graphs(options, graphs)},
                                    {"memory", describe_memory(ranks)}}) {
    if (!line.empty()) text += fmt::format("  {:<8}{}\n", label, line);
  }
  text += describe_offloads(ranks, config.mesh.pp);
  for (const std::string& notice : notices) text += fmt::format("  {:<8}{}\n", "flags", notice);
  return text;
}

void print_banner(const RunSetup& setup, Communicator& world, const std::vector<std::string>& notices) {
  const MemoryUse use = memory_use(setup.plans);
  const std::vector<std::string> hosts = hosts_of(world);
  const std::vector<std::string> devices = world.host_all_gather(device_name(setup.options));
  const std::vector<std::size_t> bytes = world.host_gather(use.total());
  const std::vector<std::string> owners = world.host_all_gather(describe_owners(use));
  const std::vector<std::string> offloads = world.host_all_gather(describe_offloading(setup.plans));
  const std::vector<StepGraphs> graphs = world.host_gather(setup.plans.graphs);
  std::vector<RankFacts> ranks;
  for (std::size_t r = 0; r < hosts.size(); ++r)
    ranks.push_back({.host = hosts[r],
                     .device = devices[r],
                     .bytes = bytes[r],
                     .owners = owners[r],
                     .offload = offloads[r],
                     .graphs = graphs[r]});
  if (world.rank() != 0) return;
  std::fputs(banner_text(setup.options, setup.config, ranks, notices).c_str(), stdout);
  std::fflush(stdout);
}

}  // namespace megalith
