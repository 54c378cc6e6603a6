// FSDP of a user's own: the list of actions knows no units, and hooks carry them out. The functions return the units,
// of which the rank then has none.
#pragma once

#include <memory>
#include <vector>

#include "tests/unit/train/graph_cells.h"

namespace megalith::test {

// Each segment gathers what it uses before a verb and gives it up after it, without prefetch.
std::shared_ptr<ShardedUnits> shard_by_segment(Rank& rank);
// With hooks before the first and after the last verb of a layer alone, for graphs that hold whole layers. Weights
// stay until another unit needs their slot. Gradients that are not reduced for each microbatch are no concern of the
// hooks.
std::shared_ptr<ShardedUnits> shard_by_layer(Rank& rank);

// Two stages of two replicas whose units are sharded, with experts over both in every other layer.
std::vector<Cell> own_cells(int steps, bool few);  // few: each two values of two columns stand together once
// As the cell's modules need it.
std::shared_ptr<ShardedUnits> shard_by_hooks(Rank& rank, const Cell& cell);

}  // namespace megalith::test
