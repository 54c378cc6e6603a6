// Flags of Megatron-LM of 2020 to August 2026, and of its preprocess_data, that ask for what is done here.
#include "apps/flags/megatron_flags.h"

namespace megalith {

namespace {

using enum MegatronKind;

constexpr auto kByPrepare = static_cast<unsigned>(App::kPrepare);

constexpr MegatronRow kTakenRows[] = {
    {kTaken, "attention is always one fused kernel with fp32 softmax",
     "use-flash-attn attention-backend=auto|flash|fused|unfused|local attention-softmax-in-fp32 "
     "flash-attention-version=2|3|4"},
    {kTaken, "there is one implementation, fused if that is faster",
     "use-mcore-models use-legacy-models transformer-impl=local|transformer_engine no-masked-softmax-fusion "
     "no-bias-gelu-fusion no-bias-swiglu-fusion no-bias-dropout-fusion no-rope-fusion no-persist-layer-norm "
     "no-gradient-accumulation-fusion no-gradient-reduce-div-fusion no-query-key-layer-scaling "
     "cross-entropy-loss-fusion cross-entropy-fusion-impl=native|te disable-jit-fuser use-te-activation-func "
     "use-fused-weighted-squared-relu "
     "fused-residual-rmsnorm enable-experimental"},
    {kTaken, "experts always run as grouped GEMMs with fused routing and permutation",
     "moe-permute-fusion moe-router-fusion moe-use-grouped-tensor moe-use-legacy-grouped-gemm "
     "moe-single-grouped-weight "
     "moe-single-grouped-bias use-grouped-gemm-for-shared-expert use-grouped-gemm-for-dense-mlp"},
    {kTaken, "--moe-token-dispatcher-type flex reads rows from the memory of other GPUs without a library",
     "moe-flex-dispatcher-backend=deepep|hybridep|ncclep moe-enable-deepep moe-permute-fusion-into-hybridep "
     "moe-hybridep-pad-uneven-dispatch-inputs moe-ncclep-zero-copy moe-flex-dispatcher-num-sms=<int> "
     "moe-deepep-num-sms=<int> moe-hybridep-num-sms=<int> moe-hybridep-num-blocks-permute=<int> "
     "moe-hybridep-num-blocks-unpermute=<int> moe-hybridep-num-sms-preprocessing=<int>"},
    {kTaken, "rows of experts travel in bf16", "moe-dispatch-fwd-dtype=bf16 moe-combine-bwd-dtype=bf16"},
    {kTaken, "gradients are summed in fp32, the default of --main-grads-dtype",
     "accumulate-allreduce-grads-in-fp32 fp32-allreduce megatron-fsdp-main-grads-dtype=auto|fp32"},
    {kTaken, "main parameters are always fp32", "main-params-dtype=fp32 megatron-fsdp-main-params-dtype=auto|fp32"},
    {kTaken, "--main-grads-dtype, --exp-avg-dtype and --exp-avg-sq-dtype act without it",
     "use-precision-aware-optimizer"},
    {kTaken, "bf16 and fp32 need no loss scale",
     "loss-scale=0|1 initial-loss-scale=<number> min-loss-scale=<number> loss-scale-window=<number> hysteresis=<int>"},
    {kTaken, "messages are those of NCCL between GPUs and of MPI between CPUs",
     "distributed-backend=nccl pipeline-model-parallel-comm-backend=nccl tp-comm-bootstrap-backend=nccl|mpi|gloo "
     "use-ring-exchange-p2p no-overlap-p2p-communication overlap-p2p-communication-warmup-flush "
     "create-all-gather-group no-delay-grad-reduce no-align-grad-reduce no-align-param-gather "
     "no-scatter-gather-tensors-in-pipeline"},
    {kTaken, "ops on a GPU always have NVTX ranges", "nvtx-ranges"},
    {kTaken, "mpirun numbers the ranks", "local-rank=<int> lazy-mpu-init disable-gloo-process-groups"},
    {kTaken, "buffers of messages are planned before the first step and registered where that helps",
     "use-nccl-ub disable-symmetric-registration fsdp-manual-registration use-contiguous-buffers-in-ddp "
     "no-contiguous-buffers-in-local-ddp DDP-impl=local|torch ddp-pad-buckets-for-high-nccl-busbw "
     "ddp-num-buckets=<int> ddp-average-in-collective suggested-communication-unit-size=<int> "
     "fsdp-db-use-persist-buf-on-alloc-fail megatron-fsdp-version=1|2 megatron-fsdp-enable-fine-grained-param-gather "
     "megatron-fsdp-max-pool-double-buffer fsdp-all-gather-in-start-param-sync "
     "no-clone-scatter-output-in-embedding init-model-with-meta-device"},
    {kTaken, "only --tp-comm-overlap decides which communication overlaps with GEMMs",
     "no-async-tensor-model-parallel-allreduce tp-comm-overlap-cfg=<text> tp-comm-overlap-rs-dgrad "
     "no-tp-comm-bulk-wgrad no-tp-comm-bulk-dgrad no-tp-comm-overlap-ag no-tp-comm-overlap-rs no-tp-comm-split-ag "
     "no-tp-comm-split-rs"},
    {kTaken, "memory is planned before the first step",
     "empty-unused-memory-level=0|1|2 manual-gc manual-gc-interval=<int> no-manual-gc-eval train-sync-interval=<int> "
     "cuda-graph-share-io-buffers cuda-graph-use-single-mempool cuda-graph-retain-backward-graph"},
    {kTaken, "each offloaded copy has a separate wait, one layer later",
     "fine-grained-offloading-max-inflight-offloads=<int> delay-offload-until-cuda-graph"},
    {kTaken, "--position-embedding-type decides", "no-position-embedding"},
    {kTaken, "checkpoints have one sharded format, independent of the layout, written by all ranks and verified",
     "ckpt-format=torch_dist|torch_dcp|fsdp_dtensor|torch use-dist-ckpt dist-ckpt-format=torch_dist "
     "auto-detect-ckpt-format "
     "ckpt-fully-parallel-save no-ckpt-fully-parallel-save ckpt-fully-parallel-load ckpt-assume-constant-structure "
     "dist-ckpt-strictness=assume_ok_unexpected|log_unexpected|log_all|raise_unexpected|raise_all "
     "dist-ckpt-optim-fully-reshardable distrib-optim-fully-reshardable-mem-efficient verify-integrity "
     "no-ckpt-load-validate-sharding-integrity dist-ckpt-workers=<int> ckpt-drop-redundant-extra-state "
     "ckpt-fully-parallel-load-exchange-algo=broadcast|gather_rounds|gather_object "
     "ckpt-fully-parallel-load-per-rank-objects ckpt-fully-parallel-save-process-group=dp|ep_dp "
     "ckpt-fully-parallel-load-process-group=dp|ep_dp ckpt-pg-tensors-cache-path=<text> ckpt-pg-tensors-cache-create"},
    {kTaken, "--async-save has one writer, a thread of each rank",
     "async-strategy=nvrx|mcore use-persistent-ckpt-worker async-ckpt-cpu-priority=<int> async-ckpt-io-priority=<int> "
     "async-ckpt-use-cpu-shm"},
    {kTaken, "random numbers depend on --seed and the step, not on the layout",
     "no-load-rng no-save-rng data-parallel-random-init use-cpu-initialization no-initialization te-rng-tracker "
     "inference-rng-tracker"},
    {kTaken, "SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGHUP and SIGXCPU always save and end the run",
     "exit-signal-handler exit-signal=SIGINT|SIGTERM|SIGUSR1|SIGUSR2|SIGHUP|SIGXCPU exit-signal-handler-for-training "
     "exit-signal-handler-for-dataloader"},
    {kTaken, "--load without a checkpoint ends the run, unless --save is the same folder",
     "exit-on-missing-checkpoint"},
    {kTaken, "steps with NaN or Inf are always skipped and rerun once, and --max-skipped-steps limits them",
     "no-check-for-nan-in-loss-and-grad rerun-mode=disabled|validate_results error-injection-rate=0 "
     "error-injection-type=correct_result|transient_error|persistent_error"},
    {kTaken, "data files are memory-mapped and need no workers and no cache",
     "num-workers=<int> data-cache-path=<text> data-impl=mmap|infer mmap-warmup no-mmap-bin-files "
     "no-create-attention-mask-in-dataloader num-dataset-builder-threads=<int> dataloader-fast-cache-load "
     "dataloader-defer-npy-index-mmap disable-msc"},
    {kTaken, "samples always have the order of type single, and no token is left out of the loss as padding",
     "dataloader-type=single mid-level-dataset-surplus=0.005 sample-rate=1 allow-ambiguous-pad-tokens"},
    {kTaken, "the flags of the schedule always override the checkpoint's",
     "override-opt-param-scheduler override-lr-scheduler"},
    {kTaken, "tokenizer files are read without executing their code",
     "trust-remote-code tokenizer-hf-no-use-fast legacy-tokenizer"},
    {kTaken, "ids are the same without special tokens of the command line", "tokenizer-sentencepiece-legacy"},
    {kTaken, "--tensorboard-dir and --metrics-jsonl record every step and memory by owner",
     "tensorboard-queue-size=<int> log-timers-to-tensorboard log-memory-to-tensorboard log-world-size-to-tensorboard "
     "log-batch-size-to-tensorboard no-log-loss-scale-to-tensorboard log-learning-rate-to-tensorboard "
     "log-validation-ppl-to-tensorboard log-memory-interval=<int> log-device-memory-used "
     "no-barrier-with-level-1-timing"},
    {kTaken, "the log has one level, and --print-config and the checkpoint hold the configuration",
     "logging-level=<int> log-progress config-logger-dir=<text>"},
    {kTaken, "no data is sent to any service",
     "no-one-logger one-logger-project=<text> one-logger-run-name=<text> one-logger-async app-tag-run-name=<text> "
     "app-tag-run-version=<text>"},
    {kTaken, "train has neither reinforcement learning nor a server", "no-rl- no-inference-"},
    {kTaken, "prepare uses all processors, or the number of --workers", "partitions=1", kByPrepare},
    {kTaken, "documents keep their text and order", "keep-newlines keep-sequential-samples dataset-impl=mmap",
     kByPrepare},
    {kTaken, "progress is printed by time", "log-interval=<int>", kByPrepare},
};

constexpr MegatronRow kSpellingRows[] = {
    {kSpelling, "--position-embedding-type rope", "use-rotary-position-embeddings"},
    {kSpelling, "--norm-epsilon {}", "layernorm-epsilon=<number>"},
    {kSpelling, "--num-layers {}", "encoder-num-layers=<int>"},
    {kSpelling, "--seq-length {}", "encoder-seq-length=<int>"},
    {kSpelling, "--num-query-groups 1", "multi-query-attention"},
    {kSpelling, "--activation-func gelu_tanh", "openai-gelu"},
    {kSpelling, "--recompute-granularity selective", "recompute-activations"},
    {kSpelling, "--recompute-granularity selective --recompute-modules moe", "moe-layer-recompute"},
    {kSpelling, "--cuda-graph-impl local", "enable-cuda-graph external-cuda-graph"},
    {kSpelling, "--use-megatron-fsdp", "use-custom-fsdp"},
    {kSpelling, "--data-parallel-sharding-strategy optim_grads_params", "use-torch-fsdp2"},
    {kSpelling, "--outer-dp-sharding-strategy optim", "enable-full-sharding-in-hsdp"},
    {kSpelling, "--check-weight-hash-interval {}", "check-weight-hash-across-dp-replicas-interval=<int>"},
    {kSpelling, "--save-interval {}", "persistent-save-interval=<int>"},
    {kReplaced, "use --micro-batch-size", "batch-size"},
    {kReplaced, "use --tensor-model-parallel-size", "model-parallel-size"},
    {kReplaced, "use --lr-warmup-iters or --lr-warmup-fraction", "warmup"},
    {kReplaced, "use --recompute-granularity full", "checkpoint-activations"},
    {kReplaced, "use --recompute-num-layers", "checkpoint-num-layers"},
    {kReplaced, "use --expert-tensor-parallel-size", "moe-extended-tp"},
};

}  // namespace

std::span<const MegatronRow> megatron_taken() { return kTakenRows; }
std::span<const MegatronRow> megatron_spellings() { return kSpellingRows; }

}  // namespace megalith
