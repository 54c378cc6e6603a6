// Actions of a step on a rank that are more than one call of its parts: input, sums, norms, update.
#pragma once

#include <cstddef>
#include <optional>

#include "apps/run/rank.h"
#include "apps/run/staging.h"
#include "moe/expert_room.h"

namespace megalith {

// Sharing of a sample's documents among ranks that exchange keys; one rank if each attends to unsplit sequences.
SharedSample document_sharing(const Rank& rank);

void begin_step(Rank& rank, const StagedStep& step);
void zero_gradients(Rank& rank);
// Loads a microbatch; `parameters`: the column's, on the device.
void load_microbatch(Rank& rank, const StagedStep& step, const Action& action, Mode mode,
                     MicrobatchParameters* parameters);

void tie_gradients(Rank& rank);
void copy_tied(Rank& rank, Stream& stream, const Tensor& from_first_stage);
void finish_reduce(Rank& rank);  // of gradients
void reduce_sums(Rank& rank);    // of losses, rows of experts and the required capacity
void reduce_norm(Rank& rank);    // of gradients

// Updates the parameters, unless experts need more than `room`.
void update_parameters(Rank& rank, const ExpertRoom& room);
// Marks this rank's shards of the weights as written by the compute stream.
void shards_updated(Rank& rank);

// Allocates the memory of steps. `driver_bytes`: its size as the driver shows it, if it is new and visible.
void use_arena(Rank& rank, const ArenaPlan& plan, std::optional<std::size_t>& driver_bytes);
// Drops a step that broke off. Waits for the streams; afterwards nothing of it is pending.
void drop_step(Rank& rank);
void poison_memory(Rank& rank, bool on);  // ShardedUnits::poison_slots, ActivationTransfer::poison

}  // namespace megalith
