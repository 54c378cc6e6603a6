#include "apps/config/run_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "apps/config/data_options.h"
#include "apps/config/options.h"
#include "apps/config/parallel_options.h"
#include "apps/config/program_options.h"
#include "apps/config/training_options.h"
#include "core/base/error.h"
#include "core/model/config.h"
#include "core/optim/batch_ramp.h"

namespace megalith {

namespace {

void check_step_size(const Options& options) {
  constexpr std::int64_t kMaxStep = std::int64_t{1} << 40;
  constexpr std::int64_t kMaxMicrobatch = std::int64_t{1} << 32;
  const auto limit = [&](const char* flag, std::int64_t samples, std::int64_t most) {
    if (samples <= most / options.model.seq_length) return;
    refuse_usage(fmt::format("{} and --seq-length", flag),
                 {.expected = fmt::format("at most {} tokens", most),
                  .got = fmt::format("{} x {}", samples, options.model.seq_length),
                  .remedy = "lower one of them"});
  };
  limit("--global-batch-size", options.train.global_batch_size, kMaxStep);
  limit("--micro-batch-size", options.train.micro_batch_size, kMaxMicrobatch);
}

// Rejects sizes beyond any machine's memory, so that sums of bytes of hundreds of buffers stay within 64 bits.
void check_memory_sums(const ModelConfig& model, std::int64_t tokens) {
  constexpr double kMaxParameters = 0x1p52, kMaxActivations = 0x1p54;
  const std::int64_t width =
      std::max({model.hidden_size, 3 * model.ffn_hidden_size, 3 * model.num_attention_heads * model.kv_channels,
                3 * model.moe.router_topk * model.moe.ffn_hidden_size});
  const double of_layers = static_cast<double>(model.num_layers) * static_cast<double>(width);
  const double activations = static_cast<double>(tokens) * (of_layers + static_cast<double>(model.padded_vocab_size));
  const auto parameters = static_cast<double>(count_parameters(model).total);
  const auto limit = [&](const char* flags, const char* what, double count, double most) {
    if (count <= most) return;
    refuse_usage(flags, {.expected = fmt::format("at most {:.0f} {}", most, what),
                         .got = fmt::format("{:.3g}", count),
                         .remedy = "lower one of the sizes"});
  };
  limit("--num-layers and the sizes of a layer", "parameters", parameters, kMaxParameters);
  limit("--global-batch-size, --seq-length and the sizes of the model", "activations of a step", activations,
        kMaxActivations);
}

std::int64_t count_microbatches(const TrainingOptions& options, std::int64_t data_parallel_size) {
  const std::int64_t per_microbatch = options.micro_batch_size * data_parallel_size;
  constexpr std::int64_t kMax = 1 << 16;
  if (options.global_batch_size / per_microbatch > kMax) {
    refuse_usage(
        "--global-batch-size",
        {.expected = fmt::format("at most {} microbatches per step and rank, {} samples", kMax, kMax * per_microbatch),
         .got = std::to_string(options.global_batch_size),
         .remedy = "raise --micro-batch-size or the number of ranks"});
  }
  if (options.global_batch_size % per_microbatch == 0) return options.global_batch_size / per_microbatch;
  const std::int64_t below = options.global_batch_size / per_microbatch * per_microbatch;
  refuse_usage(
      "--global-batch-size",
      {.expected = fmt::format("a multiple of --micro-batch-size {} x {} data-parallel ranks", options.micro_batch_size,
                               data_parallel_size),
       .got = std::to_string(options.global_batch_size),
       .remedy = fmt::format("use {}{}", below > 0 ? std::to_string(below) + " or " : "", below + per_microbatch)});
}

// Checks that the instances divide the mesh.
void check_instances(const ParallelOptions& parallel, const MeshSizes& mesh) {
  const std::int64_t instances = parallel.num_distributed_optimizer_instances, ranks = mesh.dp * mesh.cp;
  const std::int64_t copies = mesh.ep * mesh.etp > 1 ? mesh.edp : ranks;  // copies of experts
  if (ranks % instances == 0 && copies % instances == 0) return;
  std::vector<std::int64_t> fitting;
  for (std::int64_t count = 1; count <= std::min(ranks, instances); ++count)
    if (ranks % count == 0 && copies % count == 0) fitting.push_back(count);
  const std::string of_experts = copies == ranks ? "" : fmt::format(" and the {} copies of each expert", copies);
  refuse_usage(
      "--num-distributed-optimizer-instances",
      {.expected = fmt::format("a number that divides the {} data- and context-parallel ranks{}", ranks, of_experts),
       .got = fmt::format("{}", instances),
       .remedy = fmt::format("use {}", fmt::join(fitting, " or "))});
}

// 0: unknown, as in a run until its data are read.
double pairs_of_forecast(const Options& options) {
  const std::int64_t length = std::min(options.forecast.document_length, options.model.seq_length);
  return static_cast<double>(options.model.seq_length) * static_cast<double>(length);
}

}  // namespace

MarkedSamples marked_samples(const Options& options) {
  constexpr std::int64_t kUncounted = 64;
  const DocumentMasks& masks = options.data.masks;
  const std::int64_t given = options.data.max_documents_per_sample;
  const bool packs = options.data.sft, separates = packs || masks.separates_documents();
  return {.documents = !separates  ? 0
                       : given > 0 ? given
                                   : kUncounted,
          .restarts_positions = packs || masks.restarts_positions(),
          .masks_loss = packs || masks.eod_mask_loss,
          .pads = packs && options.model.moe.num_experts > 0,
          .pairs = separates ? pairs_of_forecast(options) : 0};
}

RunConfig run_config(const Options& options, int world) {
  RunConfig config;
  config.marks = marked_samples(options);
  config.mesh = mesh_sizes_of(options.parallel, world);
  check_instances(options.parallel, config.mesh);
  config.sequences = options.train.micro_batch_size;
  config.seq_length = options.model.seq_length;
  check_step_size(options);
  config.pipeline = pipeline_layout(options);
  config.microbatches = config.evaluation_microbatches = count_microbatches(options.train, config.mesh.dp);
  config.pipeline.overlaps_exchanges &= config.microbatches > 1;
  check_memory_sums(options.model, config.step_sequences() * config.rank_length());
  return config;
}

void check_stages(const TrainingOptions& train, const RunConfig& config) {
  const std::int64_t of_microbatch = config.sequences * config.mesh.dp;
  check_ramp_divides(train, of_microbatch);
  if (config.pipeline.placement.num_parts() > 1) {
    for (const std::int64_t batch : smaller_batches(train))
      static_cast<void>(schedule_of(config.pipeline, batch / of_microbatch));
  }
  static_cast<void>(config.schedule());
}

}  // namespace megalith
