// JSON document of `plan --json`: sizes in bytes, times in seconds, without rounding.
#pragma once

#include <string>

#include "apps/forecast/forecast.h"

namespace megalith {

struct Options;

// clang-format off
// JSON document with these members:
//   version, ranks, microbatches (per rank and step), sequences (per microbatch)
//   parameters: elements by part of the model, and their total
//   stages: for each stage its number and
//     memory_bytes           by owner, with the names in train's metrics
//     memory_peak_bytes      their sum, as in the metrics, without the driver's memory for graphs
//     arena                  train, evaluate: blocks of these steps; alive: peak content of the train block
//     host_bytes             activations, checkpoint_staging
//     graphs                 with --cuda-graph-impl: graphs, ops, nodes, replays, eager_ops (per step), expected_bytes
//     flops, ops             per step and rank, with recompute
//   step, with --rates: seconds, tokens_per_second, tflops_per_rank, pipeline_seconds, bubble_share, host_seconds
// clang-format on
std::string plan_json(const Options& options, const Forecast& forecast);

}  // namespace megalith
