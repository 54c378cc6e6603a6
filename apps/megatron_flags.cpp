#include "apps/megatron_flags.h"

#include <algorithm>
#include <string>

namespace megalith {

namespace {

struct Names {
  std::string_view note;
  std::string_view names;  // between blanks; one that ends in a dash stands for all that begin with it
};

// Of Megatron-LM from 2020 to August 2026, and of its preprocess_data; those of deeper trees by their first word.
constexpr Names kNames[] = {
    {"attention is always one fused kernel whose softmax is fp32: leave it out",
     "use-flash-attn attention-backend attention-softmax-in-fp32 flash-attention-version"},
    {"there is one implementation, fused where that is faster: leave it out",
     "use-mcore-models use-legacy-models transformer-impl no-masked-softmax-fusion no-bias-gelu-fusion "
     "no-bias-swiglu-fusion no-bias-dropout-fusion no-rope-fusion no-persist-layer-norm "
     "no-gradient-accumulation-fusion no-gradient-reduce-div-fusion no-query-key-layer-scaling "
     "cross-entropy-loss-fusion cross-entropy-fusion-impl disable-jit-fuser use-te-activation-func DDP-impl "
     "use-contiguous-buffers-in-ddp no-contiguous-buffers-in-local-ddp"},
    {"--main-grads-dtype fp32 is the default: leave it out", "accumulate-allreduce-grads-in-fp32 fp32-allreduce"},
    {"use --main-grads-dtype bf16", "grad-reduce-in-bf16"},
    {"main parameters are always fp32: leave it out", "main-params-dtype"},
    {"--main-grads-dtype, --exp-avg-dtype and --exp-avg-sq-dtype act without it: leave it out",
     "use-precision-aware-optimizer"},
    {"use --bf16", "fp16"},
    {"bf16 and fp32 need no loss scale: leave it out",
     "loss-scale initial-loss-scale min-loss-scale loss-scale-window hysteresis"},
    {"it follows from --device: leave it out", "distributed-backend pipeline-model-parallel-comm-backend"},
    {"mpirun tells ranks apart: leave it out", "local-rank lazy-mpu-init disable-gloo-process-groups"},
    {"use --position-embedding-type", "use-rotary-position-embeddings no-position-embedding"},
    {"use --norm-epsilon", "layernorm-epsilon"},
    {"use --num-layers", "encoder-num-layers decoder-num-layers"},
    {"use --seq-length", "encoder-seq-length decoder-seq-length"},
    {"use --num-query-groups 1", "multi-query-attention"},
    {"use --activation-func gelu_tanh, the default", "openai-gelu"},
    {"use --micro-batch-size", "batch-size"},
    {"use --tensor-model-parallel-size", "model-parallel-size"},
    {"use --lr-warmup-iters or --lr-warmup-fraction", "warmup"},
    {"use --lr-warmup-iters: samples / --global-batch-size", "lr-warmup-samples"},
    {"use --lr-decay-iters: samples / --global-batch-size", "lr-decay-samples"},
    {"use --lr-wsd-decay-iters: samples / --global-batch-size", "lr-wsd-decay-samples"},
    {"use --recompute-granularity selective", "recompute-activations"},
    {"use --recompute-granularity full", "checkpoint-activations"},
    {"use --recompute-num-layers", "checkpoint-num-layers"},
    {"use --ddp-bucket-size", "ddp-num-buckets"},
    {"use --check-weight-hash-interval", "check-weight-hash-across-dp-replicas-interval"},
    {"use --config with a TOML file", "yaml-cfg"},
    {"use --load with --finetune", "pretrained-checkpoint"},
    {"use --keep-last", "save-retain-interval"},
    {"use --trace", "use-pytorch-profiler timing-log-level timing-log-option"},
    {"there is one format of checkpoints, whole and written by all ranks: leave it out",
     "ckpt-format use-dist-ckpt dist-ckpt-format auto-detect-ckpt-format ckpt-fully-parallel-save "
     "no-ckpt-fully-parallel-save ckpt-fully-parallel-load ckpt-assume-constant-structure dist-ckpt-strictness "
     "dist-ckpt-optim-fully-reshardable"},
    {"random numbers follow from --seed and the step, whatever the layout: leave it out",
     "no-load-rng no-save-rng data-parallel-random-init use-cpu-initialization te-rng-tracker"},
    {"SIGINT, SIGTERM and SIGUSR1 always save and end the run: leave it out", "exit-signal-handler"},
    {"--load without a checkpoint ends the run, unless --save names the same folder: leave it out",
     "exit-on-missing-checkpoint"},
    {"a step with NaN or Inf always changes nothing, --max-skipped-steps bounds them: leave it out",
     "no-check-for-nan-in-loss-and-grad"},
    {"data are mapped and need no workers and no cache: leave it out",
     "num-workers data-cache-path data-impl mmap-warmup no-mmap-bin-files "
     "no-create-attention-mask-in-dataloader num-dataset-builder-threads"},
    {"samples always come in the order of single: leave it out", "dataloader-type"},
    {"use --data-path with --split", "train-data-path valid-data-path test-data-path"},
    {"use --vocab-size and --make-vocab-size-divisible-by", "padded-vocab-size"},
    {"use --make-vocab-size-divisible-by 1", "no-pad-vocab-size disable-pad-vocab-size"},
    {"checkpoints are always verified: leave it out", "verify-integrity"},
    {"the flags of the schedule always win over the checkpoint's: leave it out",
     "override-opt-param-scheduler override-lr-scheduler"},
    {"no code of a tokenizer is executed: leave it out", "trust-remote-code"},
    {"memory is planned before the first step: leave it out",
     "empty-unused-memory-level manual-gc manual-gc-interval no-manual-gc-eval disable-manual-gc-eval"},
    {"--tensorboard-dir and --metrics-jsonl have every step, with memory by owner: leave it out",
     "tensorboard-log-interval tensorboard-queue-size log-timers-to-tensorboard log-memory-to-tensorboard "
     "log-world-size-to-tensorboard log-batch-size-to-tensorboard log-loss-scale-to-tensorboard "
     "log-validation-ppl-to-tensorboard log-memory-interval log-device-memory-used"},
    {"nothing is sent anywhere: leave it out", "no-one-logger enable-one-logger"},
    {"--tp-comm-overlap alone lets communication and GEMMs overlap: leave it out",
     "no-async-tensor-model-parallel-allreduce"},
    {"one thread prepares: leave it out", "workers partitions find-optimal-num-workers workers-to-check"},
    {"documents keep their text and order: leave it out", "keep-newlines keep-sequential-samples"},
    {"",
     "bert- biencoder- dino- dsa- fault-injector- fim- flight-recorder- fp4- fp8- gdp- grpo- gtp- hybrid- indexer- "
     "inference- inprocess- kitchen- langrl- logits- mamba- megatron-fsdp- mhc- moe- mtp- muon- mup- one-logger- otel- "
     "retriever- retro- rl- straggler- vision- wandb- "
     "activation-func-clamp-value activation-offload-fraction adlr-autoresume adlr-autoresume-interval "
     "allow-ambiguous-pad-tokens app-tag-run-name app-tag-run-version apply-layernorm-1p apply-query-key-layer-scaling "
     "apply-residual-connection-post-layernorm apply-wd-to-qk-layernorm async-ckpt-cpu-priority async-ckpt-io-priority "
     "async-ckpt-use-cpu-shm async-indexer async-strategy attention-output-gate batch-invariant-backend "
     "batch-invariant-mode block-data-path block-index-path block-top-k cache-mla-latents calc-ft-timeouts "
     "calculate-per-token-loss chat-template check-for-large-grads check-for-spiky-loss ckpt-convert-format "
     "ckpt-convert-save ckpt-convert-update-legacy-dist-opt-format ckpt-drop-redundant-extra-state "
     "ckpt-fully-parallel-load-exchange-algo ckpt-fully-parallel-load-per-rank-objects "
     "ckpt-fully-parallel-load-process-group ckpt-fully-parallel-save-process-group ckpt-pg-tensors-cache-create "
     "ckpt-pg-tensors-cache-path classes-fraction config-logger-dir cpu-offloading-num-layers "
     "cpu-offloading-retain-pinned-cpu-buffers create-all-gather-group cuda-graph-impl cuda-graph-modules "
     "cuda-graph-scope cuda-graph-warmup-steps data-args-path data-parallel-sharding-strategy data-per-class-fraction "
     "dataloader-defer-npy-index-mmap dataloader-fast-cache-load dataloader-inter-document-masking "
     "ddp-average-in-collective ddp-pad-buckets-for-high-nccl-busbw "
     "ddp-param-name-patterns-for-fp32-local-accumulation ddp-reduce-scatter-with-fp32-accumulation "
     "decode-only-cuda-graphs decoupled-lr decoupled-min-lr decrease-batch-size-if-needed "
     "defer-embedding-wgrad-compute delay-offload-until-cuda-graph delay-param-gather delay-wgrad-compute "
     "delta-offload-bytes-across-pp-ranks disable-align-grad-reduce disable-bf16-reduced-precision-matmul "
     "disable-chunked-prefill disable-ckpt-load-validate-sharding-integrity disable-clone-scatter-output-in-embedding "
     "disable-dsa-indexer-rotate-activation disable-dsa-indexer-scoring-relu disable-flight-recorder-dump-on-timeout "
     "disable-flight-recorder-extra-dump-on-exec disable-flight-recorder-include-only-active disable-fp8-wgrad "
     "disable-log-loss-scale-to-tensorboard disable-mamba-mem-eff-path disable-msc disable-save-tokenizer-assets "
     "disable-straggler-on-startup disable-strict-fsdp-dtensor-load disable-symmetric-registration "
     "disable-tokenizer-sentencepiece-ignore-extra-whitespaces disable-tp-comm-bulk-dgrad disable-tp-comm-bulk-wgrad "
     "disable-tp-comm-overlap-ag disable-tp-comm-overlap-rs disable-tp-comm-split-ag disable-tp-comm-split-rs "
     "disable-use-tokenizer-model-from-checkpoint-args dist-ckpt-save-pre-mcore-014 dist-ckpt-workers "
     "distrib-optim-fully-reshardable-mem-efficient distribute-checkpointed-activations distribute-saved-activations "
     "distributed-timeout-seconds-after-init dump-param-to-param-group-map embedding-init-method-std embedding-path "
     "enable-chunked-prefill enable-cuda-graph enable-experimental enable-ft-package enable-full-sharding-in-hsdp "
     "enable-mhc-connections enable-msc encoder-pipeline-model-parallel-size encoder-tensor-model-parallel-size "
     "end-weight-decay eod-mask-loss ep-overlap-early-attn-memory-release error-injection-rate error-injection-type "
     "eval-global-batch-size eval-micro-batch-size evidence-data-path exit-signal exit-signal-handler-for-dataloader "
     "exit-signal-handler-for-training experimental-attention-variant expert-tensor-parallel-num-weight-shards "
     "expert-tensor-parallel-size external-cuda-graph faiss-use-gpu fake-process-group "
     "fine-grained-activation-offloading fine-grained-offloading-max-inflight-offloads first-last-layers-bf16 "
     "flash-decode fp16-lm-cross-entropy fp32-residual-connection freeze-all-layers "
     "fsdp-db-use-persist-buf-on-alloc-fail fsdp-double-buffer fsdp-manual-registration ft-num-warmup-iters "
     "full-validation fused-residual-rmsnorm glu-linear-offset gpu-sniff-test-interval head-lr-mult "
     "heterogeneous-layers-config-encoded-json heterogeneous-layers-config-path hierarchical-context-parallel-sizes "
     "high-priority-a2a-comm-stream high-priority-stream-groups ict-head-size ict-load img-dim img-h img-w "
     "init-method-xavier-uniform init-model-with-meta-device is-hybrid-model iter-per-epoch iterations-to-skip "
     "keep-fp8-transpose-cache keep-fp8-transpose-cache-when-using-custom-fsdp kv-lora-rank lang legacy-tokenizer "
     "linear-attention-freq linear-conv-kernel-dim linear-key-head-dim linear-num-key-heads linear-num-value-heads "
     "linear-value-head-dim lion-beta1 lion-beta2 load-main-params-from-ckpt log-energy log-max-attention-logit "
     "log-num-zeros-in-grad log-params-norm log-progress log-straggler logging-level mask-factor mask-prob mask-type "
     "max-documents max-seqlen-per-dp-cp-rank max-tokens-to-oom max-training-rank memory-snapshot-path "
     "microbatch-group-size-per-virtual-pipeline-stage mid-level-dataset-surplus min-offloaded-tensor-size min-scale "
     "mla-down-proj-fusion mlp-chunks-for-prefill mlp-chunks-for-training mrope-section mscale mscale-all-dim "
     "multi-latent-attention multiple-validation-sets nccl-all-reduce-for-prefill nccl-communicator-config-path "
     "no-align-grad-reduce no-align-param-gather no-barrier-with-level-1-timing "
     "no-ckpt-load-validate-sharding-integrity no-clone-scatter-output-in-embedding no-data-sharding "
     "no-delay-grad-reduce no-dsa-indexer-rotate-activation no-dsa-indexer-scoring-relu "
     "no-flight-recorder-dump-on-timeout no-flight-recorder-extra-dump-on-exec no-flight-recorder-include-only-active "
     "no-fp8-wgrad no-initialization no-log-learnig-rate-to-tensorboard no-log-loss-scale-to-tensorboard "
     "no-overlap-p2p-communication no-pin-cpu-grads no-pin-cpu-params no-rope-freq no-save-optim "
     "no-save-tokenizer-assets no-scatter-gather-tensors-in-pipeline no-strict-fsdp-dtensor-load "
     "no-tokenizer-sentencepiece-ignore-extra-whitespaces no-tp-comm-bulk-dgrad no-tp-comm-bulk-wgrad "
     "no-tp-comm-overlap-ag no-tp-comm-overlap-rs no-tp-comm-split-ag no-tp-comm-split-rs "
     "no-use-layer-wise-param-layout no-use-tokenizer-model-from-checkpoint-args no-weight-decay-cond-type "
     "no-yarn-correction-range-round-to-int non-persistent-ckpt-type non-persistent-global-ckpt-dir "
     "non-persistent-local-ckpt-algo non-persistent-local-ckpt-dir non-persistent-save-interval null-tokenizer-eod-id "
     "null-tokenizer-pad-id num-channels num-classes num-distributed-optimizer-instances num-experts "
     "num-layers-at-end-in-bf16 num-layers-at-start-in-bf16 num-speculative-tokens num-unique-layers nvtx-ranges "
     "object-storage-cache-path onnx-safe optimizer-cpu-offload optimizer-cuda-graph optimizer-offload-fraction "
     "outer-dp-sharding-strategy output-bert-embeddings output-logit-dtype overlap-cpu-optimizer-d2h-h2d "
     "overlap-dispatch-backward-with-experts-wgrad overlap-moe-expert-parallel-comm "
     "overlap-p2p-communication-warmup-flush overlap-param-gather-with-optimizer-step override-ckpt-iteration "
     "param-sharing-style patch-dim per-dataset-sequences-path per-split-data-args-path perform-rl-step "
     "persistent-save-interval phase-transition-iterations pipeline-model-parallel-split-rank "
     "pytorch-profiler-collect-callstack pytorch-profiler-collect-chakra pytorch-profiler-collect-shapes q-lora-rank "
     "qk-clip qk-clip-alpha qk-clip-threshold qk-head-dim qk-l2-norm qk-pos-emb-head-dim query-in-block-prob "
     "quick-geglu rampup-batch-size record-memory-history record-shapes refit-method relative-attention-max-distance "
     "relative-attention-num-buckets renormalize-blend-weights replication replication-factor replication-jump "
     "rerun-mode reset-attention-mask reset-position-ids result-rejected-tracker-filename "
     "reuse-grad-buf-for-mxfp8-param-ag rope-type rotary-interleaved rotary-scaling-factor "
     "rotary-seq-len-interpolation-factor run-workload-inspector-server s3-cache-path sample-rate "
     "save-activations-interval save-dgrads-interval save-params-interval save-tokens-per-expert-interval "
     "save-wgrads-interval sft sft-tokenizer-prompt-format sgd-momentum sharp-enabled-group short-seq-prob "
     "softmax-type spec split-sentences squared-relu standalone-embedding-stage start-eval-at-iter start-weight-decay "
     "step-batch-size-schedule suggested-communication-unit-size swin-backbone-type symmetric-ar-type "
     "te-precision-config-file tensor-parallel-num-weight-shards test-mode tiktoken-num-special-tokens "
     "titles-data-path tokenizer-hf-include-special-tokens tokenizer-hf-no-include-special-tokens "
     "tokenizer-hf-no-use-fast tokenizer-hf-use-fast tokenizer-metadata tokenizer-sentencepiece-legacy "
     "tokenizer-special-tokens torch-fsdp2-no-reshard-after-forward tp-comm-bootstrap-backend tp-comm-overlap-cfg "
     "tp-comm-overlap-rs-dgrad train-sync-interval use-checkpoint-lr-scheduler use-checkpoint-opt-param-scheduler "
     "use-custom-fsdp use-fused-weighted-squared-relu use-gigatoken use-grouped-gemm-for-dense-mlp "
     "use-grouped-gemm-for-shared-expert use-kitchen-attention use-legacy-static-engine use-megatron-fsdp "
     "use-mp-args-from-checkpoint-args use-mup use-nccl-ub use-one-sent-docs use-persistent-ckpt-worker "
     "use-ring-exchange-p2p use-same-sampling-seed-across-dp-ranks use-sharp use-torch-fsdp2 "
     "use-torch-optimizer-for-cpu-offload use-tp-pp-dp-mapping use-transformer-engine-op-fuser v-head-dim "
     "validation-set-names vocab-extra-ids weight-decay-incr-style wgrad-deferral-limit window-attn-skip-freq "
     "window-size yarn-beta-fast yarn-beta-slow yarn-correction-range-round-to-int "
     "yarn-original-max-position-embeddings"},
};

bool stands_for(std::string_view entry, std::string_view name) {
  return entry.ends_with('-') ? name.starts_with(entry) : name == entry;
}

bool contains(std::string_view names, std::string_view name) {
  while (!names.empty()) {
    const std::size_t end = std::min(names.find(' '), names.size());
    if (stands_for(names.substr(0, end), name)) return true;
    names.remove_prefix(std::min(end + 1, names.size()));
  }
  return false;
}

}  // namespace

std::optional<std::string_view> note_on_megatron_flag(std::string_view name) {
  std::string dashed(name);
  std::replace(dashed.begin(), dashed.end(), '_', '-');
  for (const Names& entry : kNames) {
    if (contains(entry.names, dashed)) return entry.note;
  }
  return std::nullopt;
}

}  // namespace megalith
