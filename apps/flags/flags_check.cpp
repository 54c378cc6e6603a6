#include "apps/flags/flags_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "apps/config/checkpoint_options.h"
#include "apps/config/data_options.h"
#include "apps/config/logging_options.h"
#include "apps/config/memory_options.h"
#include "apps/config/optimizer_options.h"
#include "apps/config/parallel_options.h"
#include "apps/config/pipeline_options.h"
#include "apps/config/program_options.h"
#include "apps/config/run_length.h"
#include "apps/config/training_options.h"
#include "core/base/error.h"
#include "core/base/files/output_file.h"
#include "core/base/text/text.h"
#include "core/data/split.h"
#include "core/hf/hf_config.h"
#include "core/model/config.h"
#include "core/optim/batch_ramp.h"
#include "parallel/context_parallel/context_parallel.h"
#include "parallel/tensor_parallel/tensor_parallel_check.h"

namespace megalith {

namespace {

void require_flag(bool present, const char* flag, const char* remedy) {
  if (!present) refuse_usage(fmt::format("{}: missing", flag), {.remedy = remedy});
}

void check_parallel(const Options& options) {
  const ParallelOptions& parallel = options.parallel;
  check_sharding(options);
  check_tensor_parallel(options.model, parallel.tensor_model_parallel_size, parallel.sequence_parallel);
  check_context_parallel(options.model, {.context = parallel.context_parallel_size,
                                         .tensor = parallel.tensor_model_parallel_size,
                                         .sequence_parallel = parallel.sequence_parallel,
                                         .communication = parallel.cp_comm_type});
}

// Padding of packs, which routers leave out, has no position.
void check_packs(const Options& options) {
  const ModelConfig& model = options.model;
  if (!options.data.sft || model.moe.num_experts == 0 ||
      model.position_embedding_type != PositionEmbedding::kLearnedAbsolute)
    return;
  refuse_usage("--sft with --num-experts", {.expected = "--position-embedding-type rope or none",
                                            .got = "learned_absolute",
                                            .remedy = "models of experts have no learned positions"});
}

void check_graph_impl(App app, const MemoryOptions& memory) {
  if (memory.cuda_graph_impl != CudaGraphImpl::kFullIteration) return;
  refuse_usage(
      "--cuda-graph-impl",
      {.expected = "none or local",
       .got = "full_iteration",
       .remedy = app == App::kGenerate
                     ? "use local, which captures the full step that samples a token"
                     : "use local, which captures full layers but no messages, reductions, optimizer or hooks"});
}

void check_memory(const Options& options) {
  const std::int64_t recomputed = options.memory.recompute_num_layers, layers = options.model.num_layers;
  if (recomputed > layers)
    refuse_numbers({"--recompute-num-layers", recomputed}, {"--num-layers", layers},
                   "--recompute-num-layers <= --num-layers", "lower --recompute-num-layers");
}

void check_model(const Options& options) {
  constexpr const char* kRemedy = "set it by the flag or in a file with --config, such as configs/quickstart.toml";
  const ModelConfig& model = options.model;
  require_flag(model.num_layers > 0, "--num-layers", kRemedy);
  require_flag(model.hidden_size > 0, "--hidden-size", kRemedy);
  require_flag(model.num_attention_heads > 0, "--num-attention-heads", kRemedy);
  require_flag(model.seq_length > 0, "--seq-length", kRemedy);
  validate(model);
  if (model.hf_model_type != HfModelType::kAuto) hf_family(model);
  only_with(options.data.tokenizer_type != TokenizerType::kNull || model.vocab_size != 0,
            {.flag = "--tokenizer-type null", .needs = "--vocab-size above 0", .got = "--vocab-size 0"});
}

void check_batch(const TrainingOptions& train) {
  const std::int64_t whole = train.global_batch_size, micro = train.micro_batch_size;
  if (whole % micro != 0)
    refuse_numbers({"--global-batch-size", whole}, {"--micro-batch-size", micro},
                   "a global batch size that is a multiple of the micro batch size",
                   fmt::format("use --global-batch-size {}", (whole / micro + 1) * micro));
}

void check_data(const Options& options) {
  const DataOptions& data = options.data;
  const bool by_split = !data.train_data_path.empty() || !data.valid_data_path.empty() || !data.test_data_path.empty();
  require_flag(data.mock_data || !data.data_path.empty() || !data.data_args_path.empty() || by_split,
               "--data-path or --mock-data", "give the prefix of an indexed dataset that prepare wrote");
  require_flag(!by_split || !data.train_data_path.empty() || options.train.skip_train, "--train-data-path",
               "give the training data, which --valid-data-path does not hold");
  require_flag(!by_split || !data.valid_data_path.empty() || !options.train.evaluates(), "--valid-data-path",
               "give the validation data, or --eval-iters 0");
  split_sequences(data.split, 0);  // rejects an invalid split
}

void check_profile(const LoggingOptions& logging) {
  if (logging.profile_step_start >= logging.profile_step_end) {
    refuse_usage("--profile-step-start and --profile-step-end",
                 {.expected = "a start below the end",
                  .got = fmt::format("{} and {}", logging.profile_step_start, logging.profile_step_end),
                  .remedy = "raise --profile-step-end, which is not recorded itself"});
  }
  for (const std::string& rank : logging.profile_ranks) {
    if (rank.empty() || rank.size() > 7 || rank.find_first_not_of("0123456789") != std::string::npos)
      refuse_usage(
          "--profile-ranks",
          {.expected = "rank numbers", .got = escaped_short(rank), .remedy = "use numbers: --profile-ranks 0 1"});
  }
}

// Rejects one path for two files that a run creates, replaces or removes.
void check_outputs(const Options& options) {
  const PathOfFlag metrics{"--metrics-jsonl", options.logging.metrics_jsonl}, trace{"--trace", options.logging.trace},
      stop{"--stop-file", options.train.stop_file};
  require_other_file(stop, metrics);
  require_other_file(stop, trace);
  require_other_file(trace, metrics);
}

void check_length(const Options& options) {
  const TrainingOptions& train = options.train;
  const std::int64_t first = batch_after(train, 0);
  if (train.train_samples > 0 && train.train_samples < first) {
    const char* const batch = first == train.global_batch_size ? "--global-batch-size"
                              : train.batch_stages.empty()     ? "START of --rampup-batch-size"
                                                               : "the first size of --step-batch-size-schedule";
    refuse_usage(fmt::format("--train-samples and {}", batch),
                 {.expected = fmt::format("--train-samples >= {}", batch),
                  .got = fmt::format("--train-samples {} and {} {}", train.train_samples, batch, first),
                  .remedy = fmt::format("raise --train-samples or lower {}", batch)});
  }
  not_both(train.train_samples > 0 && train.train_iters != end_of_run(train, {}).at.steps, "--train-iters",
           "--train-samples", "remove one, as the number of steps follows from samples and batch sizes");
  for (const auto& [is_positive, flag] :
       {std::pair{train.train_iters > 0, "train-iters"}, {train.schedule.lr > 0.0, "lr"}}) {
    const std::string name = fmt::format("--{}", flag);
    require_flag(is_positive || !options.is_default(flag), name.c_str(),
                 "set it by the flag or in a file with --config");
    if (!is_positive)
      refuse_usage(name, {.expected = "above 0", .got = "0", .remedy = "raise it, or add --skip-train"});
  }
  validate(train.schedule);
}

void check_forecast(const Options& options) {
  const ForecastOptions& forecast = options.forecast;
  require_other_file({"--html", forecast.html}, {"--rates", forecast.rates});
  require_other_file({"--json", forecast.json}, {"--rates", forecast.rates});
  require_other_file({"--json", forecast.json}, {"--html", forecast.html});
}

void check_convert(const Options& options) {
  const std::string &from = options.convert.from, &to = options.convert.to;
  require_flag(!from.empty() || !to.empty(), "--from or --to", "use hf or native");
  for (const auto& [flag, format] : {std::pair("--from", from), std::pair("--to", to)}) {
    if (format != "hf" && format != "native" && !format.empty())
      refuse_usage(flag, {.expected = "hf or native",
                          .got = escaped_short(format),
                          .remedy = "use hf for a folder of transformers, native for a folder of train"});
  }
  if (from == to)
    refuse_usage("--from and --to",
                 {.expected = "different formats", .got = from + " twice", .remedy = "remove one of the two flags"});
  require_flag(!options.checkpoint.load.empty(), "--load", "give the folder to convert");
  require_flag(!options.checkpoint.save.empty(), "--save", "give the folder to write");
}

void check_prepare(const Options& options) {
  const PrepareOptions& prepare = options.prepare;
  const auto refuse = [](const char* flag, const char* expected, const char* got) {
    refuse_usage(flag, {.expected = expected, .got = got, .remedy = "see prepare --help"});
  };
  if (prepare.inputs.empty()) refuse("--input", "at least one file", "none");
  if (prepare.output_prefix.empty()) refuse("--output-prefix", "the prefix of PREFIX.bin and PREFIX.idx", "nothing");
  if (std::ranges::find(prepare.document_start, "") != prepare.document_start.end())
    refuse("--document-start", "the first characters of a line", "none");
  if (!options.data.sft || options.model.seq_length % prepare.pad_to_multiple == 0) return;
  refuse_numbers({"--seq-length", options.model.seq_length}, {"--pad-to-multiple", prepare.pad_to_multiple},
                 "--pad-to-multiple that divides --seq-length", "change one of them");
}

void check_inspect(const Options& options) {
  if (options.data.data_path.empty())
    refuse_usage("inspect", {.expected = "a prefix", .got = "none", .remedy = "see prepare inspect --help"});
  const TrainingOptions& train = options.train;
  if (std::int64_t samples = 0; __builtin_mul_overflow(train.train_iters, train.global_batch_size, &samples))
    refuse_usage("--train-iters and --global-batch-size",
                 {.expected = "at most 2^63 - 1 samples in the run",
                  .got = fmt::format("{} x {}", train.train_iters, train.global_batch_size),
                  .remedy = "lower one of them"});
}

void check_shape(const Options& options) {
  check_parallel(options);
  check_packs(options);
  pipeline_layout(options);
  check_memory(options);
  check_moe(options);
  check_own_flags(options);
  check_offload(options);
  not_both(options.optimizer.grad_reduce_in_bf16 && options.optimizer.main_grads_dtype == DType::kFp32,
           "--grad-reduce-in-bf16", "--main-grads-dtype fp32", "remove one");
  only_with(options.optimizer.main_grads_dtype == DType::kFp32 || options.model.params_dtype == DType::kBf16,
            {.flag = "--main-grads-dtype bf16", .needs = "--bf16"});
}

}  // namespace

void resolve(Options& options) {
  ParallelOptions& parallel = options.parallel;
  MoeConfig& moe = options.model.moe;
  if (parallel.tensor_model_parallel_size == 1) parallel.sequence_parallel = false;
  if (moe.router_score_function == MoeScoreFunction::kSigmoid) moe.router_pre_softmax = false;
  resolve(options.model);
  if (options.data.sft && !options.train.chooses_loss_mean) options.train.calculate_per_token_loss = true;
  TrainingOptions& train = options.train;
  train.batch_stages = batch_stages_of(train.step_batch_size_schedule, options.model.seq_length);
  if (!train.batch_stages.empty() && train.global_batch_size == 0)
    train.global_batch_size = train.batch_stages.back().batch;
  train.schedule.samples_per_step = train.batch_stages.empty() ? 0 : train.global_batch_size;
  train.schedule.weight_decay_incr_length = train.train_samples > 0 ? train.train_samples : train.train_iters;
  if (train.schedule.weight_decay_incr_style != WeightDecayStyle::kConstant)
    options.optimizer.weight_decay = train.schedule.end_weight_decay;
  if (train.train_samples > 0) {
    if (train.schedule.lr_decay_samples == 0) train.schedule.lr_decay_samples = train.train_samples;
    if (train.train_iters == 0 && train.global_batch_size > 0 && is_ramp_sound(train))
      train.train_iters = end_of_run(train, {}).at.steps;
  } else if (train.schedule.lr_decay_iters == 0 && train.schedule.lr_decay_samples == 0) {
    train.schedule.lr_decay_iters = train.train_iters;
  }
  MemoryOptions& memory = options.memory;
  if (memory.recompute_granularity == RecomputeGranularity::kSelective && memory.recompute_modules.empty()) {
    memory.recompute_modules = {"core_attn"};
  }
  if (memory.cuda_graph_impl != CudaGraphImpl::kNone && memory.cuda_graph_modules.empty())
    memory.cuda_graph_modules = {"layer"};
  std::set<std::string> modules;
  std::erase_if(memory.cuda_graph_modules, [&](const std::string& module) { return !modules.insert(module).second; });
  ConvertOptions& convert = options.convert;
  const auto other = [](const std::string& format) {
    return format == "hf" ? "native" : format == "native" ? "hf" : "";
  };
  if (convert.to.empty()) convert.to = other(convert.from);
  if (convert.from.empty()) convert.from = other(convert.to);
  if (options.report.output.empty()) options.report.output = "report.html";
}

void check_layout(const Options& options) {
  check_batch(options.train);
  check_ramp(options.train);
  check_shape(options);
}

void check(App app, const Options& options) {
  check_graph_impl(app, options.memory);
  if (app == App::kTrain || app == App::kPlan) {
    check_model(options);
    check_batch(options.train);
    check_ramp(options.train);
    check_companions(app, options);
    check_shape(options);
  }
  not_both(options.train.init_method_xavier_uniform && options.moe().num_experts > 0, "--init-method-xavier-uniform",
           "--num-experts", "remove --init-method-xavier-uniform");
  if (app == App::kPlan) check_forecast(options);
  if (app == App::kTrain) {
    check_data(options);
    check_profile(options.logging);
    check_outputs(options);
    if (!options.train.skip_train) check_length(options);
  }
  const bool generates = app == App::kGenerate || app == App::kEvaluate;
  if (app == App::kTrain || generates) require_built(options.device);
  if (generates) {
    require_flag(!options.checkpoint.load.empty(), "--load", "give the folder that train --save wrote");
    require_flag(app == App::kGenerate || !options.generate.questions.empty(), "--questions",
                 "give a file of JSON lines");
    const PathOfFlag results{"--results", options.generate.results};
    require_other_file(results, {"--prompt-file", options.generate.prompt_file});
    require_other_file(results, {"--questions", options.generate.questions});
    check_companions(app, options);
  }
  if (app == App::kConvert) check_convert(options);
  if (app == App::kPrepare) check_prepare(options);
  if (app == App::kInspect) check_inspect(options);
  if (app == App::kConvert || app == App::kPrepare || app == App::kInspect) check_companions(app, options);
  if (app == App::kReport) {
    require_flag(!options.report.inputs.empty(), "METRICS.jsonl", "give a file that train --metrics-jsonl wrote");
    for (const std::string& input : options.report.inputs)
      require_other_file({"--output", options.report.output}, {"METRICS.jsonl", input});
  }
}

}  // namespace megalith
