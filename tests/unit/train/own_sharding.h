// A user's FSDP: the list of actions has no units, and hooks run them. The functions return the units, which the rank
// then lacks.
#pragma once

#include <memory>
#include <vector>

#include "tests/unit/train/graph_cells.h"

namespace megalith::test {

// Each segment gathers its weights ahead of a verb and frees them after it, without prefetch.
std::shared_ptr<ShardedUnits> shard_by_segment(Rank& rank);
// Hooks only ahead of the first and after the last verb of a layer, for graphs of full layers. Weights stay until
// another unit needs their slot. The hooks do not handle gradients that are not reduced in each microbatch.
std::shared_ptr<ShardedUnits> shard_by_layer(Rank& rank);

// Two stages of two replicas whose units are sharded, with experts over both in every other layer.
std::vector<Cell> own_cells(int steps, bool few);  // few: each two values of two columns occur together once
// Chooses the variant for the cell's modules.
std::shared_ptr<ShardedUnits> shard_by_hooks(Rank& rank, const Cell& cell);

}  // namespace megalith::test
