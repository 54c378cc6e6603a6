// Features of Megatron-LM of 2020 to August 2026 that do not exist here, and their flags. A feature that is built loses
// its row, and its flags get rows in the table of flags.
#include "apps/flags/megatron_flags.h"

namespace megalith {

namespace {

using enum MegatronKind;

constexpr MegatronRow kFeatureRows[] = {
    // Model.
    {kFeature, "multi-latent attention",
     "multi-latent-attention q-lora-rank kv-lora-rank qk-head-dim qk-pos-emb-head-dim v-head-dim cache-mla-latents "
     "mla-down-proj-fusion"},
    {kFeature, "multi-token prediction",
     "mtp-num-layers=0 mtp-loss-scaling-factor mtp-standalone mtp-use-repeated-layer mtp-detach-heads mtp-hsm mtp-"},
    {kFeature, "YaRN by flags other than --rope-type yarn", "yarn-"},
    {kFeature, "interleaved RoPE", "rotary-interleaved"},
    {kFeature, "layers without RoPE", "no-rope-freq"},
    {kFeature, "multimodal RoPE", "mrope-section"},
    {kFeature, "relative position embeddings", "relative-attention-"},
    {kFeature, "quick GEGLU", "quick-geglu glu-linear-offset=0 activation-func-clamp-value"},
    {kFeature, "interleaved GLU weights", "moe-shared-expert-glu-interleave-size moe-mlp-glu-interleave-size"},
    {kFeature, "L2 norm of queries and keys", "qk-l2-norm"},
    {kFeature, "QK-Clip", "qk-clip qk-clip-"},
    {kFeature, "attention output gate", "attention-output-gate"},
    {kFeature, "softmax with a sink", "softmax-type=vanilla"},
    {kFeature, "query-key layer scaling", "apply-query-key-layer-scaling"},
    {kFeature, "residual connection after the norm", "apply-residual-connection-post-layernorm"},
    {kFeature, "fp32 residual connection", "fp32-residual-connection"},
    {kFeature, "dtype of the logits", "output-logit-dtype"},
    {kFeature, "initialization of the embedding alone", "embedding-init-method-std"},
    {kFeature, "maximal update parametrization", "use-mup mup-"},
    {kFeature, "linear and sparse attention",
     "experimental-attention-variant dsa- no-dsa- disable-dsa- indexer- linear- use-kitchen-attention"},
    {kFeature, "hyper-connections", "enable-mhc-connections mhc-"},
    {kFeature, "Mamba and hybrid models",
     "is-hybrid-model mamba- gdp- disable-mamba-mem-eff-path hybrid-layer-pattern hybrid-override-pattern "
     "hybrid-attention-ratio hybrid-mlp-ratio hybrid-"},
    {kFeature, "layers of different sizes", "heterogeneous-"},
    {kFeature, "custom layer specifications", "spec"},
    {kFeature, "encoder-decoder models",
     "decoder-num-layers decoder-seq-length vocab-extra-ids=0 encoder- pipeline-model-parallel-split-rank "
     "standalone-embedding-stage"},
    {kFeature, "BERT and retrieval models",
     "bert- biencoder- ict- retro- retriever- mask-prob short-seq-prob titles-data-path query-in-block-prob "
     "use-one-sent-docs evidence-data-path block- embedding-path output-bert-embeddings faiss-use-gpu "
     "num-unique-layers "
     "param-sharing-style"},
    {kFeature, "vision models",
     "vision- dino- img- swin-backbone-type num-classes num-channels patch-dim classes-fraction "
     "data-per-class-fraction no-data-sharding head-lr-mult mask-type mask-factor iter-per-epoch min-scale"},
    {kFeature, "ModelOpt", "export- modelopt- teacher-model-config"},
    {kFeature, "ONNX export", "onnx-safe"},
    // Experts.
    {kFeature, "jitter of router inputs", "moe-input-jitter-eps=0"},
    {kFeature, "quantile balancing", "moe-router-quantile-balancing-ema=0"},
    {kFeature, "device-limited routing", "moe-router-topk-limited-devices"},
    {kFeature, "biased routing for benchmarks", "moe-router-force-biased"},
    {kFeature, "weights of experts on their input", "moe-apply-probs-on-input"},
    {kFeature, "latent experts", "moe-latent-size"},
    {kFeature, "upcycling of a dense model", "moe-use-upcycling moe-upcycling-"},
    {kFeature, "replay and traces of routing", "moe-enable-routing-replay moe-routing-trace-"},
    {kFeature, "losses of each MoE layer in the log", "moe-per-layer-logging"},
    {kFeature, "paged stash of experts' activations", "moe-paged-"},
    {kFeature, "early release of attention memory", "ep-overlap-early-attn-memory-release"},
    {kFeature, "MXFP8 messages of experts", "moe-dispatch-fwd-dtype moe-combine-bwd-dtype"},
    // Precision.
    {kFeature, "fp16 training", "fp16 fp16-lm-cross-entropy"},
    {kFeature, "FP8",
     "fp8-format fp8-recipe fp8-param-gather fp8-amax-history-len fp8-amax-compute-algo fp8-margin fp8-interval fp8- "
     "no-fp8-wgrad disable-fp8-wgrad keep-fp8-transpose-cache first-last-layers-bf16 num-layers-at-start-in-bf16 "
     "num-layers-at-end-in-bf16 moe-router-padding-for-quantization moe-router-padding-for-fp8 "
     "te-precision-config-file reuse-grad-buf-for-mxfp8-param-ag kitchen-"},
    {kFeature, "FP4", "fp4-"},
    {kFeature, "fp32 sums in reductions of bf16 gradients",
     "ddp-reduce-scatter-with-fp32-accumulation ddp-param-name-patterns-for-fp32-local-accumulation"},
    {kFeature, "bf16 GEMMs without reduced-precision sums", "disable-bf16-reduced-precision-matmul"},
    {kFeature, "batch-invariant kernels", "batch-invariant-"},
    // Optimizer, schedule and batches.
    {kFeature, "weight decay of QK norms", "apply-wd-to-qk-layernorm no-weight-decay-cond-type"},
    {kFeature, "batch sizes by the number of ranks", "decrease-batch-size-if-needed"},
    {kFeature, "phases of iterations", "phase-transition-iterations"},
    {kFeature, "SGD", "sgd-momentum"},
    {kFeature, "Muon", "muon- no-use-layer-wise-param-layout"},
    {kFeature, "Lion", "lion-"},
    {kFeature, "optimizer on the CPU",
     "optimizer-cpu-offload optimizer-offload-fraction use-torch-optimizer-for-cpu-offload "
     "overlap-cpu-optimizer-d2h-h2d no-pin-cpu-grads no-pin-cpu-params"},
    {kFeature, "CUDA graph of the optimizer", "optimizer-cuda-graph"},
    {kFeature, "map of parameter groups", "dump-param-to-param-group-map"},
    {kFeature, "frozen layers", "freeze-all-layers"},
    {kFeature, "schedule from the checkpoint", "use-checkpoint-opt-param-scheduler use-checkpoint-lr-scheduler"},
    // Parallelism.
    {kFeature, "offload of full layers instead of --fine-grained-activation-offloading",
     "cpu-offloading cpu-offloading-"},
    {kFeature, "offload that differs by stage instead of --offload-modules with layers",
     "delta-offload-bytes-across-pp-ranks=0"},
    {kFeature, "hierarchical context parallelism",
     "hierarchical-context-parallel-sizes hybrid-context-parallel max-seqlen-per-dp-cp-rank"},
    {kFeature, "deferred weight gradient of the embedding", "defer-embedding-wgrad-compute wgrad-deferral-limit=0"},
    {kFeature, "order tp-pp-dp of the ranks", "use-tp-pp-dp-mapping"},
    {kFeature, "weights gathered for each GEMM (GTP)",
     "tensor-parallel-num-weight-shards expert-tensor-parallel-num-weight-shards gtp-"},
    {kFeature, "FSDP without resharding", "torch-fsdp2-no-reshard-after-forward"},
    {kFeature, "parameter gathers in the optimizer step",
     "overlap-param-gather-with-optimizer-step delay-param-gather"},
    {kFeature, "split of recomputed activations over tensor-parallel ranks",
     "distribute-saved-activations distribute-checkpointed-activations"},
    {kFeature, "symmetric-memory all-reduce", "symmetric-ar-type nccl-all-reduce-for-prefill"},
    {kFeature, "SHARP", "use-sharp sharp-enabled-group"},
    {kFeature, "NCCL communicator options",
     "nccl-communicator-config-path high-priority-stream-groups high-priority-a2a-comm-stream"},
    {kFeature, "another timeout after the start", "distributed-timeout-seconds-after-init"},
    {kFeature, "fake process group", "fake-process-group"},
    {kFeature, "chunked MLP", "mlp-chunks-for-training=1 mlp-chunks-for-prefill=1"},
    // Data and tokenizers.
    {kFeature, "YAML files instead of --config", "yaml-cfg"},
    {kFeature, "size of the padded vocabulary instead of --make-vocab-size-divisible-by",
     "padded-vocab-size no-pad-vocab-size disable-pad-vocab-size"},
    {kFeature, "fill-in-the-middle", "fim-"},
    {kFeature, "object storage", "object-storage-cache-path s3-cache-path enable-msc"},
    {kFeature, "data arguments by split",
     "per-split-data-args-path per-dataset-sequences-path renormalize-blend-weights"},
    {kFeature, "samples of a part of the data", "sample-rate"},
    {kFeature, "several validation sets", "multiple-validation-sets validation-set-names"},
    {kFeature, "evaluation with other batches", "eval-global-batch-size eval-micro-batch-size start-eval-at-iter"},
    {kFeature, "SentencePiece's extra white space",
     "no-tokenizer-sentencepiece-ignore-extra-whitespaces "
     "disable-tokenizer-sentencepiece-ignore-extra-whitespaces"},
    {kFeature, "tokenizer options",
     "tokenizer-metadata tokenizer-special-tokens tokenizer-hf-no-include-special-tokens tiktoken-num-special-tokens "
     "null-tokenizer-eod-id null-tokenizer-pad-id use-gigatoken sft-mock- "
     "no-use-tokenizer-model-from-checkpoint-args disable-use-tokenizer-model-from-checkpoint-args"},
    {kFeature, "sentences in prepare", "split-sentences lang"},
    {kFeature, "search for the number of workers", "find-optimal-num-workers workers-to-check max-documents"},
    // Checkpoints.
    {kFeature, "pretrained checkpoint next to --load", "pretrained-checkpoint"},
    {kFeature, "checkpoints without tokenizer files", "no-save-tokenizer-assets disable-save-tokenizer-assets"},
    {kFeature, "checkpoints in memory", "non-persistent-save-interval non-persistent- replication replication-"},
    {kFeature, "conversion of checkpoint formats in train", "ckpt-convert- dist-ckpt-save-pre-mcore-014"},
    {kFeature, "other options of loading",
     "load-main-params-from-ckpt use-mp-args-from-checkpoint-args override-ckpt-iteration no-strict-fsdp-dtensor-load "
     "disable-strict-fsdp-dtensor-load"},
    {kFeature, "files of tensors",
     "save-params-interval save-activations-interval save-tokens-per-expert-interval save-wgrads-interval "
     "save-dgrads-interval"},
    // Logs.
    {kFeature, "statistics of timers other than minmax", "timing-log-option=minmax"},
    {kFeature, "maximal attention logit in the log", "log-max-attention-logit"},
    {kFeature, "energy in the log", "log-energy"},
    {kFeature, "straggler detection", "log-straggler straggler- disable-straggler-on-startup"},
    {kFeature, "workload inspector", "run-workload-inspector-server"},
    {kFeature, "OpenTelemetry", "otel-"},
    {kFeature, "One Logger", "enable-one-logger"},
    {kFeature, "PyTorch profiler instead of --trace", "use-pytorch-profiler pytorch-profiler- record-shapes"},
    {kFeature, "NCCL flight recorder instead of --comm-dump",
     "flight-recorder- no-flight-recorder- disable-flight-recorder-"},
    {kFeature, "memory snapshots", "record-memory-history memory-snapshot-path"},
    // Faults.
    {kFeature, "checks for spikes and large gradients", "check-for-spiky-loss check-for-large-grads check-for-"},
    {kFeature, "statistics of rerun steps", "rerun-mode result-rejected-tracker-filename"},
    {kFeature, "injection of faults", "error-injection-rate fault-injector-"},
    {kFeature, "restart in the process", "inprocess- enable-ft-package calc-ft-timeouts ft-num-warmup-iters"},
    {kFeature, "ADLR autoresume", "adlr-autoresume adlr-autoresume-interval"},
    {kFeature, "GPU sniff tests", "gpu-sniff-test-interval test-mode"},
    // Other programs.
    {kFeature, "inference in train",
     "inference- flash-decode decode-only-cuda-graphs enable-chunked-prefill num-speculative-tokens=0 "
     "use-legacy-static-engine use-same-sampling-seed-across-dp-ranks moe-pad-experts-for-cuda-graph-inference "
     "max-tokens-to-oom max-training-rank"},
    {kFeature, "reinforcement learning", "rl- grpo- langrl- perform-rl-step refit-method"},
    {kFeature, "distillation of logits", "logits-"},
};

// Values of flags that exist here.
constexpr MegatronRow kValueRows[] = {
    {kFeature, "YaRN by flags other than --rope-type yarn", "position-embedding-type=yarn"},
    {kFeature, "multimodal RoPE", "position-embedding-type=mrope"},
    {kFeature, "relative position embeddings", "position-embedding-type=relative"},
    {kFeature, "square root of softplus in routers", "moe-router-score-function=sqrtsoftplus"},
    {kFeature, "Sinkhorn routing", "moe-router-load-balancing-type=sinkhorn"},
    {kFeature, "quantile balancing", "moe-router-load-balancing-type=quantile_balancing"},
    {kFeature, "SGD", "optimizer=sgd"},
    {kFeature, "Muon", "optimizer=muon|dist_muon|adaptive_muon"},
    {kFeature, "Lion", "optimizer=lion"},
    {kFeature, "SOAP", "optimizer=soap"},
    {kFeature, "8-bit and fp16 moments", "exp-avg-dtype=fp16|fp8 exp-avg-sq-dtype=fp16|fp8"},
    {kFeature, "fp16 gradients", "main-grads-dtype=fp16 megatron-fsdp-grad-comm-dtype=fp16"},
    {kFeature, "hierarchical context parallelism", "cp-comm-type=a2a+p2p"},
    {kFeature, "multi-latent attention", "recompute-modules=mla_up_proj"},
    {kFeature, "SentencePiece with added special tokens", "tokenizer-type=SentencePieceTokenizer"},
    {kFeature, "WordPiece tokenizers", "tokenizer-type=BertWordPieceLowerCase|BertWordPieceCase"},
    {kFeature, "multimodal tokenizers", "tokenizer-type=MultimodalTokenizer|NullMultimodalTokenizer"},
    {kFeature, "tokenizers with prompt formats", "tokenizer-type=SFTTokenizer"},
};

}  // namespace

std::span<const MegatronRow> megatron_features() { return kFeatureRows; }
std::span<const MegatronRow> megatron_values() { return kValueRows; }

}  // namespace megalith
