#include "apps/flags/flags_table.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "apps/flags/flags_moe.h"
#include "apps/flags/flags_offload.h"
#include "apps/flags/flags_own.h"
#include "core/model/config.h"

namespace megalith {

namespace {

using Table = std::vector<Flag>;
using enum FlagGroup;
using enum OnLoad;

constexpr auto kTrain = static_cast<unsigned>(App::kTrain);
constexpr auto kGenerateApp = static_cast<unsigned>(App::kGenerate);
constexpr auto kPlan = static_cast<unsigned>(App::kPlan);
constexpr auto kReportApp = static_cast<unsigned>(App::kReport);
constexpr auto kConvertApp = static_cast<unsigned>(App::kConvert);
constexpr unsigned kShaped = kTrain | kPlan;  // programs that need the shape of the run
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::int64_t kMany = 1'000'000'000'000;
constexpr std::int64_t kMaxWidth = 1 << 20;
constexpr std::int64_t kMaxLength = 1 << 28;
constexpr std::int64_t kMaxVocab = 1 << 24;
constexpr std::int64_t kMaxRanks = 1 << 20;

// Before --main-grads-dtype in the table, so that a contradiction is seen. False leaves that as it is.
Binding bf16_gradients(TrainingOptions& o) {
  Binding binding = toggle(&o.grad_reduce_in_bf16);
  binding.set = [&o, set = std::move(binding.set)](const std::vector<std::string>& texts) {
    const bool is_valid = set(texts);
    if (o.grad_reduce_in_bf16) o.main_grads_dtype = DType::kBf16;
    return is_valid;
  };
  return binding;
}

// clang-format off
void add_model(Table& t, ModelConfig& m) {
  t.insert(t.end(), {
    {"num-layers", kModel, kShaped, "N", integer(&m.num_layers, {1, 10'000}), "transformer blocks", "required", kTensors},
    {"hidden-size", kModel, kShaped, "N", integer(&m.hidden_size, {1, kMaxWidth}), "width of the residual stream", "required", kTensors},
    {"ffn-hidden-size", kModel, kShaped, "N", integer(&m.ffn_hidden_size, {0, 4 * kMaxWidth}), "width of the MLP; 0: derived", "4 x hidden, with --swiglu 8/3 x hidden rounded down to 64", kTensors},
    {"num-attention-heads", kModel, kShaped, "N", integer(&m.num_attention_heads, {1, 65'536}), "query heads", "required", kTensors},
    {"group-query-attention", kModel, kShaped, "", toggle(&m.group_query_attention), "grouped-query attention, with one group unless --num-query-groups is given", "", kFree},
    {"num-query-groups", kModel, kShaped, "N", integer(&m.num_query_groups, {0, 65'536}), "key/value heads; 0: derived", "as many as query heads", kTensors},
    {"kv-channels", kModel, kShaped, "N", integer(&m.kv_channels, {0, 65'536}), "width of a head; 0: derived", "hidden / heads", kTensors},
    {"seq-length", kModel, kShaped, "TOKENS", integer(&m.seq_length, {1, kMaxLength}), "length of a sample", "required"},
    {"max-position-embeddings", kModel, kShaped, "TOKENS", integer(&m.max_position_embeddings, {0, kMaxLength}), "rows of the learned position table; 0: derived", "seq-length", kPositions},
    {"vocab-size", kModel, kShaped, "N", integer(&m.vocab_size, {0, kMaxVocab}), "token ids; 0: the tokenizer's", "the tokenizer's", kTensors},
    {"make-vocab-size-divisible-by", kModel, kShaped | kConvertApp, "N", integer(&m.make_vocab_size_divisible_by, {1, kMaxVocab}), "pad the vocabulary to a multiple of this", "", kComputes},
    {"position-embedding-type", kModel, kShaped, "NAME", choice(&m.position_embedding_type, {"learned_absolute", "rope", "none"}), "position information", ""},
    {"rotary-base", kModel, kShaped, "X", real(&m.rotary_base, {0, kInfinity, true}), "RoPE's theta", ""},
    {"rotary-percent", kModel, kShaped, "X", real(&m.rotary_percent, {0, 1, true}), "share of a head that RoPE rotates", ""},
    {"use-rope-scaling", kModel, kShaped, "", toggle(&m.use_rope_scaling), "scale RoPE's frequencies as Llama 3.1 does (rope_type llama3 of transformers)", ""},
    {"rope-scaling-factor", kModel, kShaped, "X", real(&m.rope_scaling.factor, {1, kInfinity}), "with --use-rope-scaling: divides the low frequencies", ""},
    {"rope-scaling-low-freq-factor", kModel, kShaped, "X", real(&m.rope_scaling.low_freq_factor, {0, kInfinity, true}), "with --use-rope-scaling: frequencies of at most this many turns within the original length are low", ""},
    {"rope-scaling-high-freq-factor", kModel, kShaped, "X", real(&m.rope_scaling.high_freq_factor, {0, kInfinity, true}), "with --use-rope-scaling: frequencies of at least this many turns are not scaled", ""},
    {"rope-scaling-original-max-position-embeddings", kModel, kShaped, "TOKENS", integer(&m.rope_scaling.original_max_position_embeddings, {1, kMaxLength}), "with --use-rope-scaling: context length that the model was first trained with", ""},
    {"normalization", kModel, kShaped, "NAME", choice(&m.normalization, {"LayerNorm", "RMSNorm"}), "kind of norm", "", kTensors},
    {"norm-epsilon", kModel, kShaped, "X", real(&m.norm_epsilon, {0, 1, true, true}), "added to the variance or mean square", ""},
    {"qk-layernorm", kModel, kShaped, "", toggle(&m.qk_layernorm), "normalize queries and keys per head", "", kTensors},
    {"swiglu", kModel, kShaped, "", toggle(&m.swiglu), "gated MLP with SiLU", "", kTensors},
    {"activation-func", kModel, kShaped, "NAME", choice(&m.activation_func, {"gelu_tanh", "gelu"}), "activation of the MLP without --swiglu", ""},
    {"disable-bias-linear", kModel, kShaped, "", inverted_toggle(&m.add_bias_linear), "no biases in the linear layers", "", kTensors},
    {"add-qkv-bias", kModel, kShaped, "", toggle(&m.add_qkv_bias), "biases for queries, keys and values despite --disable-bias-linear", "", kTensors},
    {"add-attn-proj-bias", kModel, kShaped, "", toggle(&m.add_attn_proj_bias), "a bias for attention's output projection despite --disable-bias-linear", "", kTensors},
    {"untie-embeddings-and-output-weights", kModel, kShaped, "", toggle(&m.untie_embeddings_and_output_weights), "separate output matrix", "", kTensors},
    {"hidden-dropout", kModel, kShaped, "P", real(&m.hidden_dropout, {0, 1, false, true}), "dropout probability on the residual stream", ""},
    {"attention-dropout", kModel, kShaped, "P", real(&m.attention_dropout, {0, 1, false, true}), "only 0 is built yet", ""},
    {"init-method-std", kModel, kShaped, "X", real(&m.init_method_std, {0, kInfinity, true}), "standard deviation of the initial weights", "", kFree},
    {"hf-model-type", kModel, kShaped, "NAME", choice(&m.hf_model_type, {"auto", "mistral"}), "model type that convert --to hf writes where several describe the same arithmetic; auto: Llama. No other effect", "", kNoted},
    {"bf16", kModel, kShaped | kConvertApp, "", toggle_of(&m.params_dtype, DType::kBf16, DType::kFp32), "parameters and activations in bfloat16, main parameters in fp32", "", kTensors},
  });
}

void add_training(Table& t, TrainingOptions& o) {
  t.insert(t.end(), {
    {"micro-batch-size", kTraining, kShaped, "SAMPLES", integer(&o.micro_batch_size, {1, kMaxRanks}), "per rank and forward pass", ""},
    {"global-batch-size", kTraining, kShaped, "SAMPLES", integer(&o.global_batch_size, {0, kMany}), "per step, over all ranks; 0: derived", "micro-batch-size x data-parallel size"},
    {"train-iters", kTraining, kTrain, "STEPS", integer(&o.train_iters, {0, kMany}), "length of the run", "required"},
    {"train-samples", kTraining, kTrain, "SAMPLES", integer(&o.train_samples, {0, kMany}), "length of the run in place of --train-iters: whole batches while these do not exceed it", "off"},
    {"rampup-batch-size", kTraining, kShaped, "START INCREMENT SAMPLES", integers(&o.rampup_batch_size, {1, kMany}, 3), "the batch grows from START by INCREMENT, in equal parts of the first SAMPLES samples, to --global-batch-size; evaluations take the latter. Only with --train-samples", "off"},
    {"skip-train", kTraining, kTrain, "", toggle(&o.skip_train), "evaluate only", "", kFree},
    {"seed", kTraining, kTrain | kGenerateApp, "N", integer(&o.seed, {0, 4'294'967'295}), "seed of weights, data order, dropout and sampling", ""},
    {"deterministic-mode", kTraining, kShaped, "", toggle(&o.deterministic_mode), "use only kernels with bit-reproducible results (those of the CPU always are), and set NCCL_GRAPH_REGISTER=0, so that sums over ranks have the same bits in captured graphs", "", kFree},
    {"exit-interval", kTraining, kTrain, "STEPS", integer(&o.exit_interval, {0, kMany}), "save and end with exit code 75 at a multiple of this; 0: off", "", kFree},
    {"exit-duration-in-mins", kTraining, kTrain, "MINUTES", real(&o.exit_duration_in_mins, {0, 1e7, false, true}), "save and end with exit code 75 after this time; 0: off", "", kFree},
    {"stop-file", kTraining, kTrain, "FILE", text(&o.stop_file), "save and end with exit code 75 after the step in which this file appears, a regular file of the user who runs train; it is then removed, as it is when a run completes. A run does not start where it is there already. SIGINT, SIGTERM, SIGUSR1 and SIGUSR2 have the same effect, and a second of them ends the run at once; so have SIGHUP, SIGXCPU, SIGALRM, SIGVTALRM and SIGPWR, as often as they come", "none", kFree},
    {"max-skipped-steps", kTraining, kTrain, "STEPS", integer(&o.max_skipped_steps, {0, kMany}), "steps with NaN or Inf in loss or gradients that a whole run tolerates: such a step updates nothing and is rerun to locate the first such value; one more ends the run with exit code 8", "", kFree},
    {"check-weight-hash-interval", kTraining, kTrain, "STEPS", integer(&o.check_weight_hash_interval, {0, kMany}), "steps between comparisons of the data-parallel ranks' weights, main parameters and moments by hash (with --use-distributed-optimizer weights only); a rank that differs ends the run with exit code 8; 0: never", "", kFree},
    {"device", kTraining, kTrain | kGenerateApp | kPlan, "NAME", choice(&o.device, {"cpu", "cuda"}), "where to compute; cpu for plan --rates of a CPU", "cuda where a GPU can be used or plan has --rates, else cpu", kFree},
  });
}

void add_optimizer(Table& t, TrainingOptions& o) {
  LrSchedule& s = o.schedule;
  const auto dtype = [](DType* field) { return choice(field, {"fp32", "bf16"}); };  // the first two of DType
  t.insert(t.end(), {
    {"optimizer", kOptimizer, kShaped, "NAME", choice(&o.optimizer, {"adam"}), "Adam with decoupled weight decay", ""},
    {"lr", kOptimizer, kTrain, "X", real(&s.lr, {0, kInfinity}), "peak learning rate, above 0", "required"},
    {"min-lr", kOptimizer, kTrain, "X", real(&s.min_lr, {0, kInfinity}), "learning rate at the end of the decay", ""},
    {"lr-decay-style", kOptimizer, kTrain, "NAME", choice(&s.lr_decay_style, {"constant", "linear", "cosine", "WSD", "inverse-square-root"}), "shape of the decay", ""},
    {"lr-decay-iters", kOptimizer, kTrain, "STEPS", integer(&s.lr_decay_iters, {0, kMany}), "end of the decay; 0: derived", "train-iters"},
    {"lr-decay-samples", kOptimizer, kTrain, "SAMPLES", integer(&s.lr_decay_samples, {0, kMany}), "with --train-samples, in place of it; 0: derived", "train-samples"},
    {"lr-warmup-iters", kOptimizer, kTrain, "STEPS", integer(&s.lr_warmup_iters, {0, kMany}), "linear warm-up", ""},
    {"lr-warmup-samples", kOptimizer, kTrain, "SAMPLES", integer(&s.lr_warmup_samples, {0, kMany}), "with --train-samples, in place of it", ""},
    {"lr-warmup-fraction", kOptimizer, kTrain, "X", real(&s.lr_warmup_fraction, {0, 1, false, true}), "warm-up as a share of --lr-decay-iters or --lr-decay-samples; 0: off", ""},
    {"lr-warmup-init", kOptimizer, kTrain, "X", real(&s.lr_warmup_init, {0, kInfinity}), "learning rate of the first step of a warm-up", ""},
    {"lr-wsd-decay-iters", kOptimizer, kTrain, "STEPS", integer(&s.lr_wsd_decay_iters, {0, kMany}), "last phase of --lr-decay-style WSD", "none"},
    {"lr-wsd-decay-samples", kOptimizer, kTrain, "SAMPLES", integer(&s.lr_wsd_decay_samples, {0, kMany}), "with --train-samples, in place of it", "none"},
    {"lr-wsd-decay-style", kOptimizer, kTrain, "NAME", choice(&s.lr_wsd_decay_style, {"exponential", "linear", "cosine", "minus_sqrt"}), "shape of that phase", ""},
    {"adam-beta1", kOptimizer, kTrain, "X", real(&o.adam_beta1, {0, 1, false, true}), "decay of the first moment", ""},
    {"adam-beta2", kOptimizer, kTrain, "X", real(&o.adam_beta2, {0, 1, false, true}), "decay of the second moment", ""},
    {"adam-eps", kOptimizer, kTrain, "X", real(&o.adam_eps, {0, 1, true}), "added to the root of the second moment", ""},
    {"weight-decay", kOptimizer, kTrain, "X", real(&o.weight_decay, {0, kInfinity}), "on matrices, not on norms and biases", ""},
    {"clip-grad", kOptimizer, kTrain, "X", real(&o.clip_grad, {0, kInfinity}), "largest global L2 norm of the gradients; 0: no clipping", ""},
    {"grad-reduce-in-bf16", kOptimizer, kShaped, "", bf16_gradients(o), "means --main-grads-dtype bf16: gradients are not only reduced but also summed over microbatches in bf16", "", kFree},
    {"main-grads-dtype", kOptimizer, kShaped, "NAME", dtype(&o.main_grads_dtype), "dtype of the gradients, summed over microbatches and ranks; bf16 requires --bf16", ""},
    {"megatron-fsdp-grad-comm-dtype", kOptimizer, kShaped, "NAME", choice(&o.megatron_fsdp_grad_comm_dtype, {"auto", "fp32", "bf16"}), "dtype of a unit's gradients until they are reduced, with optim_grads, or optim_grads_params that reduces gradients each microbatch: bf16 halves their slots and what goes over the links, the shards stay --main-grads-dtype, and where GPUs read each other's memory the sums are not rounded either; auto: as --main-grads-dtype", ""},
    {"exp-avg-dtype", kOptimizer, kShaped, "NAME", dtype(&o.exp_avg_dtype), "dtype of Adam's first moment", ""},
    {"exp-avg-sq-dtype", kOptimizer, kShaped, "NAME", dtype(&o.exp_avg_sq_dtype), "dtype of Adam's second moment; with bf16 keep --adam-beta2 below 0.996, or the moment cannot shrink", ""},
  });
}

void add_data_and_evaluation(Table& t, Options& o) {
  t.insert(t.end(), {
    {"data-path", kData, kTrain, "PREFIX...", list(&o.data.data_path), "indexed dataset without .bin/.idx, or WEIGHT PREFIX pairs", "this or --mock-data is required"},
    {"split", kData, kTrain, "A,B,C", text(&o.data.split), "shares of training, validation and test documents", ""},
    {"mock-data", kData, kTrain, "", toggle(&o.data.mock_data), "seeded Zipf-distributed tokens in place of a dataset", ""},
    {"tokenizer-type", kData, kShaped | kConvertApp, "NAME", choice(&o.data.tokenizer_type, {"byte", "null", "GPT2BPETokenizer", "HuggingFaceTokenizer", "TikTokenizer"}, {{"NullTokenizer", "null"}}), "byte: ids are bytes, 256 ends a document; null, or NullTokenizer: ids as given, --vocab-size of them plus one that ends documents; others: byte-level BPE from the files below", "", kTokenizer},
    {"vocab-file", kData, kShaped | kGenerateApp | kConvertApp, "FILE", text(&o.data.vocab_file), "vocab.json of GPT2BPETokenizer", "none", kTokenizer},
    {"merge-file", kData, kShaped | kGenerateApp | kConvertApp, "FILE", text(&o.data.merge_file), "merges.txt of GPT2BPETokenizer", "none", kTokenizer},
    {"tokenizer-model", kData, kShaped | kGenerateApp | kConvertApp, "FILE", text(&o.data.tokenizer_model), "tokenizer.json of HuggingFaceTokenizer, or its folder; or the ranks of TikTokenizer", "none", kTokenizer},
    {"tiktoken-pattern", kData, kShaped | kConvertApp, "NAME", text(&o.data.tiktoken_pattern), "how TikTokenizer splits text into words: gpt2, cl100k, llama3, qwen2, o200k, v1 or v2", "none", kTokenizer},
    {"tiktoken-special-tokens", kData, kShaped | kConvertApp, "NAME[=ID]...", list(&o.data.tiktoken_special_tokens), "special tokens of TikTokenizer; one without an id gets the next free id", "<|endoftext|>", kTokenizer},
    {"eod-token", kData, kShaped | kConvertApp, "TOKEN", text(&o.data.eod_token), "token that ends documents with BPE", "<|endoftext|>, <|end_of_text|> or </s>", kTokenizer},
    {"eval-interval", kEvaluation, kTrain, "STEPS", integer(&o.train.eval_interval, {0, kMany}), "steps between evaluations; 0: never", ""},
    {"eval-iters", kEvaluation, kTrain, "STEPS", integer(&o.train.eval_iters, {0, kMany}), "global batches per evaluation", ""},
  });
}

void add_checkpoint(Table& t, CheckpointOptions& o) {
  t.insert(t.end(), {
    {"save", kCheckpoint, kTrain | kConvertApp, "DIR", text(&o.save), "folder for checkpoints", "none"},
    {"load", kCheckpoint, kTrain | kGenerateApp | kConvertApp, "DIR", text(&o.load), "folder to read the newest valid checkpoint from", "none"},
    {"save-interval", kCheckpoint, kTrain, "STEPS", integer(&o.save_interval, {0, kMany}), "steps between checkpoints; 0: only at the end", ""},
    {"async-save", kCheckpoint, kShaped, "", toggle(&o.async_save), "write checkpoints in a background thread while training continues, from a copy in host memory that is allocated (pinned on a GPU) before the first step", ""},
    {"keep-last", kCheckpoint, kTrain, "N", integer(&o.keep_last, {0, 1'000'000}), "newest checkpoints to keep; 0: all", ""},
    {"max-failed-saves", kCheckpoint, kTrain, "N", integer(&o.max_failed_saves, {0, 1'000'000}), "end the run with exit code 3 after this many consecutive failed saves; 0: never", ""},
    {"ckpt-step", kCheckpoint, kTrain | kGenerateApp | kConvertApp, "STEP", integer(&o.ckpt_step, {0, kMany}), "checkpoint to load; 0: the newest valid one", ""},
    {"finetune", kCheckpoint, kTrain, "", toggle(&o.finetune), "load the weights only and start at step 0", ""},
    {"use-checkpoint-args", kCheckpoint, kTrain, "", toggle(&o.use_checkpoint_args), "take the flags of the model, of what its experts and router are (their losses stay the run's own) and of the tokenizer from the checkpoint of --load: they override --config files and defaults, the command line overrides them; while there is no checkpoint, flags apply as given", ""},
    {"no-load-optim", kCheckpoint, kTrain, "", toggle(&o.no_load_optim), "do not load Adam's moments: start them at 0", ""},
  });
}

void add_parallel(Table& t, ParallelOptions& o) {
  const auto ranks = [](std::int64_t* field) { return integer(field, {1, kMaxRanks}); };
  t.insert(t.end(), {
    {"tensor-model-parallel-size", kParallel, kShaped, "RANKS", ranks(&o.tensor_model_parallel_size), "ranks that share each layer's heads, columns and vocabulary", ""},
    {"sequence-parallel", kParallel, kShaped, "", toggle(&o.sequence_parallel), "with tensor parallelism: split norms, dropout and residuals along the tokens", ""},
    {"tp-comm-overlap", kParallel, kShaped, "", toggle(&o.tp_comm_overlap), "with --sequence-parallel: overlap the transfer of rows between ranks with the linears' GEMMs, piece by piece", ""},
    {"pipeline-model-parallel-size", kParallel, kShaped, "RANKS", ranks(&o.pipeline_model_parallel_size), "stages that the layers are split over", ""},
    {"pipeline-schedule", kParallel, kShaped, "NAME", choice(&o.pipeline_schedule, {"auto", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe-v"}), "order of a stage's work; auto: 1f1b, or interleaved where a stage has several chunks; zb-v and dualpipe-v have 2 chunks a stage", ""},
    {"delay-wgrad-compute", kParallel, kShaped, "", toggle(&o.delay_wgrad_compute), "with gpipe, 1f1b and interleaved: compute the weight gradients of a chunk after all of its backward, when the input's gradient is on its way to the stage before, instead of layer by layer with it; what they read is kept until then, which takes memory; the other schedules do that where it fills their idle time, and dualpipe-v then does it always", ""},
    {"num-layers-per-virtual-pipeline-stage", kParallel, kShaped, "N", integer(&o.num_layers_per_virtual_pipeline_stage, {0, 10'000}), "split each stage into chunks of this many layers; 0: one chunk", ""},
    {"num-virtual-stages-per-pipeline-rank", kParallel, kShaped, "N", integer(&o.num_virtual_stages_per_pipeline_rank, {0, 10'000}), "split each stage into this many chunks; 0: one", ""},
    {"pipeline-model-parallel-layout", kParallel, kShaped, "TEXT", text(&o.pipeline_model_parallel_layout), "what each chunk holds, in the model's order: E embedding, t a layer, L loss, | the next chunk, X*N and (...)*N repeat; such as 'Et*3|(tt|)*2L'", "even"},
    {"decoder-first-pipeline-num-layers", kParallel, kShaped, "N", integer(&o.decoder_first_pipeline_num_layers, {0, 10'000}), "layers of the first stage; 0: as many as the others", ""},
    {"decoder-last-pipeline-num-layers", kParallel, kShaped, "N", integer(&o.decoder_last_pipeline_num_layers, {0, 10'000}), "layers of the last stage; 0: as many as the others", ""},
    {"account-for-embedding-in-pipeline-split", kParallel, kShaped, "", toggle(&o.account_for_embedding_in_pipeline_split), "count the embedding as a layer of the first chunk", ""},
    {"account-for-loss-in-pipeline-split", kParallel, kShaped, "", toggle(&o.account_for_loss_in_pipeline_split), "count output layer and loss as a layer of the last chunk", ""},
    {"expert-model-parallel-size", kParallel, kShaped, "RANKS", ranks(&o.expert_model_parallel_size), "ranks that share out the experts of each layer, out of the tensor-, context- and data-parallel ones; rows go to the ranks of their experts and back", ""},
    {"expert-tensor-parallel-size", kParallel, kShaped, "RANKS", ranks(&o.expert_tensor_parallel_size), "ranks that share each expert's columns, each of which gets all of its rows; Megatron-LM's default is the tensor-parallel size", ""},
    {"moe-token-dispatcher-type", kParallel, kShaped, "NAME", choice(&o.moe_token_dispatcher_type, {"auto", "alltoall", "allgather", "flex"}), "how rows reach the ranks of their experts: alltoall sends each to the ranks that it chose, allgather all to all, with flex GPUs read them out of each other's memory; auto: flex where they can, else alltoall. The same bits; without ranks that share experts no effect", ""},
    {"moe-expert-rank-capacity-factor", kParallel, kShaped, "X", real(&o.moe_expert_rank_capacity_factor, {0, kInfinity, true, true}), "room of a rank for rows of others, over their number when all experts are chosen alike; a step that needs more is done again with more room. Without ranks that share experts no effect", ""},
    {"moe-shared-expert-overlap", kParallel, kShaped, "", toggle(&o.moe_shared_expert_overlap), "run the shared expert while rows are on their way; without ranks that share experts no effect", ""},
    {"context-parallel-size", kParallel, kShaped, "RANKS", ranks(&o.context_parallel_size), "ranks that share each sequence, whose length must be a multiple of twice this", ""},
    {"cp-comm-type", kParallel, kShaped, "NAME", choice(&o.cp_comm_type, {"p2p", "a2a", "all_gather"}), "how these ranks exchange keys and values: p2p passes them around while attention computes, a2a exchanges heads for tokens before and after attention, all_gather gathers them before it", ""},
    {"use-distributed-optimizer", kParallel, kShaped, "", toggle(&o.use_distributed_optimizer), "ZeRO-1: each data-parallel rank holds and updates its share of main parameters and moments; gradients are reduce-scattered, weights gathered; means --data-parallel-sharding-strategy optim", ""},
    {"data-parallel-sharding-strategy", kParallel, kShaped, "NAME", choice(&o.data_parallel_sharding_strategy, {"auto", "no_shard", "optim", "optim_grads", "optim_grads_params"}), "what each data-parallel rank holds only its share of: nothing; main parameters and moments; gradients too; weights too (FSDP); auto: optim with --use-distributed-optimizer, else no_shard", ""},
    {"expert-data-parallel-sharding-strategy", kParallel, kShaped, "NAME", choice(&o.expert_data_parallel_sharding_strategy, {"auto", "no_shard", "optim", "optim_grads", "optim_grads_params"}), "the same of experts, over the ranks that hold the same ones; auto: as --data-parallel-sharding-strategy. Such as optim_grads_params beside optim, where experts are most of the model", ""},
    {"use-megatron-fsdp", kParallel, kShaped, "", toggle(&o.use_megatron_fsdp), "taken as Megatron-LM's command lines have it, and changes nothing: --data-parallel-sharding-strategy says what is sharded", ""},
    {"fsdp-double-buffer", kParallel, kShaped, "", toggle(&o.fsdp_double_buffer), "taken as Megatron-LM's command lines have it, and changes nothing: whole units are always in buffers at fixed addresses", ""},
    {"fsdp-unit-slots", kParallel, kShaped, "N", integer(&o.fsdp_unit_slots, {1, 10'000}), "with optim_grads or optim_grads_params: buffers that the units, each a layer, are whole in by turns; more let gathers and reductions run further apart from the layers, and take memory", ""},
    {"fsdp-gradient-slots", kParallel, kShaped, "N", integer(&o.fsdp_gradient_slots, {0, 10'000}), "with optim_grads, or optim_grads_params that reduces gradients each microbatch: buffers for gradients of whole units; 0: --fsdp-unit-slots. 1 saves memory, and the next unit's gradients wait until these are reduced", ""},
    {"fsdp-prefetch", kParallel, kShaped, "UNITS", integer(&o.fsdp_prefetch, {0, 10'000}), "with optim_grads_params: units whose weights are gathered ahead of the one in use, experts apart from others; less than --fsdp-unit-slots", ""},
    {"fsdp-reduce-grads", kParallel, kShaped, "NAME", choice(&o.fsdp_reduce_grads, {"each", "last"}), "with optim_grads_params: reduce-scatter gradients after each microbatch, or only after a step's last, until when they are whole, with the numbers of optim", ""},
    {"fsdp-embedding-and-head", kParallel, kShaped, "NAME", choice(&o.fsdp_embedding_and_head, {"auto", "sharded", "whole"}), "with optim_grads_params: are embedding and output layer sharded as layers are, or held whole as with optim, which saves their gathers; auto: whole where memory suffices or shards would need no less, and with --deterministic-mode", ""},
    {"num-distributed-optimizer-instances", kParallel, kShaped, "N", ranks(&o.num_distributed_optimizer_instances), "with a strategy that shards: groups of neighbouring data-parallel ranks, each of which holds all shares; gradients are reduce-scattered within a group and then summed over the groups, weights are gathered within a group", ""},
    {"outer-dp-sharding-strategy", kParallel, kShaped, "NAME", choice(&o.outer_dp_sharding_strategy, {"no_shard", "optim"}), "with optim_grads_params and --num-distributed-optimizer-instances above 1: optim shares out main parameters, moments and their update over these groups too, with the same bits", ""},
    {"overlap-grad-reduce", kParallel, kShaped, "", toggle(&o.overlap_grad_reduce), "reduce gradients over the data-parallel ranks in buckets while backward runs; otherwise all at once after it", ""},
    {"overlap-param-gather", kParallel, kShaped, "", toggle(&o.overlap_param_gather), "with --use-distributed-optimizer and --overlap-grad-reduce: gather the updated weights in buckets while the next forward runs; otherwise before the step ends", ""},
    {"ddp-bucket-size", kParallel, kShaped, "N", integer(&o.ddp_bucket_size, {1, kMany}), "with --overlap-grad-reduce: parameters per bucket", ""},
    {"distributed-timeout-minutes", kParallel, kTrain, "MINUTES", integer(&o.distributed_timeout_minutes, {1, 1'000'000}), "a collective that waits longer for its peers ends the run with exit code 7", ""},
    {"comm-timeout", kParallel, kTrain, "SECONDS", real(&o.comm_timeout, {0, 1e8}), "overrides --distributed-timeout-minutes; 0: off", ""},
    {"comm-dump", kParallel, kTrain, "DIR", text(&o.comm_dump), "folder for a JSON file per rank with the last 64 collectives of each group, written when a collective hangs; empty: none", ""},
    {"world-size", kParallel, kPlan, "RANKS", ranks(&o.world_size), "number of ranks to forecast", ""},
  });
}

void add_memory(Table& t, TrainingOptions& o) {
  t.insert(t.end(), {
    {"recompute-granularity", kMemory, kShaped, "NAME", choice(&o.recompute_granularity, {"none", "selective", "full"}), "activations to recompute in backward", ""},
    {"recompute-modules", kMemory, kShaped, "NAME...", list(&o.recompute_modules, {"core_attn", "layernorm", "mlp", "mlp_act", "moe", "moe_act", "shared_experts", "own"}), "with selective: what to recompute; layernorm: norms in front of attention and MLPs; moe: whole layers of experts; own: what layers of your own can make again; moe_act is done without it", "core_attn"},
    {"recompute-method", kMemory, kShaped, "NAME", choice(&o.recompute_method, {"uniform", "block"}), "with full: recompute groups of layers (uniform) or the first layers (block)", ""},
    {"recompute-num-layers", kMemory, kShaped, "N", integer(&o.recompute_num_layers, {0, 10'000}), "with full: layers per group (uniform), layers of each pipeline stage's chunk that are recomputed (block); with selective: the first layers of each chunk, in which the modules are recomputed, to fill memory to the brim; 0 is as if not given", "1; with selective all"},
    {"loss-chunk-size", kMemory, kShaped, "TOKENS", integer(&o.loss_chunk_size, {0, kMany}), "tokens whose logits are held at a time: the output layer and the loss run forward and backward chunk by chunk; 0: all at once", "", kNoted},
    {"cuda-graph-impl", kMemory, kShaped | kGenerateApp, "NAME", choice(&o.cuda_graph_impl, {"none", "local", "transformer_engine", "full_iteration"}), "local: capture runs of the modules below as graphs after the warm-up steps and replay them, on CPU and GPU, with the same bits; transformer_engine means local; full_iteration is refused. generate captures the step that draws a token", "none, of generate local", kFree},
    {"cuda-graph-modules", kMemory, kShaped, "NAME...", list(&o.cuda_graph_modules, {"attn", "mlp", "moe_router", "moe_preprocess", "moe", "own", "layer"}), "with local: what a graph holds: each attention, each MLP, each router of experts, with it (moe_preprocess) the dispatch of rows to their ranks, each layer of experts with its router, each layer of your own (own), or whole layers, as many as stand together", "layer", kFree, false, "cuda-graph-scope"},
    {"cuda-graph-warmup-steps", kMemory, kShaped, "STEPS", integer(&o.cuda_graph_warmup_steps, {1, kMany}), "with local: eager steps of this process before the first capture", "", kFree},
  });
}

void add_logging(Table& t, LoggingOptions& o) {
  t.insert(t.end(), {
    {"log-interval", kLogging, kTrain, "STEPS", integer(&o.log_interval, {1, kMany}), "steps per log line", ""},
    {"log-throughput", kLogging, kTrain, "", toggle(&o.log_throughput), "TFLOP/s per device in the log line", ""},
    {"peak-tflops", kLogging, kTrain, "TFLOPS", real(&o.peak_tflops, {0, 1e6}), "peak rate of a device, for the model FLOPs utilization (MFU) in the log line; 0: with --bf16 the data sheet's value for a known GPU, otherwise no MFU", ""},
    {"metrics-jsonl", kLogging, kTrain, "FILE", text(&o.metrics_jsonl), "one JSON object per step", "none"},
    {"tensorboard-dir", kLogging, kTrain, "DIR", text(&o.tensorboard_dir), "folder for TensorBoard event files", "none"},
    {"print-actions", kLogging, kTrain | kPlan, "", toggle(&o.print_actions), "print each pipeline stage's list of actions in a training step, and exit", ""},
    {"trace", kLogging, kTrain, "FILE", text(&o.trace), "trace of the ops of the steps below, by rank and stream, for Perfetto or chrome://tracing", "none"},
    {"profile", kLogging, kTrain, "", toggle(&o.profile), "with --device cuda: let an attached profiler record the steps below", ""},
    {"profile-step-start", kLogging, kTrain, "STEP", integer(&o.profile_step_start, {1, kMany}), "first step recorded", ""},
    {"profile-step-end", kLogging, kTrain, "STEP", integer(&o.profile_step_end, {1, kMany}), "first step no longer recorded", ""},
    {"profile-ranks", kLogging, kTrain, "RANK...", list(&o.profile_ranks), "ranks to record", "0; with --trace all"},
  });
}

void add_other_programs(Table& t, Options& o) {
  GenerateOptions& g = o.generate;
  t.insert(t.end(), {
    {"prompt", kGenerate, kGenerateApp, "TEXT", text(&g.prompt), "prompt to continue", "empty"},
    {"max-new-tokens", kGenerate, kGenerateApp, "TOKENS", integer(&g.max_new_tokens, {1, kMaxLength}), "length of the continuation", ""},
    {"temperature", kGenerate, kGenerateApp, "X", real(&g.temperature, {0, 1000}), "divides the logits; 0: always take the most likely token", ""},
    {"top-k", kGenerate, kGenerateApp, "N", integer(&g.top_k, {0, kMaxVocab}), "sample from the K most likely tokens; 1: always take the most likely; 0: off", ""},
    {"top-p", kGenerate, kGenerateApp, "P", real(&g.top_p, {0, 1}), "sample from the most likely tokens whose probabilities add up to this; 0: off", ""},
    {"num-samples", kGenerate, kGenerateApp, "N", integer(&g.num_samples, {1, 1024}), "continuations to draw, side by side; each ends with a line of its own", ""},
    {"print-speed", kGenerate, kGenerateApp, "", toggle(&g.print_speed), "print how many tokens a second were drawn, to standard error", ""},
    {"from", kConvert, kConvertApp, "NAME", text(&o.convert.from), "format of --load: hf, a folder of Hugging Face transformers with GPT-2, Llama, Mistral, Qwen2 or Qwen3; native, checkpoints as train saves them", "the other format"},
    {"to", kConvert, kConvertApp, "NAME", text(&o.convert.to), "format of --save", "the other format"},
    {"max-shard-size", kConvert, kConvertApp, "BYTES", integer(&o.convert.max_shard_size, {1, kMany}), "with --to hf: tensors in one file, unless one alone is larger", ""},
    {"ignore-config-keys", kConvert, kConvertApp, "KEY...", list(&o.convert.ignore_config_keys), "with --from hf: keys of config.json that are not read though convert does not know them; they must change neither weights nor arithmetic", "none"},
    {"inputs", kReport, kReportApp, "METRICS.jsonl...", list(&o.report.inputs), "files that train --metrics-jsonl wrote", "required", {}, true},
    {"output", kReport, kReportApp, "FILE", text(&o.report.output), "HTML file to write", "report.html"},
    {"rates", kForecast, kShaped, "FILE", text(&o.forecast.rates), "measured speed of the machine's kernels and links, as tests/bench/rates.sh writes it: adds times to the forecast; train takes it with --fine-grained-activation-offloading", "none", kFree},
    {"suggest", kForecast, kPlan, "", toggle(&o.forecast.suggest), "with --rates: list the fastest layouts of --world-size ranks that fit into device memory, instead of forecasting one", ""},
    {"device-memory-gib", kForecast, kPlan, "GIB", real(&o.forecast.device_memory_gib, {0, 1e6}), "with --suggest: memory of a device; 0: the value in --rates", ""},
    {"html", kForecast, kPlan, "FILE", text(&o.forecast.html), "HTML page to write, with a chart of the schedule", "none"},
    {"json", kForecast, kPlan, "FILE", text(&o.forecast.json), "JSON document to write: memory in bytes by stage and owner, graphs, work, and the step's times with --rates", "none"},
  });
}

void add_testing(Table& t, TrainingOptions& o) {
  t.insert(t.end(), {
    {"check-hazards", kTesting, kTrain, "", toggle(&o.check_hazards), "report unordered conflicting accesses of streams, exit code 9", ""},
    {"suppress-wait", kTesting, kTrain, "N", integer(&o.suppress_wait, {-1, kMany}), "test aid: hide the event wait with this index from --check-hazards; -1: none", ""},
  });
}

void add_program(Table& t, Requests& r) {
  constexpr unsigned kConfigured = kTrain | kGenerateApp | kPlan;
  constexpr unsigned kAll = kConfigured | kReportApp | kConvertApp;
  t.insert(t.end(), {
    {"config", kProgram, kConfigured, "FILE", list(&r.config), "TOML file with flag names as keys; may be repeated: later files override earlier ones, the command line overrides all", "none"},
    {"fault", kProgram, kAll, "SITE:N[:KIND]", list(&r.faults), "test aid: fail the N-th time the program reaches SITE, or with N+ from then on; list: print the sites and their kinds", "none"},
    {"fault-rank", kProgram, kAll, "RANK", integer(&r.fault_rank, {-1, kMaxRanks}), "rank that --fault applies to; -1: all", ""},
    {"allow-faults", kProgram, kAll, "", toggle(&r.allow_faults), "test aid: permit --fault", ""},
    {"print-config", kProgram, kConfigured, "", toggle(&r.print_config), "print every value and its origin as TOML, and exit", ""},
    {"version", kProgram, kAll, "", toggle(&r.version), "print version and commit, and exit", ""},
    {"help", kProgram, kAll, "", toggle(&r.help), "print this text, and exit", ""},
  });
}
// clang-format on

}  // namespace

std::string_view title_of(FlagGroup group) {
  constexpr std::array<std::string_view, 17> kTitles = {
      "model",  "moe",     "own",      "training", "optimizer", "data",     "evaluation", "checkpoint", "parallel",
      "memory", "logging", "generate", "report",   "convert",   "forecast", "testing",    "program"};
  static_assert(kTitles.size() == static_cast<std::size_t>(kProgram) + 1);
  return kTitles[static_cast<std::size_t>(group)];
}

OnLoad on_load(const Flag& flag) {
  if (flag.on_load) return *flag.on_load;
  if (flag.group == kModel || flag.group == kMoe) return kComputes;
  return flag.group == kTraining || flag.group == kOptimizer || flag.group == kData ? kNoted : kFree;
}

std::vector<Flag> make_table(Options& options, Requests& requests) {
  Table table;
  add_model(table, options.model);
  add_moe(table, options.model.moe);
  add_training(table, options.train);
  add_optimizer(table, options.train);
  add_data_and_evaluation(table, options);
  add_checkpoint(table, options.checkpoint);
  add_parallel(table, options.parallel);
  add_memory(table, options.train);
  add_offload(table, options.offload);
  add_logging(table, options.logging);
  add_other_programs(table, options);
  add_testing(table, options.train);
  add_program(table, requests);
  add_own(table, options);  // last, so that a name that is taken is seen
  std::ranges::stable_sort(table, {}, &Flag::group);
  return table;
}

}  // namespace megalith
