// Layout of the ranks, the state that they shard, and their communication.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "core/model/moe_config.h"
#include "parallel/context_parallel/context_communication.h"

namespace megalith {

// Pipeline schedules. kAuto: 1f1b, or interleaved if a stage has several chunks; the others as in ScheduleKind.
enum class PipelineSchedule { kAuto, kGpipe, k1F1B, kInterleaved, kZbH1, kZbV, kDualPipeV };
// State that data-parallel ranks shard; each value adds to the previous value. kAuto: kOptim with
// --use-distributed-optimizer, else kNoShard.
enum class ShardingStrategy { kAuto, kNoShard, kOptim, kOptimGrads, kOptimGradsParams };
enum class OuterSharding { kNoShard, kOptim };
enum class GradientReduction { kEach, kLast };  // after each microbatch, or after the last one of a step
enum class EndUnits { kAuto, kSharded, kWhole };

struct ParallelOptions {
  std::int64_t tensor_model_parallel_size = 1;
  bool sequence_parallel = false;  // splits norms, dropout and residuals along the tokens
  bool tp_comm_overlap = false;    // overlaps gathers and sums of rows with GEMMs
  std::int64_t pipeline_model_parallel_size = 1;
  std::int64_t expert_model_parallel_size = 1;                               // ranks that split the experts of a layer
  std::int64_t expert_tensor_parallel_size = 1;                              // ranks that split each expert
  MoeTokenDispatcher moe_token_dispatcher_type = MoeTokenDispatcher::kAuto;  // over these ranks, as the next two fields
  double moe_expert_rank_capacity_factor = 1.5;
  bool moe_shared_expert_overlap = false;
  bool overlap_moe_expert_parallel_comm = false;              // see pipeline_layout()
  bool overlap_dispatch_backward_with_experts_wgrad = false;  // no effect
  std::int64_t context_parallel_size = 1;                     // ranks that split each sequence
  ContextCommunication cp_comm_type = ContextCommunication::kP2p;
  PipelineSchedule pipeline_schedule = PipelineSchedule::kAuto;
  bool delay_wgrad_compute = false;                        // weight gradients of a chunk after its whole backward_data
  std::int64_t num_layers_per_virtual_pipeline_stage = 0;  // 0: not given, as the next five fields
  std::int64_t num_virtual_stages_per_pipeline_rank = 0;
  std::int64_t microbatch_group_size_per_virtual_pipeline_stage = 0;  // 0: one microbatch per stage
  std::string pipeline_model_parallel_layout;                         // as parse_layer_layout reads it
  std::int64_t decoder_first_pipeline_num_layers = 0;
  std::int64_t decoder_last_pipeline_num_layers = 0;
  bool account_for_embedding_in_pipeline_split = false;
  bool account_for_loss_in_pipeline_split = false;
  bool use_distributed_optimizer = false;  // read shards_optimizer(), and sharding() for the next field
  ShardingStrategy data_parallel_sharding_strategy = ShardingStrategy::kAuto;
  ShardingStrategy expert_data_parallel_sharding_strategy = ShardingStrategy::kAuto;  // read expert_sharding()
  bool use_megatron_fsdp = false;                                                     // no effect
  bool fsdp_double_buffer = false;                                                    // no effect
  std::int64_t fsdp_unit_slots = 2;                                                   // buffers for unsharded units
  std::int64_t fsdp_gradient_slots = 0;  // buffers for their gradients; 0: fsdp_unit_slots
  std::int64_t fsdp_prefetch = 1;        // units gathered ahead of the unit in use, of the same kind
  GradientReduction fsdp_reduce_grads = GradientReduction::kEach;
  EndUnits fsdp_embedding_and_head = EndUnits::kAuto;
  std::int64_t num_distributed_optimizer_instances = 1;  // groups of data-parallel ranks that each hold all shards
  OuterSharding outer_dp_sharding_strategy = OuterSharding::kNoShard;
  bool overlap_grad_reduce = false;               // overlaps with backward; otherwise one bucket after it
  bool overlap_param_gather = false;              // overlaps with the next forward; otherwise at the end of the step
  std::int64_t ddp_bucket_size = 40'000'000;      // parameters per gradient bucket
  std::int64_t distributed_timeout_minutes = 10;  // a longer collective ends the job
  double comm_timeout = 0;                        // seconds, overrides the minutes; 0: off
  std::string comm_dump = "comm-dump";            // folder for each rank's last calls when a call hangs
  std::int64_t world_size = 1;                    // plan only: ranks of the forecast layout

  ShardingStrategy sharding() const {  // never kAuto
    if (data_parallel_sharding_strategy != ShardingStrategy::kAuto) return data_parallel_sharding_strategy;
    return use_distributed_optimizer ? ShardingStrategy::kOptim : ShardingStrategy::kNoShard;
  }
  // Sharding of experts, over the ranks that hold the same experts; never kAuto.
  ShardingStrategy expert_sharding() const {
    const bool is_own = expert_data_parallel_sharding_strategy != ShardingStrategy::kAuto;
    return is_own ? expert_data_parallel_sharding_strategy : sharding();
  }
  ShardingStrategy max_sharding() const { return std::max(sharding(), expert_sharding()); }
  std::int64_t expert_ranks() const { return expert_model_parallel_size * expert_tensor_parallel_size; }
  bool shards_optimizer() const { return sharding() != ShardingStrategy::kNoShard; }
};

}  // namespace megalith
