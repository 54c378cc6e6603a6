// Rows of the flags of logs, of the programs other than train, of tests, and of all programs.
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
  logging.add("log-format", "NAME", choice(&o.log_format, {"short", "megatron"}),
              "format of a log line: at most 120 columns, or Megatron-LM's line", {.example = "megatron"});
  logging.add("log-throughput", "", toggle(&o.log_throughput), "with --log-format megatron: TFLOP/s per device");
  logging.add("log-params-norm", "", toggle(&o.log_params_norm),
              "L2 norm of all parameters after each step, in metrics and with --log-format megatron",
              {.apps = kShaped});
  logging.add("log-num-zeros-in-grad", "", toggle(&o.log_num_zeros_in_grad),
              "number of elements of the gradients that are 0, in metrics and with --log-format megatron",
              {.apps = kShaped});
  logging.add(
      "timing-log-level", "LEVEL", integer(&o.timing_log_level, {0, 2}),
      "split of the step's time in metrics and with --log-format megatron, in steps with a log line. 1: compute, "
      "exposed communication, exposed copies and host; 2: also forward, backward and optimizer. Communication "
      "within layers and graphs counts as compute",
      {.example = "2"});
  logging.add("peak-tflops", "TFLOPS", real(&o.peak_tflops, {0, 1e6}),
              "peak rate of a device, for the model FLOPs utilization (MFU) in the log line. 0: with --bf16 the data "
              "sheet's value for a known GPU, otherwise no MFU",
              {.example = "100"});
  logging.add("metrics-jsonl", "FILE", text(&o.metrics_jsonl), "file for one JSON object per step",
              {.shown = "none", .example = "metrics.jsonl"});
  logging.add("tensorboard-dir", "DIR", text(&o.tensorboard_dir), "folder for TensorBoard event files",
              {.shown = "none", .example = "events"});
  logging.add("tensorboard-log-interval", "STEPS", integer(&o.tensorboard_log_interval, {1, kMany}),
              "steps per entry of --tensorboard-dir and --wandb-project; a first, a last and an evaluated step "
              "always have one",
              {.needs = {{"tensorboard-dir"}}, .example = "5"});
  logging.add("wandb-project", "NAME", text(&o.wandb_project),
              "project of Weights & Biases for an offline run folder, which `wandb sync` uploads",
              {.shown = "none", .example = "llama"});
  logging.add("wandb-exp-name", "NAME", text(&o.wandb_exp_name),
              "name of the run in --wandb-project, and of the group of runs that continue it",
              {.shown = "chosen by the server", .needs = {{"wandb-project"}}, .example = "8b"});
  logging.add("wandb-save-dir", "DIR", text(&o.wandb_save_dir), "folder for DIR/wandb/offline-run-*",
              {.shown = "--save, else the current folder", .needs = {{"wandb-project"}}, .example = "runs"});
  logging.add("wandb-entity", "NAME", text(&o.wandb_entity), "team or user that owns --wandb-project",
              {.shown = "the user's default", .needs = {{"wandb-project"}}, .example = "team"});
  logging.add("print-actions", "", toggle(&o.print_actions),
              "print each pipeline stage's list of actions in a training step, and exit",
              {.apps = kTrainApp | kPlanApp,
               .excludes = {{.flag = "json", .remedy = "remove one of them"},
                            {.flag = "timeline", .remedy = "remove one of them"}}});
  logging.add("trace", "FILE", text(&o.trace),
              "file for a trace of the ops of the steps below, by rank and stream, for Perfetto or chrome://tracing",
              {.shown = "none", .example = "trace.json"});
  logging.add("profile", "", toggle(&o.profile),
              "with --device cuda: recording of the steps below by an attached profiler",
              {.needs = {{"device", "cuda"}}, .of_run = true});
  logging.add("profile-step-start", "STEP", integer(&o.profile_step_start, {1, kMany}), "first step that is recorded",
              {.example = "1"});
  logging.add("profile-step-end", "STEP", integer(&o.profile_step_end, {1, kMany}),
              "first step that is no longer recorded", {.example = "99"});
  logging.add("profile-ranks", "RANK...", list(&o.profile_ranks), "ranks to record",
              {.shown = "0; with --trace all", .example = "1 2"});
}

