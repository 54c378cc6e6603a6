// What a step does on a rank, where it is more than a call of one of the rank's parts: input, sums, norms, update.
#pragma once

#include <cstddef>
#include <optional>

#include "apps/run/rank.h"
#include "apps/run/staging.h"
#include "moe/expert_room.h"

namespace megalith {

void begin_step(Rank& rank, const StagedStep& step);
void zero_gradients(Rank& rank);
// `parameters`: the column's, on the device.
void load_microbatch(Rank& rank, const StagedStep& step, const Action& action, Mode mode,
                     MicrobatchParameters* parameters);

void tie_gradients(Rank& rank);
void copy_tied(Rank& rank, Stream& stream, const Tensor& from_first_stage);
void finish_reduce(Rank& rank);  // of gradients
void reduce_sums(Rank& rank);    // of losses, rows of experts and the room that they need
void reduce_norm(Rank& rank);    // of gradients

// Nothing is updated where experts need more than this room.
void update_parameters(Rank& rank, const ExpertRoom& room);
// The compute stream has written this rank's shards of the weights.
void shards_updated(Rank& rank);

// The memory of steps. `driver_bytes`: what the driver says that it took, where that was seen and new.
void use_arena(Rank& rank, const ArenaPlan& plan, std::optional<std::size_t>& driver_bytes);
// Nothing of a step is under way any more; for one that broke off. Waits for the streams.
void drop_step(Rank& rank);
void poison_memory(Rank& rank, bool on);  // ShardedUnits::poison_slots, ActivationTransfer::poison

}  // namespace megalith
