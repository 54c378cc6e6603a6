// The rows of the flags of parallelism and memory; those of offload are in flags_offload.cpp.
#include "apps/config/memory_options.h"
#include "apps/config/parallel_options.h"
#include "apps/flags/flags_table.h"

namespace megalith {

using enum FlagGroup;
using enum OnLoad;

namespace {

constexpr const char* kByLayout = "the layout says which layers each stage holds: remove the other flag";

}  // namespace

void add_parallel(FlagTable& t, ParallelOptions& o) {
  const auto ranks = [](std::int64_t* field) { return integer(field, {1, kMaxRanks}); };
  Section parallel(t, kParallel, kShaped);
  Section experts(t, kParallel, kShaped, {.needs = {{"num-experts"}}});
  parallel.add("tensor-model-parallel-size", "RANKS", ranks(&o.tensor_model_parallel_size),
               "ranks that share each layer's heads, columns and vocabulary", {.example = "2"});
  parallel.add("sequence-parallel", "", toggle(&o.sequence_parallel),
               "with tensor parallelism: split norms, dropout and residuals along the tokens",
               {.example = "--tensor-model-parallel-size 2"});
  parallel.add(
      "tp-comm-overlap", "", toggle(&o.tp_comm_overlap),
      "with --sequence-parallel: overlap the transfer of rows between ranks with the linears' GEMMs, piece by piece",
      {.needs = {{"sequence-parallel"}}});
  parallel.add("pipeline-model-parallel-size", "RANKS", ranks(&o.pipeline_model_parallel_size),
               "stages that the layers are split over", {.example = "2"});
  parallel.add("pipeline-schedule", "NAME",
               choice(&o.pipeline_schedule, {"auto", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe-v"}),
               "order of a stage's work; auto: 1f1b, or interleaved where a stage has several chunks; zb-v and "
               "dualpipe-v have 2 chunks a stage",
               {.example = "zb-h1"});
  parallel.add("delay-wgrad-compute", "", toggle(&o.delay_wgrad_compute),
               "with gpipe, 1f1b and interleaved: compute the weight gradients of a chunk after all of its backward, "
               "when the input's gradient is on its way to the stage before, instead of layer by layer with it; what "
               "they read is kept until then, which takes memory; the other schedules do that where it fills their "
               "idle time, and dualpipe-v then does it always");
  parallel.add("num-layers-per-virtual-pipeline-stage", "N",
               integer(&o.num_layers_per_virtual_pipeline_stage, {0, 10'000}),
               "split each stage into chunks of this many layers; 0: one chunk",
               {.excludes = {{"num-virtual-stages-per-pipeline-rank"}}, .example = "1"});
  parallel.add("num-virtual-stages-per-pipeline-rank", "N",
               integer(&o.num_virtual_stages_per_pipeline_rank, {0, 10'000}),
               "split each stage into this many chunks; 0: one", {.example = "2"});
  parallel.add("pipeline-model-parallel-layout", "TEXT", text(&o.pipeline_model_parallel_layout),
               "what each chunk holds, in the model's order: E embedding, t a layer, L loss, | the next chunk, X*N and "
               "(...)*N repeat; such as 'Et*3|(tt|)*2L'",
               {.shown = "even",
                .excludes = {{.flag = "decoder-first-pipeline-num-layers", .remedy = kByLayout},
                             {.flag = "decoder-last-pipeline-num-layers", .remedy = kByLayout},
                             {.flag = "account-for-embedding-in-pipeline-split", .remedy = kByLayout},
                             {.flag = "account-for-loss-in-pipeline-split", .remedy = kByLayout},
                             {.flag = "num-layers-per-virtual-pipeline-stage", .remedy = kByLayout},
                             {.flag = "num-virtual-stages-per-pipeline-rank", .remedy = kByLayout}},
                .example = "Et|tL"});
  parallel.add("decoder-first-pipeline-num-layers", "N", integer(&o.decoder_first_pipeline_num_layers, {0, 10'000}),
               "layers of the first stage; 0: as many as the others",
               {.example = "1 --pipeline-model-parallel-size 2"});
  parallel.add("decoder-last-pipeline-num-layers", "N", integer(&o.decoder_last_pipeline_num_layers, {0, 10'000}),
               "layers of the last stage; 0: as many as the others", {.example = "1 --pipeline-model-parallel-size 2"});
  parallel.add("account-for-embedding-in-pipeline-split", "", toggle(&o.account_for_embedding_in_pipeline_split),
               "count the embedding as a layer of the first chunk");
  parallel.add("account-for-loss-in-pipeline-split", "", toggle(&o.account_for_loss_in_pipeline_split),
               "count output layer and loss as a layer of the last chunk");
  experts.add("expert-model-parallel-size", "RANKS", ranks(&o.expert_model_parallel_size),
              "ranks that share out the experts of each layer, out of the tensor-, context- and data-parallel ones; "
              "rows go to the ranks of their experts and back",
              {.example = "2"});
  experts.add("expert-tensor-parallel-size", "RANKS", ranks(&o.expert_tensor_parallel_size),
              "ranks that share each expert's columns, each of which gets all of its rows; Megatron-LM's default is "
              "the tensor-parallel size",
              {.example = "2"});
  experts.add("moe-token-dispatcher-type", "NAME",
              choice(&o.moe_token_dispatcher_type, {"auto", "alltoall", "allgather", "flex"}),
              "how rows reach the ranks of their experts: alltoall sends each to the ranks that it chose, allgather "
              "all to all, with flex GPUs read them out of each other's memory; auto: flex where they can, else "
              "alltoall. The same bits; without ranks that share experts no effect",
              {.suggested = false, .example = "alltoall"});
  experts.add("moe-expert-rank-capacity-factor", "X",
              real(&o.moe_expert_rank_capacity_factor, {0, kInfinity, true, true}),
              "room of a rank for rows of others, over their number when all experts are chosen alike; a step that "
              "needs more is done again with more room. Without ranks that share experts no effect",
              {.suggested = false, .example = "1.25"});
  parallel.add(
      "moe-shared-expert-overlap", "", toggle(&o.moe_shared_expert_overlap),
      "run the shared expert while rows are on their way; without ranks that share experts no effect",
      {.needs = {{"num-experts"},
                 {.flag = "moe-shared-expert-intermediate-size", .remedy = "give the shared expert's width"}}});
  parallel.add("context-parallel-size", "RANKS", ranks(&o.context_parallel_size),
               "ranks that share each sequence, whose length must be a multiple of twice this", {.example = "2"});
  parallel.add("cp-comm-type", "NAME", choice(&o.cp_comm_type, {"p2p", "a2a", "all_gather"}),
               "how these ranks exchange keys and values: p2p passes them around while attention computes, a2a "
               "exchanges heads for tokens before and after attention, all_gather gathers them before it",
               {.needs = {{"context-parallel-size", "above 1"}}, .example = "a2a"});
  parallel.add("use-distributed-optimizer", "", toggle(&o.use_distributed_optimizer),
               "ZeRO-1: each data-parallel rank holds and updates its share of main parameters and moments; gradients "
               "are reduce-scattered, weights gathered; means --data-parallel-sharding-strategy optim");
  parallel.add(
      "data-parallel-sharding-strategy", "NAME",
      choice(&o.data_parallel_sharding_strategy, {"auto", "no_shard", "optim", "optim_grads", "optim_grads_params"}),
      "what each data-parallel rank holds only its share of: nothing; main parameters and moments; gradients too; "
      "weights too (FSDP); auto: optim with --use-distributed-optimizer, else no_shard",
      {.example = "optim_grads"});
  experts.add(
      "expert-data-parallel-sharding-strategy", "NAME",
      choice(&o.expert_data_parallel_sharding_strategy,
             {"auto", "no_shard", "optim", "optim_grads", "optim_grads_params"}),
      "the same of experts, over the ranks that hold the same ones; auto: as --data-parallel-sharding-strategy. Such "
      "as optim_grads_params beside optim, where experts are most of the model",
      {.example = "optim_grads_params --use-distributed-optimizer"});
  parallel.add("use-megatron-fsdp", "", toggle(&o.use_megatron_fsdp),
               "taken as Megatron-LM's command lines have it, and changes nothing: --data-parallel-sharding-strategy "
               "says what is sharded");
  parallel.add("fsdp-double-buffer", "", toggle(&o.fsdp_double_buffer),
               "taken as Megatron-LM's command lines have it, and changes nothing: whole units are always in buffers "
               "at fixed addresses");
  parallel.add("fsdp-unit-slots", "N", integer(&o.fsdp_unit_slots, {1, 10'000}),
               "with optim_grads or optim_grads_params: buffers that the units, each a layer, are whole in by turns; "
               "more let gathers and reductions run further apart from the layers, and take memory",
               {.example = "3 --data-parallel-sharding-strategy optim_grads_params"});
  parallel.add(
      "fsdp-gradient-slots", "N", integer(&o.fsdp_gradient_slots, {0, 10'000}),
      "with optim_grads, or optim_grads_params that reduces gradients each microbatch: buffers for gradients of whole "
      "units; 0: --fsdp-unit-slots. 1 saves memory, and the next unit's gradients wait until these are reduced",
      {.example = "1 --data-parallel-sharding-strategy optim_grads"});
  parallel.add("fsdp-prefetch", "UNITS", integer(&o.fsdp_prefetch, {0, 10'000}),
               "with optim_grads_params: units whose weights are gathered ahead of the one in use, experts apart from "
               "others; less than --fsdp-unit-slots",
               {.example = "0 --data-parallel-sharding-strategy optim_grads_params"});
  parallel.add("fsdp-reduce-grads", "NAME", choice(&o.fsdp_reduce_grads, {"each", "last"}),
               "with optim_grads_params: reduce-scatter gradients after each microbatch, or only after a step's last, "
               "until when they are whole, with the numbers of optim",
               {.of_run = true, .example = "last --data-parallel-sharding-strategy optim_grads_params"});
  parallel.add("fsdp-embedding-and-head", "NAME", choice(&o.fsdp_embedding_and_head, {"auto", "sharded", "whole"}),
               "with optim_grads_params: are embedding and output layer sharded as layers are, or held whole as with "
               "optim, which saves their gathers; auto: whole where memory suffices or shards would need no less, and "
               "with --deterministic-mode",
               {.example = "sharded --data-parallel-sharding-strategy optim_grads_params"});
  parallel.add("num-distributed-optimizer-instances", "N", ranks(&o.num_distributed_optimizer_instances),
               "with a strategy that shards: groups of neighbouring data-parallel ranks, each of which holds all "
               "shares; gradients are reduce-scattered within a group and then summed over the groups, weights are "
               "gathered within a group",
               {.example = "2 --use-distributed-optimizer"});
  parallel.add("outer-dp-sharding-strategy", "NAME", choice(&o.outer_dp_sharding_strategy, {"no_shard", "optim"}),
               "with optim_grads_params and --num-distributed-optimizer-instances above 1: optim shares out main "
               "parameters, moments and their update over these groups too, with the same bits",
               {.needs = {{"num-distributed-optimizer-instances", "above 1"}},
                .example = "optim --data-parallel-sharding-strategy optim_grads_params"});
  parallel.add(
      "overlap-grad-reduce", "", toggle(&o.overlap_grad_reduce),
      "reduce gradients over the data-parallel ranks in buckets while backward runs; otherwise all at once after it");
  parallel.add("overlap-param-gather", "", toggle(&o.overlap_param_gather),
               "with --use-distributed-optimizer and --overlap-grad-reduce: gather the updated weights in buckets "
               "while the next forward runs; otherwise before the step ends",
               {.needs = {{"overlap-grad-reduce"}}, .example = "--use-distributed-optimizer"});
  parallel.add("ddp-bucket-size", "N", integer(&o.ddp_bucket_size, {1, kMany}),
               "with --overlap-grad-reduce: parameters per bucket", {.example = "9"});
  parallel.add("distributed-timeout-minutes", "MINUTES", integer(&o.distributed_timeout_minutes, {1, 1'000'000}),
               "a collective that waits longer for its peers ends the run with exit code 7",
               {.apps = kTrainApp, .example = "9"});
  parallel.add("comm-timeout", "SECONDS", real(&o.comm_timeout, {0, 1e8}),
               "overrides --distributed-timeout-minutes; 0: off", {.apps = kTrainApp, .example = "0.5"});
  parallel.add("comm-dump", "DIR", text(&o.comm_dump),
               "folder for a JSON file per rank with the last 64 collectives of each group, written when a collective "
               "hangs; empty: none",
               {.apps = kTrainApp, .example = "hangs"});
  parallel.add("world-size", "RANKS", ranks(&o.world_size), "number of ranks to forecast",
               {.apps = kPlanApp, .suggested = false});
}

void add_memory(FlagTable& t, MemoryOptions& o) {
  Section memory(t, kMemory, kShaped);
  memory.add("recompute-granularity", "NAME", choice(&o.recompute_granularity, {"none", "selective", "full"}),
             "activations to recompute in backward", {.example = "full"});
  memory.add("recompute-modules", "NAME...",
             list(&o.recompute_modules,
                  {"core_attn", "layernorm", "mlp", "mlp_act", "moe", "moe_act", "shared_experts", "own"}),
             "with selective: what to recompute; layernorm: norms in front of attention and MLPs; moe: whole layers of "
             "experts; own: what layers of your own can make again; moe_act is done without it",
             {.shown = "core_attn", .needs = {{"recompute-granularity", "selective"}}, .example = "mlp layernorm"});
  memory.add("recompute-method", "NAME", choice(&o.recompute_method, {"uniform", "block"}),
             "with full: recompute groups of layers (uniform) or the first layers (block)",
             {.needs = {{"recompute-granularity", "full"}}, .example = "block"});
  memory.add(
      "recompute-num-layers", "N", integer(&o.recompute_num_layers, {0, 10'000}),
      "with full: layers per group (uniform), layers of each pipeline stage's chunk that are recomputed "
      "(block); with selective: the first layers of each chunk, in which the modules are recomputed, to fill "
      "memory to the brim; 0 is as if not given",
      {.shown = "1; with selective all", .needs = {{"recompute-granularity", "selective or full"}}, .example = "2"});
  memory.add("loss-chunk-size", "TOKENS", integer(&o.loss_chunk_size, {0, kMany}),
             "tokens whose logits are held at a time: the output layer and the loss run forward and backward chunk by "
             "chunk; 0: all at once",
             {.on_load = kNoted, .suggested = false, .example = "128"});
  memory.add(
      "cuda-graph-impl", "NAME", choice(&o.cuda_graph_impl, {"none", "local", "transformer_engine", "full_iteration"}),
      "local: capture runs of the modules below as graphs after the warm-up steps and replay them, on CPU and "
      "GPU, with the same bits; transformer_engine means local; full_iteration is refused. generate captures "
      "the step that draws a token",
      {.apps = kShaped | kGenerateApp, .shown = "none, of generate local", .on_load = kFree, .example = "local"});
  memory.add(
      "cuda-graph-modules", "NAME...",
      list(&o.cuda_graph_modules, {"attn", "mlp", "moe_router", "moe_preprocess", "moe", "own", "layer"}),
      "with local: what a graph holds: each attention, each MLP, each router of experts, with it (moe_preprocess) the "
      "dispatch of rows to their ranks, each layer of experts with its router, each layer of your own (own), or whole "
      "layers, as many as stand together",
      {.shown = "layer",
       .on_load = kFree,
       .synonym = "cuda-graph-scope",
       .needs = {{.flag = "cuda-graph-impl", .value = "local", .also = "transformer_engine"}},
       .of_run = true,
       .example = "attn mlp"});
  memory.add("cuda-graph-warmup-steps", "STEPS", integer(&o.cuda_graph_warmup_steps, {1, kMany}),
             "with local: eager steps of this process before the first capture",
             {.on_load = kFree,
              .needs = {{.flag = "cuda-graph-impl", .value = "local", .also = "transformer_engine"}},
              .example = "3"});
}

}  // namespace megalith