void add_other_programs(FlagTable& t, Options& o) {
  GenerateOptions& g = o.generate;
  Section generate(t, kGenerate, kGenerateApp);
  Section evaluate(t, kGenerate, kEvaluateApp);
  Section convert(t, kConvert, kConvertApp);
  Section report(t, kReport, kReportApp);
  Section forecast(t, kForecast, kPlanApp);
  generate.add("prompt", "TEXT", text(&g.prompt), "prompt to continue", {.shown = "empty"});
  generate.add("prompt-file", "FILE", text(&g.prompt_file),
               "file of prompts, one a line. NAME.jsonl and NAME.json hold JSON lines with a text under \"prompt\" and "
               "optionally an \"id\". The continuations are printed in the order of the file",
               {.shown = "none", .excludes = {{"prompt"}}});
  generate.add("prompts-per-batch", "N", integer(&g.prompts_per_batch, {1, 1 << 16}),
               "largest number of prompts of equal length in tokens that are continued at the same time",
               {.needs = {{"prompt-file"}}});
  generate.add(
      "chat", "", toggle(&g.chat),
      "answer messages by a chat template: the lines of standard input, where an empty line or /reset begins a "
      "conversation, or the conversations of --prompt-file, in JSON lines as for prepare --sft, without their "
      "last answer",
      {.excludes = {{"prompt"}}});
  generate.add("max-chat-tokens", "TOKENS", integer(&g.max_chat_tokens, {2, kMaxLength}),
               "capacity of a conversation on standard input, with its answers; a longer one begins again",
               {.needs = {{"chat"}}});
  generate.add("max-new-tokens", "TOKENS", integer(&g.max_new_tokens, {1, kMaxLength}), "number of tokens to generate");
  generate.add("temperature", "X", real(&g.temperature, {0, 1000}),
               "divisor of the logits; 0: always the most likely token");
  generate.add("top-k", "N", integer(&g.top_k, {0, kMaxVocab}),
               "number of most likely tokens to sample from; 1: always the most likely token; 0: off");
  generate.add("top-p", "P", real(&g.top_p, {0, 1}),
               "cumulative probability of the most likely tokens to sample from; 0: off");
  generate.add("num-samples", "N", integer(&g.num_samples, {1, 1024}),
               "number of continuations of each prompt to sample in one batch; each ends with a newline");
  generate.add("print-speed", "", toggle(&g.print_speed), "print the sampled tokens per second to standard error");
  generate.add(
      "results", "FILE", text(&g.results),
      "file of JSON lines to write: one per continuation, which is then not printed, or per question of evaluate",
      {.apps = kGenerateApp | kEvaluateApp, .shown = "none", .needs = {{.flag = "prompt-file", .apps = kGenerateApp}}});
  evaluate.add("questions", "FILE", text(&g.questions),
               "JSON lines of multiple-choice questions. Keys: \"context\", \"question\" or \"query\", a text; "
               "\"choices\", texts; \"gold\" or \"answer\", the index of the right choice from 0, or its letter from A",
               {.shown = "required"});
  evaluate.add("target-delimiter", "TEXT", text(&g.target_delimiter), "text between the context and each choice",
               {.shown = "a space"});
  evaluate.add("batch-tokens", "TOKENS", integer(&g.batch_tokens, {1, kMaxLength}),
               "tokens of several contexts with a choice in one forward pass; a longer one has a pass alone");
  convert.add("from", "NAME", text(&o.convert.from),
              "format of --load. hf: a folder of Hugging Face transformers with GPT-2, Llama, Mistral, Qwen2 or Qwen3. "
              "native: checkpoints that train saves",
              {.shown = "the other format"});
  convert.add("to", "NAME", text(&o.convert.to), "format of --save", {.shown = "the other format"});
  convert.add("max-shard-size", "BYTES", integer(&o.convert.max_shard_size, {1, kMany}),
              "with --to hf: maximum size of the tensors in a file, unless one tensor alone is larger",
              {.needs = {{"to", "hf"}}});
  convert.add("ignore-config-keys", "KEY...", list(&o.convert.ignore_config_keys),
              "with --from hf: unknown keys of config.json to ignore; they must change neither weights nor arithmetic",
              {.shown = "none", .needs = {{"to", "native"}}});
  report.add("inputs", "METRICS.jsonl...", list(&o.report.inputs),
             "files that train --metrics-jsonl wrote; for a timeline one file that train --trace wrote",
             {.shown = "required", .positional = true});
  report.add("output", "FILE", text(&o.report.output),
             "HTML file to write; FILE.svg: the timeline of a trace's last step", {.shown = "report.html"});
  forecast.add("rates", "FILE", text(&o.forecast.rates),
               "file of the machine's measured kernel and link rates, as tests/bench/rates.sh writes it; adds times to "
               "the forecast. train accepts it with --fine-grained-activation-offloading",
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
                             {.flag = "json", .remedy = "run plan --json with the flags of a suggestion"},
                             {.flag = "timeline", .remedy = "run plan --timeline with the flags of a suggestion"}}});
  forecast.add("device-memory-gib", "GIB", real(&o.forecast.device_memory_gib, {0, 1e6}),
               "memory of a device; 0: the value in --rates. If a rank does not fit, plan ends with exit code 6",
               {.needs = {{"rates"}}, .example = "80"});
  forecast.add(
      "document-length", "TOKENS", integer(&o.forecast.document_length, {0, kMaxLength}),
      "with packs or masks of documents: length of documents whose attention is forecast, at most --seq-length. "
      "train prints the share of attention that remains: this length is that share of --seq-length. 0: a sample "
      "is one document",
      {.example = "700"});
  forecast.add("html", "FILE", text(&o.forecast.html), "HTML page to write, with a chart of the schedule",
               {.shown = "none", .needs = {{"rates"}}});
  forecast.add(
      "json", "FILE", text(&o.forecast.json),
      "JSON document to write: memory in bytes by stage and owner, graphs, work, and with --rates the step's times",
      {.shown = "none"});
  forecast.add("timeline", "FILE", text(&o.forecast.timeline),
               "SVG picture to write: the actions of a training step over time, by stage and stream",
               {.shown = "none", .needs = {{"rates"}}, .example = "step.svg"});
}

