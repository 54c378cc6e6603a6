#include "apps/generate/inference_model.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "apps/config/own.h"
#include "core/base/counted.h"
#include "core/base/error.h"
#include "core/base/machine/host_memory.h"
#include "core/base/text/units.h"
#include "core/model/config.h"
#include "moe/moe_layer.h"

namespace megalith {

InferenceModel::InferenceModel(const Options& options, DeviceType device, Communicator* ranks, Instruments instruments,
                               std::int64_t loss_chunk_size)
    : pool_(device, device == DeviceType::kCpu ? available_bytes() : 0),
      compute_(device, "compute", instruments),
      arena_(pool_, device == DeviceType::kPlan ? Arena::Mode::kRecording : Arena::Mode::kPlanned),
      gpt_(build_gpt(options.model, {}, {.own = own_segments(options), .moe = moe_factory()}, loss_chunk_size)),
      ctx_{.compute = compute_, .arena = arena_, .planned_for = options.device} {
  const bool shares = ranks != nullptr && ranks->size() > 1;
  CudaStream* const cuda = compute_.cuda();
  if (cuda != nullptr && !shares) cuda->let_start_early();  // most kernels of a step are short
  if (shares) shard_units(gpt_, *ranks);
  gpt_.parameters->allocate(pool_, options.model.params_dtype, std::nullopt);
  if (shares) shards_ = std::make_unique<ShardedForward>(gpt_, *ranks, compute_, pool_, instruments);
  std::vector<SegmentRunner::Entry> entries;
  for (const NamedSegment& named : gpt_.segments)
    entries.push_back(
        {.name = named.name, .segment = named.segment.get(), .module = named.module, .unit = named.layer_unit});
  runner_ = std::make_unique<SegmentRunner>(ctx_, std::move(entries));
}

const TensorList& InferenceModel::forward(const Microbatch& microbatch) {
  runner_->begin(0, microbatch);
  if (shards_) {
    shards_->forward(*runner_);
  } else {
    for (int s = 0; s < runner_->num_segments(); ++s) runner_->run({.kind = ActionKind::kForward, .segment = s});
  }
  return runner_->outputs(0);
}

std::optional<std::int64_t> max_positions(const Options& options) {
  if (options.model.position_embedding_type != PositionEmbedding::kLearnedAbsolute) return std::nullopt;
  return options.model.max_position_embeddings;
}

InferenceBytes lasting_bytes(const MemoryPool& pool) {
  const std::size_t weights = pool.allocated_by_category()[static_cast<std::size_t>(MemoryCategory::kParameters)];
  return {.weights = weights, .kv_cache = pool.allocated_bytes() - weights};
}

void check_memory(const std::function<InferenceBytes(int ranks)>& bytes_of, int ranks, std::size_t free,
                  const std::string& remedy) {
  const InferenceBytes bytes = bytes_of(ranks);
  if (free == 0 || bytes.total() <= free) return;
  constexpr int kMostRanks = 256;
  int enough = 2 * ranks;
  while (enough <= kMostRanks && bytes_of(enough).total() > free) enough *= 2;
  fail({.code = ExitCode::kOutOfMemory,
        .subject = fmt::format("generate on {}", counted(ranks, "rank")),
        .expected =
            fmt::format("{:.2f} GiB on each: {:.2f} GiB of weights, {:.2f} GiB of KV cache, {:.2f} GiB for a step",
                        gib(bytes.total()), gib(bytes.weights), gib(bytes.kv_cache), gib(bytes.arena)),
        .got = fmt::format("{:.2f} GiB free", gib(free)),
        .remedy = enough <= kMostRanks
                      ? fmt::format("shard the weights over more ranks: mpirun -np {} generate ...", enough)
                      : remedy,
        .show_place = false});
}

}  // namespace megalith
