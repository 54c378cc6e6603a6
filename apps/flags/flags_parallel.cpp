// Rows of the flags of parallelism and memory; flags_offload.cpp has the rows of the offload flags.
#include "apps/config/memory_options.h"
#include "apps/config/parallel_options.h"
#include "apps/flags/flags_table.h"

namespace megalith {

using enum FlagGroup;
using enum OnLoad;

namespace {

constexpr const char* kByLayout = "remove the other flag, as the layout already assigns the layers";

void add_chunks(Section& parallel, ParallelOptions& o) {
  parallel.add("num-layers-per-virtual-pipeline-stage", "N",
               integer(&o.num_layers_per_virtual_pipeline_stage, {0, 10'000}),
               "number of layers per virtual pipeline stage (chunk); 0: one chunk per stage",
               {.excludes = {{"num-virtual-stages-per-pipeline-rank"}}, .example = "1"});
  parallel.add("num-virtual-stages-per-pipeline-rank", "N",
               integer(&o.num_virtual_stages_per_pipeline_rank, {0, 10'000}),
               "number of virtual pipeline stages (chunks) per stage; 0: one", {.example = "2"});
  parallel.add("microbatch-group-size-per-virtual-pipeline-stage", "N",
               integer(&o.microbatch_group_size_per_virtual_pipeline_stage, {0, kMaxRanks}),
               "with an interleaved schedule: number of microbatches that a chunk runs before the next chunk. More "
               "leave time for messages and take memory. 0: one per stage",
               {.suggested = false, .example = "2 --num-virtual-stages-per-pipeline-rank 2"});
}

}  // namespace

void add_parallel(FlagTable& t, ParallelOptions& o) {
  const auto ranks = [](std::int64_t* field) { return integer(field, {1, kMaxRanks}); };
  Section parallel(t, kParallel, kShaped);
  Section experts(t, kParallel, kShaped, {.needs = {{"num-experts"}}});
  parallel.add("tensor-model-parallel-size", "RANKS", ranks(&o.tensor_model_parallel_size),
               "tensor-parallel ranks, which split each layer's heads, columns and vocabulary", {.example = "2"});
  parallel.add("sequence-parallel", "", toggle(&o.sequence_parallel),
               "with tensor parallelism: split of norms, dropout and residuals along the tokens",
               {.example = "--tensor-model-parallel-size 2"});
  parallel.add(
      "tp-comm-overlap", "", toggle(&o.tp_comm_overlap),
      "with --sequence-parallel: overlap of the communication of rows with the GEMMs of linear layers, piece by piece",
      {.needs = {{"sequence-parallel"}}});
  parallel.add("pipeline-model-parallel-size", "RANKS", ranks(&o.pipeline_model_parallel_size),
               "number of pipeline stages, which split the layers", {.example = "2"});
  parallel.add("pipeline-schedule", "NAME",
               choice(&o.pipeline_schedule, {"auto", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe-v"}),
               "order of a stage's work. auto: 1f1b, or interleaved if a stage has several chunks. zb-v and dualpipe-v "
               "have 2 chunks per stage",
               {.example = "zb-h1"});
  parallel.add("delay-wgrad-compute", "", toggle(&o.delay_wgrad_compute),
               "with gpipe, 1f1b and interleaved: weight gradients of a chunk computed after its full backward pass, "
               "while its input gradient is sent on. What they read is kept until then, which takes memory. The other "
               "schedules delay weight gradients into idle time; with this flag dualpipe-v always delays them");
  add_chunks(parallel, o);
  parallel.add("pipeline-model-parallel-layout", "TEXT", text(&o.pipeline_model_parallel_layout),
               "content of each chunk, in the model's order: E embedding, t a layer, L loss, | the next chunk, X*N and "
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
               "layers of the first stage; 0: as many as the other stages",
               {.example = "1 --pipeline-model-parallel-size 2"});
  parallel.add("decoder-last-pipeline-num-layers", "N", integer(&o.decoder_last_pipeline_num_layers, {0, 10'000}),
               "layers of the last stage; 0: as many as the others", {.example = "1 --pipeline-model-parallel-size 2"});
  parallel.add("account-for-embedding-in-pipeline-split", "", toggle(&o.account_for_embedding_in_pipeline_split),
               "embedding counted as a layer of the first chunk");
  parallel.add("account-for-loss-in-pipeline-split", "", toggle(&o.account_for_loss_in_pipeline_split),
               "output layer and loss counted as a layer of the last chunk");
  experts.add("expert-model-parallel-size", "RANKS", ranks(&o.expert_model_parallel_size),
              "number of expert-parallel ranks, which split the experts of each layer. They are taken from the "
              "tensor-, context- and data-parallel ranks; rows travel to the ranks of their experts and back",
              {.example = "2"});
  experts.add("expert-tensor-parallel-size", "RANKS", ranks(&o.expert_tensor_parallel_size),
              "number of tensor-parallel ranks of each expert, which split its columns; each rank gets all rows of the "
              "expert. Megatron-LM's default is the tensor-parallel size",
              {.example = "2"});
  experts.add("moe-token-dispatcher-type", "NAME",
              choice(&o.moe_token_dispatcher_type, {"auto", "alltoall", "allgather", "flex"}),
              "dispatcher that moves rows to the ranks of their experts. alltoall: each row to the ranks that it "
              "chose. allgather: all rows to all ranks. flex: GPUs read rows from each other's memory. auto: flex if "
              "possible, else alltoall. Results are bit-identical; no effect if no ranks share experts",
              {.suggested = false, .example = "alltoall"});
  experts.add("moe-expert-rank-capacity-factor", "X",
              real(&o.moe_expert_rank_capacity_factor, {0, kInfinity, true, true}),
              "capacity of a rank for rows of other ranks, over their number under uniform routing. A step that needs "
              "more is rerun with more capacity. No effect if no ranks share experts",
              {.suggested = false, .example = "1.25"});
  experts.add("moe-shared-expert-overlap", "", toggle(&o.moe_shared_expert_overlap),
              "overlap of the shared expert with the dispatch; no effect if no ranks share experts",
              {.needs = {{.flag = "moe-shared-expert-intermediate-size", .remedy = "set the shared expert's size"}}});
  experts.add("overlap-moe-expert-parallel-comm", "", toggle(&o.overlap_moe_expert_parallel_comm),
              "overlap of exchanges of experts' rows with computation of another microbatch, which takes memory. No "
              "effect with gpipe, one microbatch, or if no ranks share experts; few pairs with 1f1b and zb-h1");
  experts.add("overlap-dispatch-backward-with-experts-wgrad", "",
              toggle(&o.overlap_dispatch_backward_with_experts_wgrad),
              "accepted for compatibility, no effect: weight gradients of experts run while gradients travel back");
  parallel.add("context-parallel-size", "RANKS", ranks(&o.context_parallel_size),
               "context-parallel ranks, which split each sequence; twice their number divides its length",
               {.example = "2"});
  parallel.add(
      "cp-comm-type", "NAME", choice(&o.cp_comm_type, {"p2p", "a2a", "all_gather"}),
      "exchange of keys and values between context-parallel ranks. p2p: passed around the ranks while attention "
      "computes. a2a: heads exchanged for tokens before and after attention. all_gather: gathered before attention",
      {.needs = {{"context-parallel-size", "above 1"}}, .example = "a2a"});
  parallel.add("use-distributed-optimizer", "", toggle(&o.use_distributed_optimizer),
               "ZeRO-1: each data-parallel rank holds and updates a shard of main parameters and moments. Gradients "
               "are reduce-scattered, weights all-gathered. Implies --data-parallel-sharding-strategy optim");
  parallel.add(
      "data-parallel-sharding-strategy", "NAME",
      choice(&o.data_parallel_sharding_strategy, {"auto", "no_shard", "optim", "optim_grads", "optim_grads_params"}),
      "state that data-parallel ranks shard. no_shard: none. optim: main parameters and moments. optim_grads: "
      "gradients too. optim_grads_params: weights too (FSDP). auto: optim with --use-distributed-optimizer, else "
      "no_shard",
      {.example = "optim_grads"});
  experts.add("expert-data-parallel-sharding-strategy", "NAME",
              choice(&o.expert_data_parallel_sharding_strategy,
                     {"auto", "no_shard", "optim", "optim_grads", "optim_grads_params"}),
              "sharding strategy of experts; auto: as --data-parallel-sharding-strategy. optim_grads_params, with "
              "optim for the rest, suits models that are mostly experts",
              {.example = "optim_grads_params --use-distributed-optimizer"});
  parallel.add("use-megatron-fsdp", "", toggle(&o.use_megatron_fsdp),
               "accepted for compatibility, no effect; --data-parallel-sharding-strategy selects what is sharded");
  parallel.add("fsdp-double-buffer", "", toggle(&o.fsdp_double_buffer),
               "accepted for compatibility, no effect; unsharded units always have buffers at fixed addresses");
  parallel.add("fsdp-unit-slots", "N", integer(&o.fsdp_unit_slots, {1, 10'000}),
               "with optim_grads or optim_grads_params: number of buffers for unsharded units, each a layer. More "
               "buffers start gathers earlier and let reductions end later, and take memory",
               {.example = "3 --data-parallel-sharding-strategy optim_grads_params"});
  parallel.add(
      "fsdp-gradient-slots", "N", integer(&o.fsdp_gradient_slots, {0, 10'000}),
      "with optim_grads, or optim_grads_params and --fsdp-reduce-grads each: number of buffers for unsharded gradients "
      "of units; 0: --fsdp-unit-slots. 1 saves memory, but the next unit's gradients wait for the reduction",
      {.needs = {{"fsdp-reduce-grads", "each"}}, .example = "1 --data-parallel-sharding-strategy optim_grads"});
  parallel.add("fsdp-prefetch", "UNITS", integer(&o.fsdp_prefetch, {0, 10'000}),
               "with optim_grads_params: number of units whose weights are gathered ahead of the unit in use, counted "
               "separately for experts; less than --fsdp-unit-slots",
               {.example = "0 --data-parallel-sharding-strategy optim_grads_params"});
  parallel.add("fsdp-reduce-grads", "NAME", choice(&o.fsdp_reduce_grads, {"each", "last"}),
               "with optim_grads_params: time of the gradient reduce-scatter. each: after each microbatch. last: after "
               "a step's last microbatch; gradients are unsharded until then, and results are those of optim",
               {.of_run = true, .example = "last --data-parallel-sharding-strategy optim_grads_params"});
  parallel.add("fsdp-embedding-and-head", "NAME", choice(&o.fsdp_embedding_and_head, {"auto", "sharded", "whole"}),
               "with optim_grads_params: embedding and output layer sharded as layers are, or whole (unsharded) as "
               "with optim, which saves their gathers. auto: whole if memory suffices, if shards would need no less, "
               "or with --deterministic-mode",
               {.example = "sharded --data-parallel-sharding-strategy optim_grads_params"});
  parallel.add("num-distributed-optimizer-instances", "N", ranks(&o.num_distributed_optimizer_instances),
               "with a strategy that shards: number of instances, groups of adjacent data-parallel ranks that each "
               "hold all shards. Gradients are reduce-scattered within an instance and then summed over the instances. "
               "Weights are gathered within an instance",
               {.example = "2 --use-distributed-optimizer"});
  parallel.add("outer-dp-sharding-strategy", "NAME", choice(&o.outer_dp_sharding_strategy, {"no_shard", "optim"}),
               "with optim_grads_params and --num-distributed-optimizer-instances above 1: optim also shards main "
               "parameters, moments and their update over the instances, with the same bits",
               {.needs = {{"num-distributed-optimizer-instances", "above 1"}},
                .example = "optim --data-parallel-sharding-strategy optim_grads_params"});
  parallel.add(
      "overlap-grad-reduce", "", toggle(&o.overlap_grad_reduce),
      "overlap of gradient reduction with the backward pass, in buckets; otherwise gradients are reduced after it");
  parallel.add("overlap-param-gather", "", toggle(&o.overlap_param_gather),
               "with --use-distributed-optimizer and --overlap-grad-reduce: overlap of the gathers of updated weights "
               "with the next forward pass, in buckets; otherwise weights are gathered before the step ends",
               {.needs = {{"overlap-grad-reduce"}}, .example = "--use-distributed-optimizer"});
  parallel.add("ddp-bucket-size", "N", integer(&o.ddp_bucket_size, {1, kMany}),
               "with --overlap-grad-reduce: number of parameters per bucket", {.example = "9"});
  parallel.add("distributed-timeout-minutes", "MINUTES", integer(&o.distributed_timeout_minutes, {1, 1'000'000}),
               "timeout of a collective that waits for its peers; it ends the run with exit code 7",
               {.apps = kTrainApp, .example = "9"});
  parallel.add("comm-timeout", "SECONDS", real(&o.comm_timeout, {0, 1e8}),
               "timeout that overrides --distributed-timeout-minutes; 0: off", {.apps = kTrainApp, .example = "0.5"});
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
             "activations to recompute in the backward pass", {.example = "full"});
  memory.add("recompute-modules", "NAME...",
             list(&o.recompute_modules,
                  {"core_attn", "layernorm", "mlp", "mlp_act", "moe", "moe_act", "shared_experts", "own"}),
             "with selective: modules to recompute. layernorm: norms ahead of attention and MLPs. moe: full MoE "
             "layers. own: what custom layers can recompute. moe_act is recomputed in any case",
             {.shown = "core_attn", .needs = {{"recompute-granularity", "selective"}}, .example = "mlp layernorm"});
  memory.add("recompute-method", "NAME", choice(&o.recompute_method, {"uniform", "block"}),
             "with full: recompute groups of layers (uniform) or the first layers (block)",
             {.needs = {{"recompute-granularity", "full"}}, .example = "block"});
  memory.add(
      "recompute-num-layers", "N", integer(&o.recompute_num_layers, {0, 10'000}),
      "with full: layers per group (uniform), or recomputed layers of each chunk of a pipeline stage (block). With "
      "selective: first layers of each chunk in which the modules are recomputed, to use all memory. 0: not given",
      {.shown = "1; with selective all", .needs = {{"recompute-granularity", "selective or full"}}, .example = "2"});
  memory.add("loss-chunk-size", "TOKENS", integer(&o.loss_chunk_size, {0, kMany}),
             "number of tokens whose logits are held at a time: output layer and loss run forward and backward chunk "
             "by chunk; 0: all at once",
             {.on_load = kNoted, .suggested = false, .example = "128"});
  memory.add(
      "cuda-graph-impl", "NAME", choice(&o.cuda_graph_impl, {"none", "local", "transformer_engine", "full_iteration"}),
      "implementation of CUDA graphs. local: runs of the modules below are captured after the warmup steps and "
      "replayed, on CPU and GPU, with the same bits. transformer_engine means local; full_iteration is rejected. "
      "generate captures the step that samples a token",
      {.apps = kShaped | kGenerateApp, .shown = "none, in generate local", .on_load = kFree, .example = "local"});
  memory.add("cuda-graph-modules", "NAME...",
             list(&o.cuda_graph_modules, {"attn", "mlp", "moe_router", "moe_preprocess", "moe", "own", "layer"}),
             "with local: what a graph holds. attn: each attention; mlp: each MLP; moe_router: each router; "
             "moe_preprocess: with it the dispatch of rows; moe: each MoE layer with its router; own: each custom "
             "layer; layer: consecutive full layers",
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
