// JSON document of `plan --json`: sizes in bytes, times in seconds, without rounding.
#pragma once

#include <string>

#include "apps/forecast/forecast.h"

namespace megalith {

struct Options;

// clang-format off
// An object with
//   version, ranks, microbatches (of a rank and step), sequences (of a microbatch)
//   parameters: elements by part of the model, and in all
//   stages: for each one its number and
//     memory_bytes           by owner, with the names that the metrics of train give them
//     memory_peak_bytes      their sum, as in the metrics; what the driver takes for graphs is not in it
//     arena                  train, evaluate: the blocks of these steps; alive: what the first holds at most
//     host_bytes             activations, checkpoint_staging
//     graphs                 with --cuda-graph-impl: graphs, ops, nodes, replays, eager_ops (a step), expected_bytes
//     flops, ops             of a step and rank, recompute included
//   step, with --rates: seconds, tokens_per_second, tflops_per_rank, pipeline_seconds, bubble_share, host_seconds
// clang-format on
std::string plan_json(const Options& options, const Forecast& forecast);

}  // namespace megalith
