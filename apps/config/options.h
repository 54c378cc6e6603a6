// Everything a user can set, as plain data. apps/flags/flags.cpp fills it from defaults, --config files and the command
// line; every field is named after its flag.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/base/error.h"
#include "core/device/device.h"
#include "core/model/moe_config.h"
#include "core/optim/lr_schedule.h"
#include "core/tensor/dtype.h"
#include "parallel/context_parallel/context_communication.h"

namespace megalith {

struct ModelConfig;
struct Options;

enum class RecomputeGranularity { kNone, kSelective, kFull };
enum class RecomputeMethod { kUniform, kBlock };
enum class TokenizerType { kByte, kNull, kGpt2Bpe, kHuggingFace, kTikTokenizer };  // as tokenizer_types() has them
enum class OptimizerType { kAdam };
enum class CudaGraphImpl { kNone, kLocal, kTransformerEngine, kFullIteration };  // the last one is refused
// kAuto: 1f1b, or interleaved where a stage has several chunks; the others as ScheduleKind has them.
enum class PipelineSchedule { kAuto, kGpipe, k1F1B, kInterleaved, kZbH1, kZbV, kDualPipeV };
// What data-parallel ranks hold parts of, each more than the one before. kAuto: kOptim with
// --use-distributed-optimizer, else kNoShard.
enum class ShardingStrategy { kAuto, kNoShard, kOptim, kOptimGrads, kOptimGradsParams };
enum class OuterSharding { kNoShard, kOptim };
enum class GradientReduction { kEach, kLast };  // with which of a step's microbatches
enum class EndUnits { kAuto, kSharded, kWhole };
enum class GradientDType { kAuto, kFp32, kBf16 };

struct TrainingOptions {
  std::int64_t micro_batch_size = 1;   // sequences per rank and forward pass
  std::int64_t global_batch_size = 0;  // sequences per step; 0: micro_batch_size x data-parallel size
  std::int64_t train_iters = 0;        // steps; with train_samples those of a run from its start, for the log alone
  std::int64_t train_samples = 0;      // 0: --train-iters was given
  // START, INCREMENT and SAMPLES of the batches before global_batch_size (apps/config/run_length.h); empty: none
  std::vector<std::int64_t> rampup_batch_size;
  bool skip_train = false;  // evaluate once and end

  OptimizerType optimizer = OptimizerType::kAdam;
  LrSchedule schedule;  // --lr, --min-lr, --lr-*; resolved: for train lr_decay_iters or lr_decay_samples is not 0
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.999;
  double adam_eps = 1e-8;
  double weight_decay = 0.01;
  double clip_grad = 1.0;                 // global L2 norm; 0: no clipping
  DType main_grads_dtype = DType::kFp32;  // kFp32, or with bf16 parameters kBf16
  bool grad_reduce_in_bf16 = false;       // was given: main_grads_dtype is kBf16
  // Of whole units' gradients in slots, which ranks exchange; read slot_grads_dtype().
  GradientDType megatron_fsdp_grad_comm_dtype = GradientDType::kAuto;
  DType exp_avg_dtype = DType::kFp32;     // kFp32 | kBf16: Adam's first moment
  DType exp_avg_sq_dtype = DType::kFp32;  // the second

  std::int64_t seed = 1234;
  bool deterministic_mode = false;

  std::int64_t eval_interval = 1000;  // steps; 0: never
  std::int64_t eval_iters = 100;      // global batches per evaluation

  std::int64_t exit_interval = 0;    // end (exit code 75) after a step divisible by it; 0: off
  double exit_duration_in_mins = 0;  // 0: off
  std::string stop_file;             // its appearance ends the run (exit code 75); empty: none

  RecomputeGranularity recompute_granularity = RecomputeGranularity::kNone;
  RecomputeMethod recompute_method = RecomputeMethod::kUniform;  // with kFull
  // uniform: layers per chunk; block and selective: layers of each part that are recomputed; 0: 1, with selective all
  std::int64_t recompute_num_layers = 0;
  std::vector<std::string> recompute_modules;  // with kSelective: core_attn, layernorm, mlp, mlp_act

  std::int64_t loss_chunk_size = 0;  // tokens that the output layer and the loss take at a time; 0: all at once

  CudaGraphImpl cuda_graph_impl = CudaGraphImpl::kNone;
  std::vector<std::string> cuda_graph_modules;  // attn, mlp, layer; resolved: not empty
  std::int64_t cuda_graph_warmup_steps = 1;     // before anything is captured

