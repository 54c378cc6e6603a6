#include "apps/config/pipeline_options.h"

#include <fmt/format.h>

#include "apps/config/options.h"
#include "apps/config/parallel_options.h"
#include "core/base/error.h"

namespace megalith {

namespace {

// Number of chunks per stage by the flags; 0 if no flag sets it.
int chunks_of(const ParallelOptions& parallel, const LayerSplit& split) {
  if (parallel.num_virtual_stages_per_pipeline_rank != 0)
    return static_cast<int>(parallel.num_virtual_stages_per_pipeline_rank);
  if (parallel.num_layers_per_virtual_pipeline_stage == 0) return 0;
  return chunks_of_virtual_stages(split, static_cast<int>(parallel.num_layers_per_virtual_pipeline_stage));
}

bool overlaps_exchanges(const ParallelOptions& parallel, ScheduleKind kind) {
  return parallel.overlap_moe_expert_parallel_comm && kind != ScheduleKind::kGpipe &&
         parallel.expert_model_parallel_size * parallel.expert_tensor_parallel_size > 1;
}

void check_stages(const PipelineLayout& layout) {
  for (int stage = 0; stage < layout.placement.num_stages; ++stage) {
    bool empty = true;
    for (const GptPart& part : layout.parts_of(stage))
      empty = empty && part.num_layers == 0 && !part.has_embedding && !part.has_head;
    if (!empty) continue;
    refuse_usage("--pipeline-model-parallel-layout",
                 {.expected = "a layer, the embedding or the loss on each stage",
                  .got = fmt::format("none on stage {}", stage),
                  .remedy = "add a t to this stage, or lower --pipeline-model-parallel-size"});
  }
}

}  // namespace

PipelineLayout pipeline_layout(const Options& options) {
  const ParallelOptions& parallel = options.parallel;
  const bool is_auto = parallel.pipeline_schedule == PipelineSchedule::kAuto;
  PipelineLayout layout;
  if (!is_auto) layout.kind = static_cast<ScheduleKind>(static_cast<int>(parallel.pipeline_schedule) - 1);
  layout.overlaps_exchanges = overlaps_exchanges(parallel, layout.kind);
  // Weight gradients then follow the start of an exchange.
  layout.delays_weights = parallel.delay_wgrad_compute && !layout.overlaps_exchanges;
  const int stages = static_cast<int>(parallel.pipeline_model_parallel_size);
  const int layers = static_cast<int>(options.num_layers());
  const bool is_v = is_v_shaped(layout.kind);
  int chunks = 0;
  LayerSplit split{.num_layers = layers,
                   .placement = {.num_stages = stages},
                   .account_for_embedding = parallel.account_for_embedding_in_pipeline_split,
                   .account_for_loss = parallel.account_for_loss_in_pipeline_split,
                   .first_stage_layers = static_cast<int>(parallel.decoder_first_pipeline_num_layers),
                   .last_stage_layers = static_cast<int>(parallel.decoder_last_pipeline_num_layers)};
  if (!parallel.pipeline_model_parallel_layout.empty()) {
    layout.parts = parse_layer_layout(parallel.pipeline_model_parallel_layout, layers, stages);
    chunks = static_cast<int>(layout.parts.size()) / stages;
  } else {
    chunks = chunks_of(parallel, split);
  }
  if (is_v && chunks != 0 && chunks != 2) {
    const bool by_stages = parallel.num_virtual_stages_per_pipeline_rank != 0;
    const char* const flag = !layout.parts.empty() ? "--pipeline-model-parallel-layout"
                             : by_stages           ? "--num-virtual-stages-per-pipeline-rank"
                                                   : "--num-layers-per-virtual-pipeline-stage";
    refuse_usage(
        fmt::format("{} and --pipeline-schedule {}", flag, name_of(layout.kind)),
        {.expected = "2 chunks per stage", .got = fmt::format("{}", chunks), .remedy = fmt::format("remove {}", flag)});
  }
  if (chunks == 0) chunks = is_v ? 2 : 1;
  if (is_auto && chunks > 1) layout.kind = ScheduleKind::kInterleaved;
  layout.microbatch_group = static_cast<int>(parallel.microbatch_group_size_per_virtual_pipeline_stage);
  if (layout.microbatch_group != 0 && layout.kind != ScheduleKind::kInterleaved) {
    refuse_usage("--microbatch-group-size-per-virtual-pipeline-stage",
                 {.expected = "--pipeline-schedule interleaved with it",
                  .got = std::string(name_of(layout.kind)),
                  .remedy = "set --num-virtual-stages-per-pipeline-rank, or remove the flag"});
  }
  if (layout.parts.empty() && static_cast<std::int64_t>(stages) * chunks > std::int64_t{layers} + 2) {
    refuse_usage("--num-layers",
                 {.expected = fmt::format("a layer for each of the {} x {} chunks of the stages", stages, chunks),
                  .got = fmt::format("{}", layers),
                  .remedy = "lower --pipeline-model-parallel-size or --num-virtual-stages-per-pipeline-rank"});
  }
  layout.placement = {.num_stages = stages, .num_chunks = chunks, .is_v = is_v};
  split.placement = layout.placement;
  if (layout.parts.empty()) layout.parts = split_layers(split);
  check_stages(layout);
  return layout;
}

MeshSizes mesh_sizes_of(const ParallelOptions& parallel, int world) {
  return make_mesh_sizes({.world_size = world,
                          .tensor_model_parallel_size = parallel.tensor_model_parallel_size,
                          .context_parallel_size = parallel.context_parallel_size,
                          .pipeline_model_parallel_size = parallel.pipeline_model_parallel_size,
                          .expert_model_parallel_size = parallel.expert_model_parallel_size,
                          .expert_tensor_parallel_size = parallel.expert_tensor_parallel_size});
}

}  // namespace megalith
