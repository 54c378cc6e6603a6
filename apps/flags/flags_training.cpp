// Rows of the flags of training, optimizer, data, evaluation and checkpoints.
#include "apps/config/checkpoint_options.h"
#include "apps/config/data_options.h"
#include "apps/config/optimizer_options.h"
#include "apps/config/training_options.h"
#include "apps/flags/flags_table.h"

#include <tuple>
#include <utility>

namespace megalith {

using enum FlagGroup;
using enum OnLoad;

namespace {

// Value of --grad-reduce-in-bf16. Its row precedes --main-grads-dtype, so that check() sees a contradiction.
Binding bf16_gradients(OptimizerOptions& o) {
  Binding binding = toggle(&o.grad_reduce_in_bf16);
  binding.set = [&o, set = std::move(binding.set)](const std::vector<std::string>& texts) {
    const bool is_valid = set(texts);
    if (o.grad_reduce_in_bf16) o.main_grads_dtype = DType::kBf16;
    return is_valid;
  };
  return binding;
}

Binding loss_mean(TrainingOptions& o) {
  Binding binding = toggle(&o.calculate_per_token_loss);
  binding.set = [&o, set = std::move(binding.set)](const std::vector<std::string>& texts) {
    return o.chooses_loss_mean = set(texts);
  };
  return binding;
}

}  // namespace

void add_training(FlagTable& t, Options& options) {
  TrainingOptions& o = options.train;
  Section training(t, kTraining, kTrainApp);
  training.add("micro-batch-size", "SAMPLES", integer(&o.micro_batch_size, {1, kMaxRanks}),
               "batch size per rank and forward pass", {.apps = kShaped, .example = "4"});
  training.add("global-batch-size", "SAMPLES", integer(&o.global_batch_size, {0, kMany}),
               "batch size per step, over all ranks; 0: derived",
               {.apps = kShaped | kInspectApp,
                .shown = "micro-batch-size x data-parallel size",
                .needs = {{"train-iters", {}, kInspectApp}},
                .example = "32"});
  training.add("train-iters", "STEPS", integer(&o.train_iters, {0, kMany}), "number of training steps",
               {.apps = kTrainApp | kInspectApp,
                .shown = "required",
                .needs = {{"global-batch-size", {}, kInspectApp}, {"samples", {}, kInspectApp}},
                .example = "7"});
  training.add(
      "train-samples", "SAMPLES", integer(&o.train_samples, {0, kMany}),
      "number of training samples, instead of --train-iters; the run ends with the last batch that does not exceed it",
      {.apps = kTrainApp | kInspectApp,
       .shown = "off",
       .needs = {{"global-batch-size", {}, kTrainApp}, {"samples", {}, kInspectApp}},
       .excludes = {{.flag = "train-iters", .apps = kInspectApp}},
       .example = "640"});
  training.add("rampup-batch-size", "START INCREMENT SAMPLES", integers(&o.rampup_batch_size, {1, kMany}, 3),
               "ramp of the batch size from START by INCREMENT, in equal parts of the first SAMPLES samples, to "
               "--global-batch-size. Evaluations use --global-batch-size. Only with --train-samples",
               {.apps = kShaped,
                .shown = "off",
                .needs = {{.flag = "train-samples", .apps = kTrainApp, .got = "--train-iters"}},
                .example = "8 8 100 --global-batch-size 32"});
  training.add("step-batch-size-schedule", "TOKENS:SIZE...", list(&o.step_batch_size_schedule),
               "batch size from each number of trained tokens on, such as 0:16 2.4B:320; K, M, B and T are powers of "
               "1000. The last size is --global-batch-size, which evaluations use. With --train-iters a length in "
               "steps, such as --lr-decay-iters, counts steps of the last size",
               {.apps = kShaped,
                .shown = "off",
                .excludes = {{.flag = "rampup-batch-size"}},
                .example = "0:8 1K:16 --global-batch-size 16"});
  training.add("iterations-to-skip", "STEP...", any_integers(&o.iterations_to_skip, {1, kMany}),
               "steps, from 1, that read their samples and train nothing: no update, no progress of learning rate and "
               "weight decay, no checkpoint and no evaluation",
               {.shown = "none", .example = "5 6"});
  training.add("skip-train", "", toggle(&o.skip_train), "evaluation without training",
               {.on_load = kFree, .needs = {{"eval-iters", "above 0"}}});
  training.add("seed", "N", integer(&o.seed, {0, 4'294'967'295}),
               "random seed of weights, data order, dropout and sampling",
               {.apps = kTrainApp | kGenerateApp | kInspectApp,
                .needs = {{"samples", {}, kInspectApp}},
                .example = "4294967295"});
  training.add("init-method-xavier-uniform", "", toggle(&o.init_method_xavier_uniform),
               "initial weights uniform within sqrt(6 / (inputs + outputs)) of the unsharded matrix, instead of normal "
               "with --init-method-std; without experts",
               {.on_load = kFree});
  training.add(
      "calculate-per-token-loss", "", loss_mean(o),
      "loss as a mean over the trained tokens of the global batch, as losses of routers are weighted. Otherwise "
      "each microbatch has equal weight, which differs if masks leave it fewer tokens",
      {.apps = kShaped});
  training.add("deterministic-mode", "", toggle(&options.deterministic_mode),
               "only kernels with bit-reproducible results (on the CPU all are). The flag also sets "
               "NCCL_GRAPH_REGISTER=0, so that captured graphs sum over ranks with the same bits",
               {.apps = kShaped, .on_load = kFree});
  training.add("exit-interval", "STEPS", integer(&o.exit_interval, {0, kMany}),
               "number of steps; at each multiple the run saves and ends with exit code 75; 0: off",
               {.on_load = kFree, .example = "3"});
  training.add("exit-duration-in-mins", "MINUTES", real(&o.exit_duration_in_mins, {0, 1e7, false, true}),
               "time after which the run saves and ends with exit code 75; 0: off",
               {.on_load = kFree, .example = "0.1"});
  training.add(
      "stop-file", "FILE", text(&o.stop_file),
      "file that stops the run. After the step in which the file appears, train saves and ends with exit code 75. The "
      "file must be a regular file of the user who runs train. train removes it at a stop and when a run completes, "
      "and does not start while it exists. SIGINT, SIGTERM, SIGUSR1 and SIGUSR2 also stop the run; a second one ends "
      "it at once. SIGHUP, SIGXCPU, SIGALRM, SIGVTALRM and SIGPWR also stop the run, however often they arrive",
      {.shown = "none", .on_load = kFree, .example = "stop"});
  training.add("max-skipped-steps", "STEPS", integer(&o.max_skipped_steps, {0, kMany}),
               "number of skipped steps that a run tolerates; one more ends the run with exit code 8. A step with NaN "
               "or Inf in loss or gradients is skipped: it updates nothing and is rerun to locate the first such value",
               {.on_load = kFree, .example = "0"});
  training.add(
      "check-weight-hash-interval", "STEPS", integer(&o.check_weight_hash_interval, {0, kMany}),
      "steps between hash comparisons of weights, main parameters and moments over the data-parallel ranks (with "
      "--use-distributed-optimizer only weights). A rank that differs ends the run with exit code 8. 0: never",
      {.on_load = kFree, .example = "5"});
  training.add("device", "NAME", choice(&options.device, {"cpu", "cuda"}),
               "device that computes; cpu for plan --rates of a CPU",
               {.apps = kTrainApp | kGenerateApp | kEvaluateApp | kPlanApp,
                .shown = "cuda if a GPU is usable or plan has --rates, else cpu",
                .on_load = kFree,
                .of_run = true});
}

void add_optimizer(FlagTable& t, OptimizerOptions& o, LrSchedule& s) {
  const auto dtype = [](DType* field) { return choice(field, {"fp32", "bf16"}); };  // the first two values of DType
  Section optimizer(t, kOptimizer, kTrainApp);
  optimizer.add("optimizer", "NAME", choice(&o.optimizer, {"adam"}),
                "optimizer; adam: Adam with decoupled weight decay", {.apps = kShaped});
  optimizer.add("lr", "X", real(&s.lr, {0, kInfinity}), "peak learning rate, above 0",
                {.shown = "required", .example = "3.3333333333333335e-05"});
  optimizer.add("min-lr", "X", real(&s.min_lr, {0, kInfinity}), "minimum learning rate, at the end of the decay",
                {.example = "1e-9"});
  optimizer.add("decoupled-lr", "X", real(&s.decoupled_lr, {0, kInfinity}),
                "peak learning rate of word embedding and head; 0: that of --lr", {.shown = "--lr", .example = "5e-4"});
  optimizer.add("decoupled-min-lr", "X", real(&s.decoupled_min_lr, {-1, kInfinity}),
                "minimum learning rate of word embedding and head; negative: that of --min-lr",
                {.shown = "--min-lr", .needs = {{"decoupled-lr", "above 0"}}, .example = "1e-5"});
  optimizer.add("lr-decay-style", "NAME",
                choice(&s.lr_decay_style, {"constant", "linear", "cosine", "WSD", "inverse-square-root"}),
                "shape of the learning rate decay", {.example = "inverse-square-root"});
  optimizer.add("lr-decay-iters", "STEPS", integer(&s.lr_decay_iters, {0, kMany}),
                "step at which the decay ends; 0: derived",
                {.shown = "train-iters",
                 .excludes = {{.flag = "train-samples", .remedy = "use --lr-decay-samples with --train-samples"}},
                 .example = "200"});
  optimizer.add(
      "lr-decay-samples", "SAMPLES", integer(&s.lr_decay_samples, {0, kMany}),
      "with --train-samples: sample at which the decay ends; 0: derived",
      {.shown = "train-samples", .needs = {{.flag = "train-samples", .got = "--train-iters"}}, .example = "500"});
  optimizer.add("lr-warmup-iters", "STEPS", integer(&s.lr_warmup_iters, {0, kMany}), "steps of linear warmup",
                {.excludes = {{.flag = "train-samples", .remedy = "use --lr-warmup-samples with --train-samples"}},
                 .example = "10"});
  optimizer.add("lr-warmup-samples", "SAMPLES", integer(&s.lr_warmup_samples, {0, kMany}),
                "with --train-samples: samples of linear warmup",
                {.needs = {{.flag = "train-samples", .got = "--train-iters"}}, .example = "30"});
  optimizer.add("lr-warmup-fraction", "X", real(&s.lr_warmup_fraction, {0, 1, false, true}),
                "warmup as a fraction of --lr-decay-iters or --lr-decay-samples; 0: off", {.example = "0.013"});
  optimizer.add("lr-warmup-init", "X", real(&s.lr_warmup_init, {0, kInfinity}),
                "learning rate at the first step of the warmup", {.example = "1e-7"});
  optimizer.add("lr-wsd-decay-iters", "STEPS", integer(&s.lr_wsd_decay_iters, {0, kMany}),
                "steps of the annealing phase of --lr-decay-style WSD",
                {.shown = "none",
                 .needs = {{"lr-decay-style", "WSD"}},
                 .excludes = {{.flag = "train-samples", .remedy = "use --lr-wsd-decay-samples with --train-samples"}},
                 .example = "9"});
  optimizer.add("lr-wsd-decay-samples", "SAMPLES", integer(&s.lr_wsd_decay_samples, {0, kMany}),
                "with --train-samples: samples of the annealing phase",
                {.shown = "none",
                 .needs = {{.flag = "train-samples", .got = "--train-iters"}, {"lr-decay-style", "WSD"}},
                 .example = "9"});
  optimizer.add("lr-wsd-decay-style", "NAME",
                choice(&s.lr_wsd_decay_style, {"exponential", "linear", "cosine", "minus_sqrt"}),
                "shape of the annealing phase", {.example = "minus_sqrt"});
  optimizer.add("adam-beta1", "X", real(&o.adam_beta1, {0, 1, false, true}), "decay rate of the first moment",
                {.example = "0.8"});
  optimizer.add("adam-beta2", "X", real(&o.adam_beta2, {0, 1, false, true}), "decay rate of the second moment",
                {.example = "0.95"});
  optimizer.add("adam-eps", "X", real(&o.adam_eps, {0, 1, true}),
                "epsilon that is added to the root of the second moment", {.example = "1e-15"});
  optimizer.add("weight-decay", "X", real(&o.weight_decay, {0, kInfinity}),
                "weight decay of matrices; norms and biases have none", {.example = "0"});
  optimizer.add("weight-decay-incr-style", "NAME", choice(&s.weight_decay_incr_style, {"constant", "linear", "cosine"}),
                "change of the weight decay over the run: linear or cosine from --start-weight-decay to "
                "--end-weight-decay, which replaces --weight-decay",
                {.example = "linear --end-weight-decay 0.1"});
  optimizer.add("start-weight-decay", "X", real(&s.start_weight_decay, {0, kInfinity}),
                "weight decay at the start of the run",
                {.needs = {{"weight-decay-incr-style", "linear or cosine"}}, .example = "0.01 --end-weight-decay 0.1"});
  optimizer.add("end-weight-decay", "X", real(&s.end_weight_decay, {0, kInfinity}),
                "weight decay at the end of the run",
                {.needs = {{"weight-decay-incr-style", "linear or cosine"}}, .example = "0.1"});
  optimizer.add("clip-grad", "X", real(&o.clip_grad, {0, kInfinity}),
                "maximum global L2 norm of the gradients; 0: no clipping", {.example = "0.3"});
  optimizer.add("grad-reduce-in-bf16", "", bf16_gradients(o),
                "same as --main-grads-dtype bf16: gradients are reduced, and also summed over microbatches, in bf16",
                {.apps = kShaped, .on_load = kFree, .example = "--bf16"});
  optimizer.add("main-grads-dtype", "NAME", dtype(&o.main_grads_dtype),
                "dtype of the gradients in sums over microbatches and ranks; bf16 requires --bf16",
                {.apps = kShaped, .example = "bf16 --bf16"});
  optimizer.add(
      "megatron-fsdp-grad-comm-dtype", "NAME", choice(&o.megatron_fsdp_grad_comm_dtype, {"auto", "fp32", "bf16"}),
      "with optim_grads, or optim_grads_params and --fsdp-reduce-grads each: dtype of a unit's gradients until they "
      "are reduced. bf16 halves their buffers and the bytes that the links carry; shards keep --main-grads-dtype. If "
      "GPUs read each other's memory, the sums are not rounded either. auto: as --main-grads-dtype",
      {.apps = kShaped, .example = "fp32 --data-parallel-sharding-strategy optim_grads"});
  optimizer.add("exp-avg-dtype", "NAME", dtype(&o.exp_avg_dtype), "dtype of Adam's first moment",
                {.apps = kShaped, .example = "bf16"});
  optimizer.add("exp-avg-sq-dtype", "NAME", dtype(&o.exp_avg_sq_dtype),
                "dtype of Adam's second moment; with bf16, the moment can shrink only if --adam-beta2 is below 0.996",
                {.apps = kShaped, .example = "bf16"});
}

void add_data_and_evaluation(FlagTable& t, Options& o) {
  Section data(t, kData, kTrainApp);
  const FlagTraits of_tokenizer{.on_load = kTokenizer,
                                .needs = {{.flag = "to", .value = "native", .apps = kConvertApp}}};
  Section tokenizer(t, kData, kShaped | kConvertApp | kTexts, of_tokenizer);
  Section files(t, kData, kShaped | kGenerateApp | kEvaluateApp | kConvertApp | kTexts, of_tokenizer);
  Section evaluation(t, kEvaluation, kTrainApp);
  data.add("data-path", "PREFIX...", list(&o.data.data_path),
           "PREFIX of an indexed dataset, without .bin/.idx, or WEIGHT PREFIX pairs",
           {.shown = "this or --mock-data is required",
            .excludes = {{.flag = "mock-data", .remedy = "remove --mock-data to train on the dataset"}},
            .example = "0.3 A 0.7 B"});
  data.add("split", "A,B,C", text(&o.data.split), "proportions of training, validation and test documents",
           {.apps = kTrainApp | kInspectApp, .needs = {{"samples", {}, kInspectApp}}, .example = "90,10"});
  data.add("data-args-path", "FILE", text(&o.data.data_args_path), "file with the words of --data-path",
           {.shown = "none", .excludes = {{"data-path"}, {"mock-data"}}, .example = "data.txt"});
  for (const auto& [flag, paths, what] :
       {std::tuple("train-data-path", &o.data.train_data_path,
                   "training data, as --data-path, instead of a --split of it"),
        {"valid-data-path", &o.data.valid_data_path, "validation data, with --train-data-path"},
        {"test-data-path", &o.data.test_data_path, "test data, with --train-data-path"}})
    data.add(
        flag, "PREFIX...", list(paths), what,
        {.shown = "none", .excludes = {{"data-path"}, {"data-args-path"}, {"mock-data"}}, .example = "0.3 A 0.7 B"});
  data.add("sft", "", toggle(&o.data.sft),
           "fine-tuning on conversations. prepare writes packs of them, from JSON lines that each hold the messages of "
           "one, which the chat template renders; it also writes PREFIX_mask.bin, PREFIX_mask.idx and PREFIX.packs. "
           "train reads such packs: attention and positions separate by conversation, masked tokens have no loss, and "
           "the loss is that of --calculate-per-token-loss, unless that is false",
           {.apps = kShaped | kPrepareApp,
            .needs = {{"seq-length", {}, kPrepareApp}},
            .excludes = {{"mock-data"},
                         {"reset-position-ids"},
                         {"reset-attention-mask"},
                         {"eod-mask-loss"},
                         {"dataloader-inter-document-masking"},
                         {"json-keys"},
                         {"document-start"},
                         {"document-separator"},
                         {"append-eod"}}});
  const FlagTraits of_masks{.apps = kShaped | kInspectApp, .needs = {{"samples", {}, kInspectApp}}};
  data.add("reset-position-ids", "", toggle(&o.data.masks.reset_position_ids),
           "positions restart after a token that ends a document", of_masks);
  data.add("reset-attention-mask", "", toggle(&o.data.masks.reset_attention_mask),
           "no attention across a token that ends a document", of_masks);
  data.add("eod-mask-loss", "", toggle(&o.data.masks.eod_mask_loss), "no loss where the input token ends a document",
           of_masks);
  data.add(
      "dataloader-inter-document-masking", "", toggle(&o.data.masks.inter_document_masking),
      "attention and positions separate by the documents of the dataset's index, whatever their last token",
      {.apps = of_masks.apps, .needs = of_masks.needs, .excludes = {{"reset-attention-mask"}, {"reset-position-ids"}}});
  data.add("max-documents-per-sample", "N", integer(&o.data.max_documents_per_sample, {0, 1 << 20}),
           "number of documents in a sample for which a step is planned, if attention separates documents. 0: counted "
           "in the index of the data, or 64 without any",
           {.apps = kShaped, .on_load = kFree, .example = "32"});
  data.add("mock-data", "", toggle(&o.data.mock_data), "seeded Zipf-distributed tokens instead of a dataset");
  tokenizer.add(
      "tokenizer-type", "NAME",
      choice(&o.data.tokenizer_type,
             {"byte", "null", "GPT2BPETokenizer", "HuggingFaceTokenizer", "TikTokenizer", "Llama2Tokenizer",
              "GPTSentencePieceTokenizer"},
             {{"NullTokenizer", "null"}}),
      "type of tokenizer. byte: ids are bytes, 256 ends a document. null or NullTokenizer: ids as given, --vocab-size "
      "of them plus one that ends documents. Llama2Tokenizer and GPTSentencePieceTokenizer: SentencePiece, the former "
      "with a BOS ahead of each text. Others: byte-level BPE from the files below",
      {.example = "null --vocab-size 100"});
  files.add("vocab-file", "FILE", text(&o.data.vocab_file), "vocab.json of GPT2BPETokenizer",
            {.shown = "none", .example = "vocab.json"});
  files.add("merge-file", "FILE", text(&o.data.merge_file), "merges.txt of GPT2BPETokenizer",
            {.shown = "none", .example = "merges.txt"});
  files.add(
      "tokenizer-model", "FILE", text(&o.data.tokenizer_model),
      "tokenizer.json of HuggingFaceTokenizer, or its folder; rank file of TikTokenizer; .model file of SentencePiece",
      {.shown = "none", .example = "tokenizer.json"});
  tokenizer.add("tiktoken-pattern", "NAME", text(&o.data.tiktoken_pattern),
                "pattern by which TikTokenizer splits text into words: gpt2, cl100k, llama3, qwen2, o200k, v1 or v2",
                {.shown = "none", .example = "o200k"});
  tokenizer.add("tiktoken-special-tokens", "NAME[=ID]...", list(&o.data.tiktoken_special_tokens),
                "special tokens of TikTokenizer; a token without an id gets the next free id",
                {.shown = "<|endoftext|>", .example = "<|a|>=7 <|b|>"});
  tokenizer.add("eod-token", "TOKEN", text(&o.data.eod_token), "token that ends documents, with BPE or SentencePiece",
                {.shown = "<|endoftext|>, <|end_of_text|> or </s>", .example = "</s>"});
  evaluation.add("eval-interval", "STEPS", integer(&o.train.eval_interval, {0, kMany}),
                 "steps between evaluations; 0: never", {.example = "9"});
  evaluation.add("full-validation", "", toggle(&o.train.full_validation),
                 "all validation samples in each evaluation, instead of --eval-iters global batches",
                 {.needs = {{"eval-iters", "above 0"}}});
  evaluation.add("eval-iters", "STEPS", integer(&o.train.eval_iters, {0, kMany}), "global batches per evaluation",
                 {.example = "9"});
}

void add_checkpoint(FlagTable& t, CheckpointOptions& o) {
  Section checkpoint(t, kCheckpoint, kTrainApp);
  Section saves(t, kCheckpoint, kTrainApp, {.needs = {{"save"}}});
  Section loads(t, kCheckpoint, kTrainApp, {.needs = {{"load"}}});
  checkpoint.add("save", "DIR", text(&o.save), "folder to save checkpoints to",
                 {.apps = kTrainApp | kConvertApp, .shown = "none", .example = "kept"});
  checkpoint.add("load", "DIR", text(&o.load), "folder to load the newest valid checkpoint from",
                 {.apps = kTrainApp | kGenerateApp | kEvaluateApp | kConvertApp, .shown = "none", .example = "kept"});
  saves.add("save-interval", "STEPS", integer(&o.save_interval, {0, kMany}),
            "steps between checkpoints; 0: only at the end", {.example = "9"});
  saves.add("async-save", "", toggle(&o.async_save),
            "checkpoints written by a background thread while training continues, from a copy in host memory. The copy "
            "is allocated (pinned on a GPU) before the first step",
            {.apps = kShaped});
  saves.add("keep-last", "N", integer(&o.keep_last, {0, 1'000'000}), "number of newest checkpoints to keep; 0: all",
            {.example = "9"});
  saves.add(
      "save-retain-interval", "STEPS", integer(&o.save_retain_interval, {0, kMany}),
      "checkpoints of multiples of these steps stay, and of the others the newest --keep-last, or one if it is 0. "
      "0: --keep-last alone",
      {.example = "90"});
  saves.add("max-failed-saves", "N", integer(&o.max_failed_saves, {0, 1'000'000}),
            "number of consecutive failed saves that ends the run with exit code 3; 0: never", {.example = "9"});
  checkpoint.add("ckpt-step", "STEP", integer(&o.ckpt_step, {0, kMany}), "step to load; 0: the newest valid one",
                 {.apps = kTrainApp | kGenerateApp | kEvaluateApp | kConvertApp,
                  .needs = {{"load"}, {.flag = "to", .value = "hf", .apps = kConvertApp}},
                  .example = "9"});
  loads.add("finetune", "", toggle(&o.finetune), "load of the weights only; the run starts at step 0");
  loads.add("use-checkpoint-args", "", toggle(&o.use_checkpoint_args),
            "flags of model, experts, router and tokenizer from the checkpoint of --load; router losses stay the run's "
            "own. These flags override --config files and defaults, and the command line overrides them. While there "
            "is no checkpoint, flags apply as given");
  saves.add("no-save-optim", "", toggle(&o.no_save_optim),
            "checkpoints with weights alone, for evaluate, generate, convert, --finetune and --no-load-optim");
  loads.add("no-load-optim", "", toggle(&o.no_load_optim), "load without Adam's moments, which start at 0");
}

}  // namespace megalith