  std::int64_t max_skipped_steps = 10;          // steps with NaN or Inf; one more ends the run (exit code 8)
  std::int64_t check_weight_hash_interval = 0;  // steps; 0: never

  bool check_hazards = false;
  std::int64_t suppress_wait = -1;  // test aid: the ordinal of the event wait hidden from the hazard checker; -1: none
  DeviceType device = default_device();

  bool evaluates() const { return eval_iters > 0 && (eval_interval > 0 || skip_train); }
  DType slot_grads_dtype() const {
    if (megatron_fsdp_grad_comm_dtype == GradientDType::kAuto) return main_grads_dtype;
    return megatron_fsdp_grad_comm_dtype == GradientDType::kBf16 ? DType::kBf16 : DType::kFp32;
  }
};

// Activations that are in host memory between forward and backward.
struct OffloadOptions {
  bool fine_grained_activation_offloading = false;
  std::vector<std::string> offload_modules;  // KIND, KIND:LAYER or KIND:FIRST-LAST, fused_group_mlp for three; or auto
  double activation_offload_fraction = 1;    // of a chunk's groups, which are a kind in a layer; the last ones stay
  std::int64_t offload_mb_per_layer = 0;     // MiB of a layer and microbatch at most; 0: no limit
  std::int64_t min_offload_bytes = 1 << 20;  // smaller storages stay
  std::int64_t min_offloaded_tensor_size = 0;  // likewise, as elements of the parameters' dtype; 0: not given
  std::int64_t offload_distance =
      -1;                           // layers between a slot's readers and its copies' ends; -1: by the forecast, or 1
  double offload_slowdown = 0.005;  // most of the step's computing that it waits for copies, by the forecast
};

struct DataOptions {
  std::vector<std::string> data_path;  // PREFIX, or WEIGHT PREFIX pairs as Megatron
  std::string split = "969,30,1";      // train, validation, test
  bool mock_data = false;
  TokenizerType tokenizer_type = TokenizerType::kByte;
  std::string vocab_file;  // this and the next five: as TokenizerOptions of core/tokenizer/tokenizer.h
  std::string merge_file;
  std::string tokenizer_model;
  std::string tiktoken_pattern;
  std::vector<std::string> tiktoken_special_tokens;
  std::string eod_token;
};

struct CheckpointOptions {
  std::string save;
  std::string load;
  std::int64_t save_interval = 0;     // steps; 0: only at the end
  bool async_save = false;            // write in the background from a copy in host memory
  std::int64_t keep_last = 0;         // newest verified checkpoints kept when pruning; 0: all
  std::int64_t max_failed_saves = 3;  // in a row, which end the run; 0: none do
  std::int64_t ckpt_step = 0;         // step to load; 0: the newest valid one
  bool finetune = false;              // weights only, step count starts at 0
  bool no_load_optim = false;
  bool use_checkpoint_args = false;  // model and tokenizer as the checkpoint of `load` has them
};

struct ParallelOptions {
  std::int64_t tensor_model_parallel_size = 1;
  bool sequence_parallel = false;  // with it: norms, dropout and residuals are split along the tokens
  bool tp_comm_overlap = false;    // overlap gathers and sums of rows with GEMMs
  std::int64_t pipeline_model_parallel_size = 1;
  std::int64_t expert_model_parallel_size = 1;   // ranks that share out the experts of a layer
  std::int64_t expert_tensor_parallel_size = 1;  // ranks that share each expert
  MoeTokenDispatcher moe_token_dispatcher_type = MoeTokenDispatcher::kAuto;  // among these ranks, as the next two
  double moe_expert_rank_capacity_factor = 1.5;
  bool moe_shared_expert_overlap = false;
  std::int64_t context_parallel_size = 1;  // ranks that share each sequence
  ContextCommunication cp_comm_type = ContextCommunication::kP2p;
  PipelineSchedule pipeline_schedule = PipelineSchedule::kAuto;
  bool delay_wgrad_compute = false;                        // a chunk's weight gradients after all of its backward_data
  std::int64_t num_layers_per_virtual_pipeline_stage = 0;  // 0: not given, as the next five
  std::int64_t num_virtual_stages_per_pipeline_rank = 0;
  std::string pipeline_model_parallel_layout;  // as parse_layer_layout has it
  std::int64_t decoder_first_pipeline_num_layers = 0;
  std::int64_t decoder_last_pipeline_num_layers = 0;
  bool account_for_embedding_in_pipeline_split = false;
  bool account_for_loss_in_pipeline_split = false;
  bool use_distributed_optimizer = false;  // read shards_optimizer() instead, and sharding() for the next
  ShardingStrategy data_parallel_sharding_strategy = ShardingStrategy::kAuto;
  ShardingStrategy expert_data_parallel_sharding_strategy = ShardingStrategy::kAuto;  // read expert_sharding()
  bool use_megatron_fsdp = false;                                                     // changes nothing
  bool fsdp_double_buffer = false;                                                    // changes nothing
  std::int64_t fsdp_unit_slots = 2;      // buffers that whole units take turns in
  std::int64_t fsdp_gradient_slots = 0;  // likewise for their gradients; 0: as many
  std::int64_t fsdp_prefetch = 1;        // units gathered ahead of the one of their family in use
  GradientReduction fsdp_reduce_grads = GradientReduction::kEach;
  EndUnits fsdp_embedding_and_head = EndUnits::kAuto;
  std::int64_t num_distributed_optimizer_instances = 1;  // groups of data-parallel ranks that hold all parts
  OuterSharding outer_dp_sharding_strategy = OuterSharding::kNoShard;
  bool overlap_grad_reduce = false;               // with backward; otherwise one bucket after it
  bool overlap_param_gather = false;              // with the next forward; otherwise at the end of the step
  std::int64_t ddp_bucket_size = 40'000'000;      // parameters per gradient bucket
  std::int64_t distributed_timeout_minutes = 10;  // a collective that takes longer ends the job
  double comm_timeout = 0;                        // seconds, in place of it; 0: off
  std::string comm_dump = "comm-dump";            // folder for the last calls of each rank when one hangs
  std::int64_t world_size = 1;                    // plan only: ranks of the layout that is forecast

