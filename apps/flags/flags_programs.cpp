// The rows of the flags of logs, of the programs but train, of tests, and of all programs.
#include "apps/config/data_options.h"
#include "apps/config/logging_options.h"
#include "apps/config/program_options.h"
#include "apps/config/training_options.h"
#include "apps/flags/flags_table.h"

namespace megalith {

using enum FlagGroup;
using enum OnLoad;

void add_logging(FlagTable& t, LoggingOptions& o) {
  Section logging(t, kLogging, kTrainApp);
  logging.add("log-interval", "STEPS", integer(&o.log_interval, {1, kMany}), "steps per log line", {.example = "9"});
  logging.add("log-throughput", "", toggle(&o.log_throughput), "TFLOP/s per device in the log line");
  logging.add("peak-tflops", "TFLOPS", real(&o.peak_tflops, {0, 1e6}),
              "peak rate of a device, for the model FLOPs utilization (MFU) in the log line; 0: with --bf16 the data "
              "sheet's value for a known GPU, otherwise no MFU",
              {.example = "100"});
  logging.add("metrics-jsonl", "FILE", text(&o.metrics_jsonl), "one JSON object per step",
              {.shown = "none", .example = "metrics.jsonl"});
  logging.add("tensorboard-dir", "DIR", text(&o.tensorboard_dir), "folder for TensorBoard event files",
              {.shown = "none", .example = "events"});
  logging.add("tensorboard-log-interval", "STEPS", integer(&o.tensorboard_log_interval, {1, kMany}),
              "steps per entry of --tensorboard-dir; a first, a last and an evaluated step always have one",
              {.needs = {{"tensorboard-dir"}}, .example = "5"});
  logging.add("print-actions", "", toggle(&o.print_actions),
              "print each pipeline stage's list of actions in a training step, and exit",
              {.apps = kTrainApp | kPlanApp, .excludes = {{.flag = "json", .remedy = "leave out one of them"}}});
  logging.add("trace", "FILE", text(&o.trace),
              "trace of the ops of the steps below, by rank and stream, for Perfetto or chrome://tracing",
              {.shown = "none", .example = "trace.json"});
  logging.add("profile", "", toggle(&o.profile), "with --device cuda: let an attached profiler record the steps below",
              {.needs = {{"device", "cuda"}}, .of_run = true});
  logging.add("profile-step-start", "STEP", integer(&o.profile_step_start, {1, kMany}), "first step recorded",
              {.example = "1"});
  logging.add("profile-step-end", "STEP", integer(&o.profile_step_end, {1, kMany}), "first step no longer recorded",
              {.example = "99"});
  logging.add("profile-ranks", "RANK...", list(&o.profile_ranks), "ranks to record",
              {.shown = "0; with --trace all", .example = "1 2"});
}

void add_other_programs(FlagTable& t, Options& o) {
  GenerateOptions& g = o.generate;
  Section generate(t, kGenerate, kGenerateApp);
  Section convert(t, kConvert, kConvertApp);
  Section report(t, kReport, kReportApp);
  Section forecast(t, kForecast, kPlanApp);
  generate.add("prompt", "TEXT", text(&g.prompt), "prompt to continue", {.shown = "empty"});
  generate.add("max-new-tokens", "TOKENS", integer(&g.max_new_tokens, {1, kMaxLength}), "length of the continuation");
  generate.add("temperature", "X", real(&g.temperature, {0, 1000}),
               "divides the logits; 0: always take the most likely token");
  generate.add("top-k", "N", integer(&g.top_k, {0, kMaxVocab}),
               "sample from the K most likely tokens; 1: always take the most likely; 0: off");
  generate.add("top-p", "P", real(&g.top_p, {0, 1}),
               "sample from the most likely tokens whose probabilities add up to this; 0: off");
  generate.add("num-samples", "N", integer(&g.num_samples, {1, 1024}),
               "continuations to draw, side by side; each ends with a line of its own");
  generate.add("print-speed", "", toggle(&g.print_speed),
               "print how many tokens a second were drawn, to standard error");
  convert.add("from", "NAME", text(&o.convert.from),
              "format of --load: hf, a folder of Hugging Face transformers with GPT-2, Llama, Mistral, Qwen2 or Qwen3; "
              "native, checkpoints as train saves them",
              {.shown = "the other format"});
  convert.add("to", "NAME", text(&o.convert.to), "format of --save", {.shown = "the other format"});
  convert.add("max-shard-size", "BYTES", integer(&o.convert.max_shard_size, {1, kMany}),
              "with --to hf: tensors in one file, unless one alone is larger", {.needs = {{"to", "hf"}}});
  convert.add("ignore-config-keys", "KEY...", list(&o.convert.ignore_config_keys),
              "with --from hf: keys of config.json that are not read though convert does not know them; they must "
              "change neither weights nor arithmetic",
              {.shown = "none", .needs = {{"to", "native"}}});
  report.add("inputs", "METRICS.jsonl...", list(&o.report.inputs), "files that train --metrics-jsonl wrote",
             {.shown = "required", .positional = true});
  report.add("output", "FILE", text(&o.report.output), "HTML file to write", {.shown = "report.html"});
  forecast.add("rates", "FILE", text(&o.forecast.rates),
               "measured speed of the machine's kernels and links, as tests/bench/rates.sh writes it: adds times to "
               "the forecast; train takes it with --fine-grained-activation-offloading",
               {.apps = kShaped,
                .shown = "none",
                .on_load = kFree,
                .needs = {{"fine-grained-activation-offloading", {}, kTrainApp}},
                .example = "rates.toml"});
  forecast.add("suggest", "", toggle(&o.forecast.suggest),
               "with --rates: list the fastest layouts of --world-size ranks that fit into device memory, instead of "
               "forecasting one",
               {.needs = {{"rates"}, {"global-batch-size"}},
                .excludes = {{.flag = "html", .remedy = "run plan --html with the flags of a suggestion"},
                             {.flag = "json", .remedy = "run plan --json with the flags of a suggestion"}}});
  forecast.add("device-memory-gib", "GIB", real(&o.forecast.device_memory_gib, {0, 1e6}),
               "with --suggest: memory of a device; 0: the value in --rates", {.needs = {{"suggest"}}});
  forecast.add("html", "FILE", text(&o.forecast.html), "HTML page to write, with a chart of the schedule",
               {.shown = "none", .needs = {{"rates"}}});
  forecast.add(
      "json", "FILE", text(&o.forecast.json),
      "JSON document to write: memory in bytes by stage and owner, graphs, work, and the step's times with --rates",
      {.shown = "none"});
}

void add_prepare(FlagTable& t, Options& o) {
  PrepareOptions& p = o.prepare;
  Section prepare(t, kPrepare, static_cast<unsigned>(App::kPrepare));
  Section inspect(t, kInspect, kInspectApp);
  prepare.add(
      "input", "FILE...", list(&p.inputs),
      "text files, each one document unless the flags below split it; NAME.jsonl and NAME.json: JSON lines, each "
      "a document",
      {.shown = "required", .adds = true});
  prepare.add("output-prefix", "PREFIX", text(&p.output_prefix), "where to write PREFIX.bin and PREFIX.idx",
              {.shown = "required"});
  prepare.add("json-keys", "NAME", text(&p.json_key), "key of the text in a JSON line");
  prepare.add("max-bad-lines", "N", integer(&p.max_bad_lines, {0, kMany}),
              "JSON lines without a document that are skipped and counted, over all files; one more is an error");
  prepare.add("document-start", "TEXT...", list(&p.document_start),
              "of text files: a line that begins with this starts a document, as Chapter does in a novel",
              {.shown = "none", .adds = true});
  prepare.add("document-separator", "TEXT", text(&p.document_separator),
              "of text files: a line equal to this separates documents; '' for empty lines", {.shown = "none"});
  prepare.add("append-eod", "", toggle(&p.append_eod), "end each document with the EOD token");
  inspect.add("prefixes", "PREFIX...", list(&o.data.data_path), "datasets without .bin/.idx, or WEIGHT PREFIX pairs",
              {.shown = "required", .positional = true});
  inspect.add("documents", "N", integer(&p.documents, {0, kMany}), "documents to show of each dataset");
  inspect.add("samples", "N", integer(&p.samples, {1, kMany}),
              "print the token ids of the first N training samples instead, a JSON array each; the run's flags decide "
              "which these are",
              {.shown = "off", .needs = {{"seq-length"}}});
}

void add_testing(FlagTable& t, TrainingOptions& o) {
  Section testing(t, kTesting, kTrainApp);
  testing.add("check-hazards", "", toggle(&o.check_hazards),
              "report unordered conflicting accesses of streams, exit code 9");
  testing.add("suppress-wait", "N", integer(&o.suppress_wait, {-1, kMany}),
              "test aid: hide the event wait with this index from --check-hazards; -1: none", {.example = "4"});
}

void add_program(FlagTable& t, Requests& r) {
  constexpr unsigned kConfigured = kTrainApp | kGenerateApp | kPlanApp;
  constexpr unsigned kAll = kConfigured | kReportApp | kConvertApp | kTexts;
  Section program(t, kProgram, kAll);
  program.add("config", "FILE", list(&r.config),
              "TOML file with flag names as keys; may be repeated: later files override earlier ones, the command line "
              "overrides all",
              {.apps = kConfigured, .shown = "none"});
  program.add("fault", "SITE:N[:KIND]", list(&r.faults),
              "test aid: fail the N-th time the program reaches SITE, or with N+ from then on; list: print the sites "
              "and their kinds",
              {.shown = "none"});
  program.add("fault-rank", "RANK", integer(&r.fault_rank, {-1, kMaxRanks}), "rank that --fault applies to; -1: all");
  program.add("allow-faults", "", toggle(&r.allow_faults), "test aid: permit --fault");
  program.add("print-config", "", toggle(&r.print_config), "print every value and its origin as TOML, and exit",
              {.apps = kConfigured});
  program.add("version", "", toggle(&r.version), "print version and commit, and exit");
  program.add("help", "", toggle(&r.help), "print this text, and exit");
}

}  // namespace megalith
