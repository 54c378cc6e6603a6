#include <fmt/format.h>

#include "core/base/error.h"
#include "parallel/pipeline_parallel/layer_layout.h"

namespace megalith {

namespace {

constexpr const char* kRemedy = "give --pipeline-model-parallel-layout";

// How many layers embedding and loss count for.
int extra_layers(const LayerSplit& split) { return split.account_for_embedding + split.account_for_loss; }

bool is_uneven(const LayerSplit& split) { return split.first_stage_layers != 0 || split.last_stage_layers != 0; }

std::string said_extra(const LayerSplit& split) {
  if (extra_layers(split) == 0) return {};
  return fmt::format(", {} counted as {}",
                     extra_layers(split) == 2      ? "embedding and loss"
                     : split.account_for_embedding ? "embedding"
                                                   : "loss",
                     extra_layers(split) == 2 ? "layers" : "a layer");
}

void check_divides(const LayerSplit& split, int divisor, const std::string& divisor_is) {
  const int extra = extra_layers(split), total = split.num_layers + extra;
  if (total % divisor == 0) return;
  const int below = total / divisor * divisor - extra;
  refuse_usage(
      "--num-layers",
      {.expected = fmt::format("{}a multiple of {} ({}{})", extra > 0 ? fmt::format("{} less than ", extra) : "",
                               divisor, divisor_is, said_extra(split)),
       .got = fmt::format("{}", split.num_layers),
       .remedy = fmt::format("{}{} would fit; or {}", below > 0 ? fmt::format("{} or ", below) : "", below + divisor,
                             kRemedy)});
}

std::string said_parts(const Placement& placement) {
  const std::string stages = fmt::format("--pipeline-model-parallel-size {}", placement.num_stages);
  return placement.num_chunks == 1 ? stages : fmt::format("{} x {} chunks", stages, placement.num_chunks);
}

// Layers of a stage's parts together, where the first or last stage has its own number.
struct StageLayers {
  int first = 0;
  int others = 0;
  int last = 0;
};

StageLayers uneven_layers(const LayerSplit& split) {
  constexpr const char* kFlags = "--decoder-first-pipeline-num-layers and --decoder-last-pipeline-num-layers";
  const Placement& placement = split.placement;
  const int chunks = placement.num_chunks;
  if (extra_layers(split) > 0) {
    refuse_usage(
        kFlags,
        {.expected = "none with --account-for-embedding-in-pipeline-split or --account-for-loss-in-pipeline-split",
         .got = "both",
         .remedy = kRemedy});
  }
  if (placement.num_stages == 1)
    refuse_usage(kFlags, {.expected = "--pipeline-model-parallel-size of at least 2", .got = "1"});
  for (const int layers : {split.first_stage_layers, split.last_stage_layers}) {
    if (layers >= 0 && layers % chunks == 0) continue;
    refuse_usage(kFlags, {.expected = fmt::format("multiples of the {} chunks per stage", chunks),
                          .got = fmt::format("{}", layers),
                          .remedy = kRemedy});
  }
  const int left = split.num_layers - split.first_stage_layers - split.last_stage_layers;
  const int stages = placement.num_stages - (split.first_stage_layers > 0) - (split.last_stage_layers > 0);
  const int divisor = stages * chunks;
  if (left < 0 || (stages == 0 ? left > 0 : left % divisor != 0)) {
    refuse_usage(
        fmt::format("{} with --num-layers {}", kFlags, split.num_layers),
        {.expected = stages == 0 ? "all layers in the two stages"
                                 : fmt::format("layers left for the other {} stages{} in a multiple of {}", stages,
                                               chunks == 1 ? "" : fmt::format(" of {} chunks", chunks), divisor),
         .got = fmt::format("{} left", left),
         .remedy = kRemedy});
  }
  const int others = stages == 0 ? 0 : left / stages;
  return {.first = split.first_stage_layers > 0 ? split.first_stage_layers : others,
          .others = others,
          .last = split.last_stage_layers > 0 ? split.last_stage_layers : others};
}

}  // namespace

LayerLayout split_layers(const LayerSplit& split) {
  const Placement& placement = split.placement;
  require(split.num_layers >= 1, "a model has layers");
  StageLayers stage_layers;
  if (is_uneven(split)) {
    stage_layers = uneven_layers(split);
  } else {
    check_divides(split, placement.num_parts(), said_parts(placement));
    const int even = (split.num_layers + extra_layers(split)) / placement.num_stages;
    stage_layers = {.first = even, .others = even, .last = even};
  }
  LayerLayout layout;
  int next = 0;
  for (int i = 0; i < placement.num_parts(); ++i) {
    const int stage = placement.at(i).stage;
    PartLayers part{.first_layer = next, .has_embedding = i == 0, .has_loss = i == placement.num_parts() - 1};
    part.num_layers = (stage == 0                          ? stage_layers.first
                       : stage == placement.num_stages - 1 ? stage_layers.last
                                                           : stage_layers.others) /
                      placement.num_chunks;
    part.num_layers -= (part.has_embedding && split.account_for_embedding) + (part.has_loss && split.account_for_loss);
    next += part.num_layers;
    layout.push_back(part);
  }
  require(next == split.num_layers, "a split has all layers");
  return layout;
}

int chunks_of_virtual_stages(const LayerSplit& split, int num_layers_per_virtual_stage) {
  constexpr const char* kFlag = "--num-layers-per-virtual-pipeline-stage";
  const int stages = split.placement.num_stages;
  if (is_uneven(split)) {
    refuse_usage(kFlag,
                 {.expected = "none with --decoder-first-pipeline-num-layers or --decoder-last-pipeline-num-layers",
                  .got = fmt::format("{}", num_layers_per_virtual_stage),
                  .remedy = kRemedy});
  }
  check_divides(split, stages, fmt::format("--pipeline-model-parallel-size {}", stages));
  const int per_stage = (split.num_layers + extra_layers(split)) / stages;
  if (num_layers_per_virtual_stage >= 1 && per_stage % num_layers_per_virtual_stage == 0)
    return per_stage / num_layers_per_virtual_stage;
  std::string divisors;
  for (int i = 1; i <= per_stage; ++i) {
    if (per_stage % i == 0) divisors += fmt::format("{}{}", divisors.empty() ? "" : ", ", i);
  }
  refuse_usage(
      kFlag, {.expected = fmt::format("a divisor of a stage's {} layers{}: {}", per_stage, said_extra(split), divisors),
              .got = fmt::format("{}", num_layers_per_virtual_stage)});
}

}  // namespace megalith
