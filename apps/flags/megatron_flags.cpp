#include "apps/flags/unknown_flags.h"

#include <algorithm>
#include <string>

namespace megalith {

namespace {

// Flags of Megatron-LM from 2020 to August 2026 and of its preprocess_data. Those of deeper trees are listed by their
// first word.
constexpr MegatronNote kNotes[] = {
    {"remove it: attention is always one fused kernel with fp32 softmax",
     "use-flash-attn attention-backend attention-softmax-in-fp32 flash-attention-version"},
    {"remove it: there is one implementation, fused if that is faster",
     "use-mcore-models use-legacy-models transformer-impl no-masked-softmax-fusion no-bias-gelu-fusion "
     "no-bias-swiglu-fusion no-bias-dropout-fusion no-rope-fusion no-persist-layer-norm "
     "no-gradient-accumulation-fusion no-gradient-reduce-div-fusion no-query-key-layer-scaling "
     "cross-entropy-loss-fusion cross-entropy-fusion-impl disable-jit-fuser use-te-activation-func DDP-impl "
     "use-contiguous-buffers-in-ddp no-contiguous-buffers-in-local-ddp"},
    {"remove it: --main-grads-dtype fp32 is the default", "accumulate-allreduce-grads-in-fp32 fp32-allreduce"},
    {"remove it: main parameters are always fp32", "main-params-dtype megatron-fsdp-main-params-dtype"},
    {"remove it: --main-grads-dtype, --exp-avg-dtype and --exp-avg-sq-dtype act without it",
     "use-precision-aware-optimizer"},
    {"use --bf16", "fp16"},
    {"remove it: bf16 and fp32 need no loss scale",
     "loss-scale initial-loss-scale min-loss-scale loss-scale-window hysteresis"},
    {"remove it: --device determines it", "distributed-backend pipeline-model-parallel-comm-backend"},
    {"remove it: mpirun numbers the ranks", "local-rank lazy-mpu-init disable-gloo-process-groups"},
    {"use --position-embedding-type", "use-rotary-position-embeddings no-position-embedding"},
    {"use --norm-epsilon", "layernorm-epsilon"},
    {"use --num-layers", "encoder-num-layers decoder-num-layers"},
    {"use --seq-length", "encoder-seq-length decoder-seq-length"},
    {"use --num-query-groups 1", "multi-query-attention"},
    {"use --activation-func gelu_tanh, the default", "openai-gelu"},
    {"use --micro-batch-size", "batch-size"},
    {"use --tensor-model-parallel-size", "model-parallel-size"},
    {"use --lr-warmup-iters or --lr-warmup-fraction", "warmup"},
    {"use --recompute-granularity selective", "recompute-activations"},
    {"use --recompute-granularity full", "checkpoint-activations"},
    {"use --recompute-num-layers", "checkpoint-num-layers"},
    {"use --ddp-bucket-size", "ddp-num-buckets"},
    {"use --fine-grained-activation-offloading with --offload-modules", "cpu-offloading cpu-offloading-"},
    {"remove it: each copy has a separate wait, one layer later", "fine-grained-offloading-max-inflight-offloads"},
    {"remove it: copies start as soon as their slot is written", "delay-offload-until-cuda-graph"},
    {"use --activation-offload-fraction, or layers such as --offload-modules act:0-10",
     "delta-offload-bytes-across-pp-ranks"},
    {"use --cuda-graph-impl local", "enable-cuda-graph external-cuda-graph"},
    {"use --data-parallel-sharding-strategy optim_grads_params", "use-custom-fsdp use-torch-fsdp2"},
    {"use --main-grads-dtype", "megatron-fsdp-main-grads-dtype"},
    {"remove it: a unit is a layer", "suggested-communication-unit-size"},
    {"remove it: buffers are planned before the first step and reused", "fsdp-db-use-persist-buf-on-alloc-fail"},
    {"use --check-weight-hash-interval", "check-weight-hash-across-dp-replicas-interval"},
    {"use --config with a TOML file", "yaml-cfg"},
    {"use --load with --finetune", "pretrained-checkpoint"},
    {"use --trace", "use-pytorch-profiler timing-log-level timing-log-option"},
    {"remove it: there is one checkpoint format, independent of the layout and written by all ranks",
     "ckpt-format use-dist-ckpt dist-ckpt-format auto-detect-ckpt-format ckpt-fully-parallel-save "
     "no-ckpt-fully-parallel-save ckpt-fully-parallel-load ckpt-assume-constant-structure dist-ckpt-strictness "
     "dist-ckpt-optim-fully-reshardable"},
    {"remove it: random numbers depend on --seed and the step, not on the layout",
     "no-load-rng no-save-rng data-parallel-random-init use-cpu-initialization te-rng-tracker"},
    {"remove it: SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGHUP and SIGXCPU always save and end the run",
     "exit-signal-handler"},
    {"remove it: --load without a checkpoint ends the run, unless --save is the same folder",
     "exit-on-missing-checkpoint"},
    {"remove it: steps with NaN or Inf are always skipped, and --max-skipped-steps limits them",
     "no-check-for-nan-in-loss-and-grad"},
    {"remove it: data files are memory-mapped and need no workers and no cache",
     "num-workers data-cache-path data-impl mmap-warmup no-mmap-bin-files "
     "no-create-attention-mask-in-dataloader num-dataset-builder-threads"},
    {"remove it: samples always have the order of type single", "dataloader-type"},
    {"use --vocab-size and --make-vocab-size-divisible-by", "padded-vocab-size"},
    {"use --make-vocab-size-divisible-by 1", "no-pad-vocab-size disable-pad-vocab-size"},
    {"remove it: checkpoints are always verified", "verify-integrity"},
    {"remove it: the flags of the schedule always override the checkpoint's",
     "override-opt-param-scheduler override-lr-scheduler"},
    {"remove it: tokenizer code is never executed", "trust-remote-code"},
    {"remove it: memory is planned before the first step",
     "empty-unused-memory-level manual-gc manual-gc-interval no-manual-gc-eval disable-manual-gc-eval"},
    {"remove it: --tensorboard-dir and --metrics-jsonl record every step and memory by owner",
     "tensorboard-queue-size log-timers-to-tensorboard log-memory-to-tensorboard "
     "log-world-size-to-tensorboard log-batch-size-to-tensorboard log-loss-scale-to-tensorboard "
     "log-validation-ppl-to-tensorboard log-memory-interval log-device-memory-used"},
    {"remove it: no data is sent to any service", "no-one-logger enable-one-logger"},
    {"remove it: only --tp-comm-overlap overlaps communication with GEMMs", "no-async-tensor-model-parallel-allreduce"},
    {"remove it: prepare uses all processors with --sft, and one thread otherwise",
     "workers partitions find-optimal-num-workers workers-to-check"},
    {"remove it: documents keep their text and order", "keep-newlines keep-sequential-samples"},
    {"",
     "app-tag- apply- async-ckpt- batch-invariant- bert- biencoder- block- check-for- ckpt-convert- ckpt-fully- "
     "ckpt-pg- dataloader-defer- dataloader-fast- decoupled- dino- disable-dsa- disable-flight- disable-tp- "
     "dist-ckpt- dsa- enable- encoder- error-injection- exit-signal- fault-injector- fim- "
     "flight-recorder- fp4- fp8- fsdp-all- fsdp-db- fsdp-manual- gdp- grpo- gtp- heterogeneous- "
     "high-priority- hybrid- ict- img- "
     "indexer- inference- inprocess- keep-fp8- kitchen- langrl- linear- lion- logits- mamba- megatron-fsdp-use- mhc- "
     "moe-apply- moe-deepep- moe-enable- moe-extended- moe-flex- moe-hybridep- moe-input- moe-latent- "
     "moe-layer-recompute moe-ncclep- moe-pad-experts- moe-paged- moe-per-layer- moe-permute- moe-router-force-biased "
     "moe-router-fusion moe-router-padding- moe-router-topk-limited-devices "
     "moe-upcycling- moe-use- "
     "mlp-chunks- mscale- mtp- muon- mup- nccl- no-align- no-dsa- no-flight- no-log- no-pin- no-save- no-tp- "
     "no-use- non-persistent- null-tokenizer- one-logger- optimizer- otel- pytorch- qk-clip- relative-attention- "
     "replication- retriever- retro- rl- sft-mock- straggler- tokenizer-hf- use-grouped- use-torch- "
     "vision- wandb- yarn- "
     "activation-func-clamp-value adlr-autoresume adlr-autoresume-interval "
     "allow-ambiguous-pad-tokens async-indexer async-strategy attention-output-gate cache-mla-latents "
     "calc-ft-timeouts ckpt-drop-redundant-extra-state classes-fraction "
     "config-logger-dir create-all-gather-group "
     "data-per-class-fraction ddp-average-in-collective ddp-pad-buckets-for-high-nccl-busbw "
     "ddp-param-name-patterns-for-fp32-local-accumulation ddp-reduce-scatter-with-fp32-accumulation "
     "cuda-graph-retain-backward-graph cuda-graph-share-io-buffers cuda-graph-use-single-mempool "
     "decode-only-cuda-graphs decrease-batch-size-if-needed defer-embedding-wgrad-compute "
     "delay-param-gather "
     "disable-align-grad-reduce disable-bf16-reduced-precision-matmul disable-chunked-prefill "
     "disable-ckpt-load-validate-sharding-integrity disable-clone-scatter-output-in-embedding disable-fp8-wgrad "
     "disable-log-loss-scale-to-tensorboard disable-mamba-mem-eff-path disable-msc disable-save-tokenizer-assets "
     "disable-straggler-on-startup disable-strict-fsdp-dtensor-load disable-symmetric-registration "
     "disable-tokenizer-sentencepiece-ignore-extra-whitespaces disable-use-tokenizer-model-from-checkpoint-args "
     "distrib-optim-fully-reshardable-mem-efficient distribute-checkpointed-activations distribute-saved-activations "
     "distributed-timeout-seconds-after-init dump-param-to-param-group-map embedding-init-method-std embedding-path "
     "end-weight-decay ep-overlap-early-attn-memory-release eval-global-batch-size "
     "eval-micro-batch-size evidence-data-path exit-signal experimental-attention-variant "
     "faiss-use-gpu fake-process-group first-last-layers-bf16 flash-decode fp16-lm-cross-entropy "
     "fp32-residual-connection freeze-all-layers ft-num-warmup-iters fused-residual-rmsnorm "
     "glu-linear-offset gpu-sniff-test-interval head-lr-mult hierarchical-context-parallel-sizes "
     "init-method-xavier-uniform init-model-with-meta-device is-hybrid-model iter-per-epoch iterations-to-skip "
     "kv-lora-rank lang legacy-tokenizer load-main-params-from-ckpt log-energy log-max-attention-logit "
     "log-num-zeros-in-grad log-params-norm log-progress log-straggler logging-level mask-factor mask-prob mask-type "
     "max-documents max-seqlen-per-dp-cp-rank max-tokens-to-oom max-training-rank memory-snapshot-path "
     "microbatch-group-size-per-virtual-pipeline-stage mid-level-dataset-surplus min-scale "
     "mla-down-proj-fusion mrope-section mscale multi-latent-attention multiple-validation-sets "
     "no-barrier-with-level-1-timing no-ckpt-load-validate-sharding-integrity no-clone-scatter-output-in-embedding "
     "no-data-sharding no-delay-grad-reduce no-fp8-wgrad no-initialization no-overlap-p2p-communication no-rope-freq "
     "no-scatter-gather-tensors-in-pipeline no-strict-fsdp-dtensor-load "
     "no-tokenizer-sentencepiece-ignore-extra-whitespaces no-weight-decay-cond-type "
     "no-yarn-correction-range-round-to-int num-channels num-classes "
     "num-layers-at-end-in-bf16 num-layers-at-start-in-bf16 num-speculative-tokens num-unique-layers nvtx-ranges "
     "object-storage-cache-path onnx-safe output-bert-embeddings output-logit-dtype "
     "overlap-cpu-optimizer-d2h-h2d overlap-p2p-communication-warmup-flush "
     "overlap-param-gather-with-optimizer-step override-ckpt-iteration "
     "param-sharing-style patch-dim per-dataset-sequences-path per-split-data-args-path perform-rl-step "
     "persistent-save-interval phase-transition-iterations pipeline-model-parallel-split-rank q-lora-rank qk-clip "
     "qk-head-dim qk-l2-norm qk-pos-emb-head-dim query-in-block-prob quick-geglu "
     "record-memory-history record-shapes refit-method renormalize-blend-weights replication rerun-mode "
     "result-rejected-tracker-filename reuse-grad-buf-for-mxfp8-param-ag "
     "rope-type rotary-interleaved rotary-scaling-factor rotary-seq-len-interpolation-factor "
     "run-workload-inspector-server s3-cache-path sample-rate save-activations-interval save-dgrads-interval "
     "save-params-interval save-tokens-per-expert-interval save-wgrads-interval sgd-momentum sharp-enabled-group "
     "short-seq-prob softmax-type spec split-sentences squared-relu standalone-embedding-stage start-eval-at-iter "
     "start-weight-decay step-batch-size-schedule swin-backbone-type "
     "symmetric-ar-type te-precision-config-file tensor-parallel-num-weight-shards test-mode "
     "tiktoken-num-special-tokens titles-data-path tokenizer-metadata tokenizer-sentencepiece-legacy "
     "tokenizer-special-tokens torch-fsdp2-no-reshard-after-forward tp-comm-bootstrap-backend tp-comm-overlap-cfg "
     "tp-comm-overlap-rs-dgrad train-sync-interval use-checkpoint-lr-scheduler use-checkpoint-opt-param-scheduler "
     "use-fused-weighted-squared-relu use-gigatoken use-kitchen-attention use-legacy-static-engine "
     "use-mp-args-from-checkpoint-args use-mup use-nccl-ub use-one-sent-docs "
     "use-persistent-ckpt-worker use-ring-exchange-p2p use-same-sampling-seed-across-dp-ranks use-sharp "
     "use-tp-pp-dp-mapping v-head-dim validation-set-names vocab-extra-ids "
     "weight-decay-incr-style wgrad-deferral-limit"},
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

std::span<const MegatronNote> megatron_notes() { return kNotes; }

std::optional<std::string_view> note_on_megatron_flag(std::string_view name) {
  std::string dashed(name);
  std::replace(dashed.begin(), dashed.end(), '_', '-');
  for (const MegatronNote& entry : kNotes) {
    if (contains(entry.names, dashed)) return entry.note;
  }
  return std::nullopt;
}

}  // namespace megalith