constexpr std::int64_t kMaxWorkers = 1024;

void add_prepare(FlagTable& t, Options& o) {
  PrepareOptions& p = o.prepare;
  Section prepare(t, kPrepare, kPrepareApp);
  Section inspect(t, kInspect, kInspectApp);
  prepare.add("input", "FILE...", list(&p.inputs),
              "text files. A file is one document unless the flags below split it. NAME.jsonl and NAME.json hold JSON "
              "lines, each a document. gzip and Zstandard data are unpacked, also from NAME.jsonl.gz",
              {.shown = "required", .adds = true});
  prepare.add("output-prefix", "PREFIX", text(&p.output_prefix),
              "prefix of the files to write, PREFIX.bin and PREFIX.idx", {.shown = "required"});
  prepare.add("workers", "N", integer(&p.workers, {1, kMaxWorkers}),
              "number of threads that encode documents. The files do not depend on it",
              {.shown = "all processors", .example = "4"});
  prepare.add("json-keys", "NAME", text(&p.json_key), "key of the text in a JSON line");
  prepare.add(
      "max-bad-lines", "N", integer(&p.max_bad_lines, {0, kMany}),
      "number of JSON lines without a document that are skipped and counted, over all files; one more is an error");
  prepare.add("document-start", "TEXT...", list(&p.document_start),
              "in text files: start of a line that begins a document, such as Chapter in a novel",
              {.shown = "none", .adds = true});
  prepare.add("document-separator", "TEXT", text(&p.document_separator),
              "in text files: line that separates documents; '' for empty lines", {.shown = "none"});
  prepare.add("append-eod", "", toggle(&p.append_eod), "EOD token at the end of each document");
  const FlagTraits of_sft{.needs = {{"sft"}}};
  Section sft(t, kPrepare, kPrepareApp, of_sft);
  sft.add("pad-to-multiple", "ROWS", integer(&p.pad_to_multiple, {1, kMaxLength}),
          "multiple that the rows of each conversation are padded to, a divisor of --seq-length");
  sft.add("sft-long", "NAME", choice(&p.sft_long, {"error", "truncate", "drop"}),
          "treatment of conversations above --seq-length tokens");
  sft.add("sft-train", "NAME", choice(&p.sft_train, {"all", "last"}),
          "trained answers of a conversation. last: the last trained answer; messages after it are left out. For "
          "templates that change earlier answers when more messages follow, such as those that drop reasoning");
  sft.add("sft-tokenizer-prompt-format", "NAME", text(&p.sft_tokenizer_prompt_format),
          "chat template by Megatron-LM's name: nemotron-h-aligned, nemotron-nano-v2 or identity",
          {.shown = "none",
           .excludes = {{.flag = "chat-template", .remedy = "give one of the two"}},
           .example = "nemotron-nano-v2"});
  sft.add("chat-template", "TEMPLATE", text(&p.chat_template),
          "chat template: a Jinja file, or the name of a built-in one",
          {.apps = kPrepareApp | kGenerateApp,
           .shown = "the tokenizer folder's",
           .needs = {{.flag = "chat", .apps = kGenerateApp}}});
  inspect.add("prefixes", "PREFIX...", list(&o.data.data_path),
              "PREFIX of each dataset, without .bin/.idx, or WEIGHT PREFIX pairs",
              {.shown = "required", .positional = true});
  inspect.add("documents", "N", integer(&p.documents, {0, kMany}), "number of documents or packs to show per dataset");
  inspect.add("samples", "N", integer(&p.samples, {1, kMany}),
              "number of first training samples that are printed instead: token ids as a JSON array, or of packs and "
              "masked documents the rows and trained parts of each document. The run's flags determine these samples",
              {.shown = "off", .needs = {{"seq-length"}}});
}

void add_testing(FlagTable& t, TrainingOptions& o) {
  Section testing(t, kTesting, kTrainApp);
  testing.add("check-hazards", "", toggle(&o.check_hazards),
              "report unordered conflicting accesses of streams, exit code 9");
  testing.add("suppress-wait", "N", integer(&o.suppress_wait, {-1, kMany}),
              "test aid: index of the event wait that is hidden from --check-hazards; -1: none", {.example = "4"});
}

void add_program(FlagTable& t, Requests& r) {
  constexpr unsigned kConfigured = kTrainApp | kGenerateApp | kPlanApp;
  constexpr unsigned kAll = kConfigured | kEvaluateApp | kReportApp | kConvertApp | kTexts;
  Section program(t, kProgram, kAll);
  program.add("config", "FILE", list(&r.config),
              "TOML file with flag names as keys; may be repeated. Later files override earlier ones, and the command "
              "line overrides all files",
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
  program.add("help", "", toggle(&r.help),
              "print examples and the most used flags, and exit. --help TOPIC prints the flags of a group, such as "
              "parallel, or those whose name has the word");
  program.add("help-all", "", toggle(&r.help_all), "print all flags, and exit");
}

}  // namespace megalith
