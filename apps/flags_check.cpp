#include "apps/flags_check.h"

#include <fmt/format.h>

#include <charconv>

#include "apps/flags_binding.h"
#include "apps/hf_config.h"
#include "apps/pipeline_options.h"
#include "core/base/error.h"
#include "parallel/context_parallel/context_parallel.h"
#include "parallel/tensor_parallel/tensor_parallel_check.h"

namespace megalith {

namespace {

void want(bool present, const char* flag, const char* remedy) {
  if (!present) refuse_usage(fmt::format("{}: missing", flag), {}, {}, remedy);
}

void check_parallel(const Options& options) {
  const ParallelOptions& parallel = options.parallel;
  const auto only_one = [](const char* flag, std::int64_t size) {
    if (size == 1) return;
    refuse_usage(flag, "1, other sizes are not built yet", fmt::format("{}", size),
                 "leave it out: ranks are tensor-, context-, pipeline- and data-parallel");
  };
  only_one("--expert-model-parallel-size", parallel.expert_model_parallel_size);
  if (parallel.tp_comm_overlap && !parallel.sequence_parallel) {
    refuse_usage("--tp-comm-overlap and --sequence-parallel", "--tp-comm-overlap together with --sequence-parallel",
                 "--tp-comm-overlap alone", "add --sequence-parallel, or leave --tp-comm-overlap out");
  }
  const auto needed_by_gather = [&parallel](bool is_set, const char* flag) {
    if (!parallel.overlap_param_gather || is_set) return;
    refuse_usage(fmt::format("--overlap-param-gather and {}", flag),
                 fmt::format("--overlap-param-gather together with {}", flag), "--overlap-param-gather without it",
                 fmt::format("add {}, or remove --overlap-param-gather", flag));
  };
  needed_by_gather(parallel.use_distributed_optimizer, "--use-distributed-optimizer");
  needed_by_gather(parallel.overlap_grad_reduce, "--overlap-grad-reduce");
  check_tensor_parallel(options.model, parallel.tensor_model_parallel_size, parallel.sequence_parallel);
  if (parallel.context_parallel_size == 1 && parallel.cp_comm_type != ContextCommunication::kP2p) {
    refuse_usage("--cp-comm-type and --context-parallel-size",
                 "--cp-comm-type together with a --context-parallel-size above 1", "--context-parallel-size 1",
                 "leave --cp-comm-type out, or use --context-parallel-size 2");
  }
  check_context_parallel(options.model, {.context = parallel.context_parallel_size,
                                         .tensor = parallel.tensor_model_parallel_size,
                                         .sequence_parallel = parallel.sequence_parallel,
                                         .communication = parallel.cp_comm_type});
}

void check_pipeline(const Options& options) {
  const ParallelOptions& parallel = options.parallel;
  const bool laid_out = !parallel.pipeline_model_parallel_layout.empty();
  const bool uneven = parallel.decoder_first_pipeline_num_layers != 0 || parallel.decoder_last_pipeline_num_layers != 0;
  const bool accounts = parallel.account_for_embedding_in_pipeline_split || parallel.account_for_loss_in_pipeline_split;
  const bool by_layers = parallel.num_layers_per_virtual_pipeline_stage != 0;
  const bool by_stages = parallel.num_virtual_stages_per_pipeline_rank != 0;
  if (laid_out && (uneven || accounts || by_layers || by_stages)) {
    refuse_usage("--pipeline-model-parallel-layout", "no other flag that splits layers beside it",
                 uneven      ? "--decoder-first-pipeline-num-layers or --decoder-last-pipeline-num-layers"
                 : accounts  ? "--account-for-embedding-in-pipeline-split or --account-for-loss-in-pipeline-split"
                 : by_layers ? "--num-layers-per-virtual-pipeline-stage"
                             : "--num-virtual-stages-per-pipeline-rank",
                 "the layout says it all: remove the other flag");
  }
  if (by_layers && by_stages) {
    refuse_usage("--num-layers-per-virtual-pipeline-stage and --num-virtual-stages-per-pipeline-rank", "one of them",
                 "both", "remove one");
  }
  pipeline_layout(options);
}

void check_memory(const Options& options) {
  const TrainingOptions& train = options.train;
  const bool is_full = train.recompute_granularity == RecomputeGranularity::kFull;
  if (!train.offload_modules.empty()) {
    refuse_usage("--offload-modules", "none, offload is not built yet", train.offload_modules[0],
                 "--recompute-modules saves activation memory today");
  }
  if (!train.recompute_modules.empty() && train.recompute_granularity != RecomputeGranularity::kSelective) {
    refuse_usage("--recompute-modules and --recompute-granularity",
                 "modules with --recompute-granularity selective only",
                 fmt::format("modules with {}", is_full ? "full" : "none"),
                 "add --recompute-granularity selective, or leave --recompute-modules out");
  }
  if (!is_full && (train.recompute_method != RecomputeMethod::kUniform || train.recompute_num_layers != 1)) {
    refuse_usage("--recompute-method or --recompute-num-layers, and --recompute-granularity",
                 "them with --recompute-granularity full only",
                 train.recompute_granularity == RecomputeGranularity::kSelective ? "selective" : "none",
                 "add --recompute-granularity full, or leave them out");
  }
  if (train.recompute_num_layers > options.model.num_layers) {
    refuse_usage("--recompute-num-layers and --num-layers", "--recompute-num-layers <= --num-layers",
                 fmt::format("--recompute-num-layers {} and --num-layers {}", train.recompute_num_layers,
                             options.model.num_layers),
                 "lower --recompute-num-layers");
  }
}

void check_model(const Options& options) {
  constexpr const char* kRemedy = "give it as a flag or in a file with --config, such as configs/quickstart.toml";
  const ModelConfig& model = options.model;
  want(model.num_layers > 0, "--num-layers", kRemedy);
  want(model.hidden_size > 0, "--hidden-size", kRemedy);
  want(model.num_attention_heads > 0, "--num-attention-heads", kRemedy);
  want(model.seq_length > 0, "--seq-length", kRemedy);
  validate(model);
  const ModelConfig defaults;
  const bool is_rope = model.position_embedding_type == PositionEmbedding::kRope;
  if (!is_rope && (model.rotary_base != defaults.rotary_base || model.rotary_percent != defaults.rotary_percent ||
                   model.use_rope_scaling)) {
    refuse_usage("--rotary-base, --rotary-percent or --use-rope-scaling, and --position-embedding-type",
                 "them with --position-embedding-type rope only",
                 model.position_embedding_type == PositionEmbedding::kNone ? "none" : "learned_absolute",
                 "use --position-embedding-type rope, or leave them out");
  }
  if (!model.use_rope_scaling && model.rope_scaling != defaults.rope_scaling) {
    refuse_usage("--rope-scaling-* and --use-rope-scaling", "them together with --use-rope-scaling", "them alone",
                 "add --use-rope-scaling, or remove them");
  }
  if (model.hf_model_type != HfModelType::kAuto) hf_family(model);
  if (options.data.tokenizer_type == TokenizerType::kNull && model.vocab_size == 0) {
    refuse_usage("--tokenizer-type null and --vocab-size", "--vocab-size above 0", "0",
                 "give the number of ids that prepare was given");
  }
}

void check_batch(const TrainingOptions& train) {
  if (train.global_batch_size % train.micro_batch_size != 0) {
    refuse_usage("--global-batch-size and --micro-batch-size", "a global batch that is a multiple of the micro batch",
                 fmt::format("--global-batch-size {} and --micro-batch-size {}", train.global_batch_size,
                             train.micro_batch_size),
                 fmt::format("such as --global-batch-size {}",
                             (train.global_batch_size / train.micro_batch_size + 1) * train.micro_batch_size));
  }
}

void check_dtypes(const Options& options) {
  if (options.train.main_grads_dtype == DType::kFp32 || options.model.params_dtype == DType::kBf16) return;
  refuse_usage("--main-grads-dtype and --bf16", "--main-grads-dtype bf16 together with --bf16", "fp32 parameters",
               "add --bf16, or keep the gradients in fp32");
}

// One to three non-negative numbers, not all 0.
void check_split(const std::string& split) {
  const char* at = split.data();
  const char* const end = at + split.size();
  double sum = 0.0;
  int parts = 0;
  for (bool more = true; more; ++parts) {
    while (at < end && *at == ' ') ++at;
    double share = 0.0;
    const auto [next, error] = std::from_chars(at, end, share, std::chars_format::fixed);
    if (error != std::errc() || !(share >= 0.0 && share < 1e9)) {
      parts = 0;
      break;
    }
    sum += share;
    at = next;
    while (at < end && *at == ' ') ++at;
    more = at < end && *at == ',';
    if (more) ++at;
  }
  if (at != end || parts < 1 || parts > 3 || !(sum > 0.0)) {
    refuse_usage("--split", "one to three non-negative numbers such as 969,30,1, not all 0", escaped_short(split),
                 "they are the shares of training, validation and test documents");
  }
}

void check_data(const DataOptions& data) {
  if (data.mock_data && !data.data_path.empty()) {
    refuse_usage("--data-path and --mock-data", "one of them", "both", "remove --mock-data to train on the dataset");
  }
  if (!data.mock_data && data.data_path.empty()) {
    want(false, "--data-path or --mock-data", "name an indexed dataset that prepare wrote");
  }
  check_split(data.split);
}

void check_checkpoint(const CheckpointOptions& checkpoint) {
  const auto needs = [](bool is_set, const char* flag, const std::string& folder, const char* other) {
    if (is_set && folder.empty()) {
      refuse_usage(fmt::format("{} and {}", flag, other), fmt::format("{} together with {}", flag, other),
                   fmt::format("{} alone", flag), fmt::format("add {} FOLDER, or remove {}", other, flag));
    }
  };
  needs(checkpoint.save_interval != 0, "--save-interval", checkpoint.save, "--save");
  needs(checkpoint.async_save, "--async-save", checkpoint.save, "--save");
  needs(checkpoint.keep_last != 0, "--keep-last", checkpoint.save, "--save");
  needs(checkpoint.max_failed_saves != CheckpointOptions{}.max_failed_saves, "--max-failed-saves", checkpoint.save,
        "--save");
  needs(checkpoint.ckpt_step != 0, "--ckpt-step", checkpoint.load, "--load");
  needs(checkpoint.finetune, "--finetune", checkpoint.load, "--load");
  needs(checkpoint.no_load_optim, "--no-load-optim", checkpoint.load, "--load");
  needs(checkpoint.use_checkpoint_args, "--use-checkpoint-args", checkpoint.load, "--load");
}

void check_device(const TrainingOptions& train, const LoggingOptions& logging) {
  if (logging.profile_step_start >= logging.profile_step_end) {
    refuse_usage("--profile-step-start and --profile-step-end", "a start before the end",
                 fmt::format("{} and {}", logging.profile_step_start, logging.profile_step_end),
                 "the step of the end is not recorded");
  }
  if (logging.profile && train.device != DeviceType::kCuda) {
    refuse_usage("--profile and --device", "--profile with --device cuda only", "--device cpu",
                 "perf and other tools profile the CPU without a flag");
  }
  for (const std::string& rank : logging.profile_ranks) {
    if (rank.empty() || rank.size() > 7 || rank.find_first_not_of("0123456789") != std::string::npos)
      refuse_usage("--profile-ranks", "numbers of ranks", escaped_short(rank), "such as --profile-ranks 0 1");
  }
}

void check_length(const TrainingOptions& train) {
  if (train.train_samples > 0) {
    if (train.global_batch_size == 0) {
      refuse_usage("--train-samples and --global-batch-size",
                   "--global-batch-size above 0 together with --train-samples", "--global-batch-size 0",
                   "give --global-batch-size, or --train-iters in place of --train-samples");
    }
    if (train.train_samples < train.global_batch_size) {
      refuse_usage(
          "--train-samples and --global-batch-size", "at least one step of samples",
          fmt::format("--train-samples {} and --global-batch-size {}", train.train_samples, train.global_batch_size),
          "raise --train-samples or lower --global-batch-size");
    }
    if (train.train_iters != train.train_samples / train.global_batch_size) {
      refuse_usage("--train-iters and --train-samples", "one of them",
                   fmt::format("--train-iters {} and --train-samples {}", train.train_iters, train.train_samples),
                   "remove one; steps are samples / --global-batch-size");
    }
  }
  want(train.train_iters > 0, "--train-iters", "give it as a flag or in a file with --config");
  want(train.schedule.lr > 0.0, "--lr", "give it as a flag or in a file with --config");
  validate(train.schedule);
  if (train.schedule.lr_decay_style != LrDecayStyle::kWsd && train.schedule.lr_wsd_decay_iters != 0) {
    refuse_usage("--lr-wsd-decay-iters and --lr-decay-style", "--lr-wsd-decay-iters with --lr-decay-style WSD only",
                 "another style", "add --lr-decay-style WSD, or leave --lr-wsd-decay-iters out");
  }
}

void check_forecast(const Options& options) {
  const ForecastOptions& forecast = options.forecast;
  const auto needs = [](bool is_set, bool has_other, const char* flag, const char* other) {
    if (!is_set || has_other) return;
    refuse_usage(fmt::format("{} and {}", flag, other), fmt::format("{} together with {}", flag, other),
                 fmt::format("{} alone", flag), fmt::format("add {}, or remove {}", other, flag));
  };
  needs(forecast.suggest, !forecast.rates.empty(), "--suggest", "--rates");
  needs(!forecast.html.empty(), !forecast.rates.empty(), "--html", "--rates");
  needs(forecast.suggest, options.train.global_batch_size != 0, "--suggest", "--global-batch-size");
  needs(forecast.device_memory_gib != 0, forecast.suggest, "--device-memory-gib", "--suggest");
  if (forecast.suggest && !forecast.html.empty())
    refuse_usage("--suggest and --html", "one of them", "both", "run plan --html with the flags of a suggestion");
}

void check_convert(const Options& options) {
  const auto& [from, to, shard] = options.convert;
  want(!from.empty() || !to.empty(), "--from or --to", "name hf or native");
  for (const auto& [flag, format] : {std::pair("--from", from), std::pair("--to", to)}) {
    if (format != "hf" && format != "native" && !format.empty())
      refuse_usage(flag, "hf or native", escaped_short(format), "hf is a folder of transformers, native one of train");
  }
  if (from == to) refuse_usage("--from and --to", "two formats", from + " twice", "one of the two flags is enough");
  want(!options.checkpoint.load.empty(), "--load", "name the folder to convert");
  want(!options.checkpoint.save.empty(), "--save", "name the folder to write");
  const auto only = [&target = to](bool is_set, const char* flag, const char* direction) {
    if (!is_set) return;
    refuse_usage(fmt::format("{} and --to", flag), fmt::format("{} with --to {} only", flag, direction), target,
                 "leave it out");
  };
  const Options defaults;
  if (to == "hf") {
    const ModelConfig& model = options.model;
    only(model.params_dtype != defaults.model.params_dtype, "--bf16", "native");
    only(model.make_vocab_size_divisible_by != defaults.model.make_vocab_size_divisible_by,
         "--make-vocab-size-divisible-by", "native");
    only(options.data.tokenizer_type != defaults.data.tokenizer_type, "--tokenizer-type", "native");
    const DataOptions& data = options.data;
    only(!data.tokenizer_model.empty(), "--tokenizer-model", "native");
    only(!data.vocab_file.empty(), "--vocab-file", "native");
    only(!data.merge_file.empty(), "--merge-file", "native");
    only(!data.tiktoken_pattern.empty(), "--tiktoken-pattern", "native");
    only(!data.tiktoken_special_tokens.empty(), "--tiktoken-special-tokens", "native");
    only(!data.eod_token.empty(), "--eod-token", "native");
  } else {
    only(options.checkpoint.ckpt_step != 0, "--ckpt-step", "hf");
    only(shard != defaults.convert.max_shard_size, "--max-shard-size", "hf");
  }
}

}  // namespace

void resolve(Options& options) {
  resolve(options.model);
  TrainingOptions& train = options.train;
  if (train.train_iters == 0 && train.train_samples > 0 && train.global_batch_size > 0) {
    train.train_iters = train.train_samples / train.global_batch_size;
  }
  if (train.schedule.lr_decay_iters == 0) train.schedule.lr_decay_iters = train.train_iters;
  if (train.recompute_granularity == RecomputeGranularity::kSelective && train.recompute_modules.empty()) {
    train.recompute_modules = {"core_attn"};
  }
  ConvertOptions& convert = options.convert;
  const auto other = [](const std::string& format) {
    return format == "hf" ? "native" : format == "native" ? "hf" : "";
  };
  if (convert.to.empty()) convert.to = other(convert.from);
  if (convert.from.empty()) convert.from = other(convert.to);
  if (options.report.output.empty()) options.report.output = "report.html";
}

void check(App app, const Options& options) {
  if (app == App::kTrain || app == App::kPlan) {
    check_model(options);
    check_batch(options.train);
    check_parallel(options);
    check_pipeline(options);
    check_memory(options);
    check_dtypes(options);
  }
  if (app == App::kPlan) check_forecast(options);
  if (app == App::kTrain) {
    check_data(options.data);
    check_checkpoint(options.checkpoint);
    check_device(options.train, options.logging);
    if (!options.train.skip_train) check_length(options.train);
    if (options.train.skip_train && options.train.eval_iters == 0) {
      refuse_usage("--skip-train and --eval-iters", "--eval-iters above 0 together with --skip-train", "--eval-iters 0",
                   "raise --eval-iters: without training and evaluation nothing is left to do");
    }
  }
  if (app == App::kTrain || app == App::kGenerate) require_built(options.train.device);
  if (app == App::kGenerate)
    want(!options.checkpoint.load.empty(), "--load", "name the folder that train --save wrote");
  if (app == App::kConvert) check_convert(options);
  if (app == App::kReport) {
    want(!options.report.inputs.empty(), "METRICS.jsonl", "name a file that train --metrics-jsonl wrote");
  }
}

}  // namespace megalith
