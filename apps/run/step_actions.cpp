#include "apps/run/step_actions.h"

#include <utility>

#include "apps/config/parallel_options.h"
#include "offload/lowering.h"
#include "parallel/pipeline_parallel/lowering.h"

namespace megalith {

namespace {

// True if the last stage copies the tied embedding from the first. Their replicas may be summed in different orders,
// but both copies must stay equal. The last stage then takes the first stage's gradients, or weights if each stage
// updates shards.
bool copies_tied(const Rank& rank) { return rank.groups.embedding && !rank.groups.replicas.sums_in_rank_order(); }

}  // namespace

StepActions step_actions(const Rank& rank) {
  const GptModel& gpt = rank.model.gpt;
  const ParallelOptions& parallel = rank.options.parallel;
  const bool shards = parallel.shards_optimizer();
  ReducePoints points{.segments_of_bucket = rank.buckets.reduced_segments,
                      .tied_segment = -1,
                      .tied_across_stages = rank.groups.embedding != nullptr,
                      .sums_shared = rank.layers.tensor.split().ranks > 1,
                      .copies_tied = copies_tied(rank) && !shards};
  if (rank.options.ties_embeddings() && gpt.words != nullptr)
    points.tied_segment = gpt.words->is_copy ? rank.runner.num_segments() - 1 : 0;  // the head, or the embedding
  GatherPoints gathers{.segments_of_bucket = {}, .overlap = parallel.overlap_param_gather};
  // A tied head also reads the words, but after the embedding, which is then in this list.
  if (shards) gathers.segments_of_bucket = rank.buckets.gathered_segments;
  if (shards && copies_tied(rank)) gathers.tied_bucket = rank.buckets.words;
  const Schedule schedule = rank.config.schedule(), evaluation = rank.config.evaluation_schedule();
  if (!rank.is_plan()) verify(schedule);  // the simulator runs a plan's list
  StepActions actions{.train = lower_training_step(insert_messages(schedule, rank.stage()), gpt.part_segments, points,
                                                   gathers, return_points(rank)),
                      .evaluate = lower_evaluation_step(insert_messages(forwards_of(evaluation), rank.stage()),
                                                        gpt.part_segments, gathers)};
  if (rank.units.sharded) {
    UnshardPoints units = rank.units.points;
    units.ahead = units_ahead(actions.train, units);
    for (std::vector<Action>* list : {&actions.train, &actions.evaluate}) *list = insert_unshards(*list, units);
    actions.units_ahead = std::move(units.ahead);
  }
  if (rank.offload) actions.train = insert_offloads(actions.train, rank.offload->points);
  return actions;
}

}  // namespace megalith