  ShardingStrategy sharding() const {  // never kAuto
    if (data_parallel_sharding_strategy != ShardingStrategy::kAuto) return data_parallel_sharding_strategy;
    return use_distributed_optimizer ? ShardingStrategy::kOptim : ShardingStrategy::kNoShard;
  }
  // Of experts, over the ranks that hold the same ones; never kAuto.
  ShardingStrategy expert_sharding() const {
    const bool is_own = expert_data_parallel_sharding_strategy != ShardingStrategy::kAuto;
    return is_own ? expert_data_parallel_sharding_strategy : sharding();
  }
  ShardingStrategy most_sharding() const { return std::max(sharding(), expert_sharding()); }
  std::int64_t expert_ranks() const { return expert_model_parallel_size * expert_tensor_parallel_size; }
  bool shards_optimizer() const { return sharding() != ShardingStrategy::kNoShard; }
};

struct LoggingOptions {
  std::int64_t log_interval = 100;  // steps
  bool log_throughput = false;
  double peak_tflops = 0;  // of a device, for the MFU; 0: by its name
  std::string metrics_jsonl;
  std::string tensorboard_dir;
  std::int64_t tensorboard_log_interval = 1;  // steps
  std::string trace;                          // file; its window of steps is the profiler's
  bool profile = false;                       // CUDA only
  std::int64_t profile_step_start = 10;       // steps [start, end) are recorded
  std::int64_t profile_step_end = 12;
  std::vector<std::string> profile_ranks;  // empty: rank 0 by the profiler, all by --trace
  bool print_actions = false;              // in place of training or forecasting
};

struct GenerateOptions {
  std::string prompt;
  std::int64_t num_samples = 1;  // continuations of it, side by side
  std::int64_t max_new_tokens = 256;
  double temperature = 1.0;
  std::int64_t top_k = 0;  // 0: all; 1: greedy
  double top_p = 0.0;      // 0: off
  bool print_speed = false;
};

struct ReportOptions {
  std::vector<std::string> inputs;  // metrics files
  std::string output;               // HTML
};

// What plan forecasts in addition to memory and work.
struct ForecastOptions {
  std::string rates;             // file (apps/flags/rates.h); empty: no times
  bool suggest = false;          // layouts for the world size, in place of the one given
  double device_memory_gib = 0;  // 0: as the rates say
  std::string html;              // file to write; empty: none
  std::string json;              // likewise
};

struct ConvertOptions {
  std::string from;                             // hf or native; resolved: neither is empty
  std::string to;                               // the other one
  std::int64_t max_shard_size = 5'000'000'000;  // bytes of tensors per file, --to hf
  std::vector<std::string> ignore_config_keys;  // of config.json, --to native
};

// prepare and prepare inspect; which data and tokenizer is in DataOptions.
struct PrepareOptions {
  std::vector<std::string> inputs;
  std::string output_prefix;
  std::string json_key = "text";
  std::vector<std::string> document_start;
  std::string document_separator;  // where it is given, empty or not
  bool append_eod = false;
  std::int64_t max_bad_lines = 0;  // of JSON lines in all inputs, which are skipped
  std::int64_t documents = 3;      // that inspect shows of each dataset
  std::int64_t samples = 0;        // 0: inspect shows counts and documents; else the ids of this many training samples
};

// What a run finds on its machine, and plan in --rates; no flag sets it.
struct MachineFacts {
  bool gpus_apart = false;          // GPUs that share out experts do not all read each other's memory
  std::size_t host_share = 0;       // bytes of its host's memory that a rank may take; 0: not known
  bool host_is_device = false;      // what a step computes with is in that share too
  bool ends_exceed_memory = false;  // a first plan found no room for whole embedding and head where that is open
};

// What a flag's value that differs from the one in the loaded checkpoint means.
enum class OnLoad {
  kFree,       // nothing
  kNoted,      // the run does not continue exactly: reported
  kComputes,   // the same tensors compute something else: refused, with --finetune reported
  kTensors,    // other tensors: refused
  kPositions,  // kTensors where positions are learned, else kFree
  kTokenizer,  // its identity is compared in place of its flags
};

// One line of the effective configuration. `value` is valid both as TOML and as JSON.
struct ConfigEntry {
  std::string group;  // TOML table that --print-config puts it in
  std::string name;   // flag without dashes in front
  std::string value;
  std::string origin;      // "default", "derived", FILE:LINE, "checkpoint" or "command line"
  bool given = false;      // another value than the default; of some (FlagTraits::at_default) any that a user gave
  bool suggested = false;  // plan --suggest chooses it
  OnLoad on_load = OnLoad::kFree;
};

// A flag of a user's own (apps/own.cpp). The texts are literals.
struct OwnFlag {
  std::string_view name;  // without dashes in front
  std::string_view unit;  // of the value, as --help shows it; empty for a toggle
  std::string_view help;
  std::variant<bool, std::int64_t, double, std::string> value;  // the default; in Options that of the run
  double low = 0, high = 1e12;                                  // bounds of a number
  OnLoad on_load = OnLoad::kTensors;
};

struct OwnOptions {
  std::vector<OwnFlag> flags;
  // Refuses what does not fit together; null: nothing is refused.
  std::function<void(const Options&)> check = nullptr;
  // Whether a layer has a segment of the user's own, whose kinds of slots only a recording knows; null: none has.
  std::function<bool(const Options&, std::int64_t layer)> has_segment = nullptr;
};

struct RunOptions {
  TrainingOptions train;
  OffloadOptions offload;
  DataOptions data;
  CheckpointOptions checkpoint;
  ParallelOptions parallel;
  LoggingOptions logging;
  GenerateOptions generate;
  ReportOptions report;
  ConvertOptions convert;
  ForecastOptions forecast;
  PrepareOptions prepare;
  OwnOptions own;
  MachineFacts machine;
  std::vector<ConfigEntry> effective;  // every flag of the program, in the order of --help

  bool is_default(std::string_view flag) const {
    const auto entry = std::ranges::find(effective, flag, &ConfigEntry::name);
    return entry == effective.end() || entry->origin == "default";
  }
  bool is_given(std::string_view flag) const {
    const auto entry = std::ranges::find(effective, flag, &ConfigEntry::name);
    return entry != effective.end() && entry->given;
  }
  // The value of a flag of one's own, of the type that its declaration has; else an error with exit code 9.
  template <class Value>
  const Value& own_value(std::string_view flag) const {
    const Value* const value = std::get_if<Value>(&own_flag(flag).value);
    require(value != nullptr, "a flag of one's own is read as the type of its default");
    return *value;
  }

 private:
  const OwnFlag& own_flag(std::string_view flag) const;
};

// The model stands on the heap, so that what does not read it need not include core/model/config.h: a field there then
// rebuilds few files.
struct Options : RunOptions {
  Options();
  Options(const Options& other);
  Options(Options&& other);
  Options& operator=(const Options& other);
  Options& operator=(Options&& other);
  ~Options();

  // Of the model, for files that need no more of it.
  const MoeConfig& moe() const;
  std::int64_t num_layers() const;
  DType params_dtype() const;
  bool ties_embeddings() const;

 private:
  std::unique_ptr<ModelConfig> owned_;

 public:
  ModelConfig& model;  // this object's own
};

// Whether --fsdp-embedding-and-head leaves open what becomes of these. It does not where bits must not depend on what
// memory is free.
bool may_shard_ends(const Options& options);

}  // namespace megalith
