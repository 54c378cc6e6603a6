#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string_view>

#include "apps/flags/unknown_flags.h"
#include "apps/prepare/prepare.h"
#include "apps/program/version.h"
#include "core/base/error.h"
#include "core/base/parse_number.h"

namespace megalith {

namespace {

[[noreturn]] void refuse(const std::string& subject, const std::string& expected, const std::string& got) {
  refuse_usage(subject, {.expected = expected, .got = got, .remedy = "see prepare --help"});
}

// `words` are those that no flag took.
[[noreturn]] void refuse_words(const CLI::App& app, const std::vector<std::string>& words) {
  std::vector<std::string> own;
  for (const CLI::Option* option : app.get_options()) {
    own.insert(own.end(), option->get_lnames().begin(), option->get_lnames().end());
  }
  refuse_unknown("prepare", unknown_flags(words, own), "see prepare --help");
}

// "what it is [default: value; range]": the form in which train's --help says it too.
std::string with_facts(const std::string& help, const std::string& value, const std::string& range = {}) {
  return fmt::format("{} [{}{}{}]", help, value == "required" ? value : "default " + value, range.empty() ? "" : "; ",
                     range);
}

struct Flag {
  const char* name;
  const char* unit;
  const char* help;
  std::string value;  // the default, as --help shows it
  std::string range = {};
};

template <class Field>
CLI::Option* add_text(CLI::App& app, const char* group, Field& field, const Flag& flag) {
  const std::string help = with_facts(flag.help, flag.value, flag.range);
  return app.add_option(flag.name, field, help)->type_name(flag.unit)->group(group);
}

struct Integer {
  std::int64_t* field;
  std::int64_t low;
  std::int64_t high;
};

void add_integer(CLI::App& app, const char* group, const Integer& integer, const Flag& flag) {
  const std::string range = fmt::format("{} to {}", integer.low, integer.high);
  const auto set = [integer, range, name = flag.name](const std::string& text) {
    const std::optional<std::int64_t> value = parse_number<std::int64_t>(text);
    if (!value || *value < integer.low || *value > integer.high) {
      refuse(name, "an integer from " + range, fmt::format("'{}'", text));
    }
    *integer.field = *value;
  };
  app.add_option_function<std::string>(flag.name, set, with_facts(flag.help, flag.value, range))
      ->type_name(flag.unit)
      ->group(group);
}

constexpr std::int64_t kMaxCount = std::int64_t{1} << 40;
constexpr std::int64_t kMaxInt32 = 2147483646;

void add_tokenizer(CLI::App& app, TokenizerOptions& flags) {
  const auto add = [&](auto& field, const Flag& flag) { add_text(app, "Tokenizer", field, flag); };
  add(flags.type,
      {"--tokenizer-type", "NAME",
       "byte: ids are bytes, 256 is EOD; null, or NullTokenizer: text is ids already; the others: byte-level BPE",
       "byte", fmt::format("{}", fmt::join(tokenizer_types(), ", "))});
  add_integer(app, "Tokenizer", {&flags.vocab_size, 1, kMaxInt32},
              {"--vocab-size", "N", "with --tokenizer-type null: its ids, without EOD", "none"});
  add(flags.vocab_file, {"--vocab-file", "FILE", "with GPT2BPETokenizer: vocab.json", "none"});
  add(flags.merge_file, {"--merge-file", "FILE", "with GPT2BPETokenizer: merges.txt", "none"});
  add(flags.tokenizer_model, {"--tokenizer-model", "FILE",
                              "with HuggingFaceTokenizer: tokenizer.json or its folder; with TikTokenizer: lines of a "
                              "token in base64 and its rank",
                              "none"});
  add(flags.tiktoken_pattern, {"--tiktoken-pattern", "NAME", "with TikTokenizer: how text is cut into words", "none",
                               std::string(word_pattern_names())});
  add(flags.tiktoken_special_tokens, {"--tiktoken-special-tokens", "NAME[=ID]",
                                      "with TikTokenizer; one without an id gets the next", "<|endoftext|>"});
  add(flags.eod_token, {"--eod-token", "TOKEN", "of byte-level BPE: the token that ends documents",
                        "<|endoftext|>, <|end_of_text|> or </s>"});
}

struct RunFlags {
  std::int64_t train_iters = 0;
  std::int64_t global_batch_size = 0;
};

void add_inspect(CLI::App& app, InspectOptions& options, RunFlags& run) {
  constexpr const char* kShown = "What is shown";
  constexpr const char* kSamples = "Samples as train reads them";
  add_text(app, kShown, options.data_path,
           {"P", "PREFIX", "prefix of a data set, several, or pairs WEIGHT PREFIX", "required"});
  add_integer(app, kShown, {&options.documents, 0, kMaxCount},
              {"--documents", "N", "documents to show of each data set", std::to_string(options.documents)});
  add_integer(
      app, kShown, {&options.samples, 1, kMaxCount},
      {"--samples", "N", "print the token ids of the first N training samples instead, a JSON array each", "off"});
  add_integer(app, kSamples, {&options.seq_length, 1, kMaxInt32},
              {"--seq-length", "TOKENS", "with --samples: a sample has one token more, the last label", "none"});
  add_integer(app, kSamples, {&options.seed, 0, 4294967295},
              {"--seed", "N", "with --samples, as train takes it", std::to_string(options.seed)});
  add_text(
      app, kSamples, options.split,
      {"--split", "A,B,C", "with --samples, as train takes it: shares of training, validation, test", options.split});
  add_integer(app, kSamples, {&options.train_samples, 1, kMaxCount},
              {"--train-samples", "SAMPLES", "with --samples: samples of the whole run, on which the epochs depend",
               "as --samples"});
  add_integer(app, kSamples, {&run.train_iters, 1, kMaxCount},
              {"--train-iters", "STEPS", "instead of --train-samples: steps of the run", "none"});
  add_integer(app, kSamples, {&run.global_batch_size, 1, kMaxInt32},
              {"--global-batch-size", "SAMPLES", "with --train-iters: samples a step", "none"});
}

void check_prepare(const PrepareOptions& options) {
  if (options.inputs.empty()) refuse("--input", "at least one file", "none");
  if (options.output_prefix.empty()) refuse("--output-prefix", "where to write PREFIX.bin and PREFIX.idx", "nothing");
  for (const std::string& start : options.documents.document_start) {
    if (start.empty()) refuse("--document-start", "the first characters of a line", "none");
  }
}

void check_inspect(InspectOptions& options, const RunFlags& run) {
  if (options.data_path.empty()) refuse("inspect", "a prefix", "none");
  if (options.samples > 0 && options.seq_length == 0) refuse("--seq-length", "a value with --samples", "none");
  if (options.samples == 0 && options.seq_length > 0) refuse("--samples", "a value with --seq-length", "none");
  if ((run.train_iters > 0) != (run.global_batch_size > 0)) {
    refuse("--train-iters and --global-batch-size", "both or neither", "one of them");
  }
  if (run.train_iters > 0) {
    if (options.train_samples > 0) refuse("--train-samples", "none with --train-iters", "both");
    if (__builtin_mul_overflow(run.train_iters, run.global_batch_size, &options.train_samples)) {
      refuse("--train-iters", "fewer samples in the run", std::to_string(run.train_iters));
    }
  }
}

}  // namespace

PrepareCommand parse_prepare_command(const std::vector<std::string>& arguments) {
  PrepareCommand command;
  TokenizerOptions tokenizer;
  RunFlags run;
  bool version = false;
  DocumentOptions& documents = command.prepare_options.documents;
  std::string separator;

  CLI::App app("Turns text into the tokens that train reads: PREFIX.bin and PREFIX.idx, Megatron's indexed dataset.",
               "prepare");
  app.allow_extras();
  app.footer(exit_codes_text());
  constexpr const char* kFiles = "Files";
  constexpr const char* kDocuments = "Documents";
  add_text(
      app, kFiles, command.prepare_options.inputs,
      {"--input", "FILE",
       "text files, each one document unless told otherwise; NAME.jsonl and NAME.json: JSON lines, each a document",
       "required"});
  add_text(app, kFiles, command.prepare_options.output_prefix,
           {"--output-prefix", "PREFIX", "where to write PREFIX.bin and PREFIX.idx", "required"});
  add_text(app, kDocuments, documents.json_key, {"--json-keys", "NAME", "where the text of a JSON line is", "text"});
  add_integer(
      app, kDocuments, {&command.prepare_options.max_bad_lines, 0, kMaxCount},
      {"--max-bad-lines", "N",
       "JSON lines that are no documents: so many in all files are skipped and counted, one more is an error", "0"});
  add_text(app, kDocuments, documents.document_start,
           {"--document-start", "TEXT",
            "text: a line that begins with this starts a document, as Chapter does in a novel", "none"});
  CLI::Option* separator_option = add_text(
      app, kDocuments, separator,
      {"--document-separator", "TEXT", "text: a line equal to this separates documents; '' for empty lines", "none"});
  app.add_flag("--append-eod", command.prepare_options.append_eod,
               with_facts("end each document with the EOD token", "off"))
      ->group(kDocuments);
  add_tokenizer(app, tokenizer);
  app.add_flag("--version", version, "print the version")->group("Program");
  app.get_help_ptr()->group("Program");
  CLI::App* inspect_app = app.add_subcommand(
      "inspect", "Shows counts and the first documents of data sets, or the samples that training will see.");
  inspect_app->allow_extras();
  inspect_app->footer(exit_codes_text());
  add_inspect(*inspect_app, command.inspect_options, run);
  add_tokenizer(*inspect_app, tokenizer);
  inspect_app->get_help_ptr()->group("Program");

  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));  // CLI11 wants them last first
  } catch (const CLI::CallForHelp&) {
    command.print = inspect_app->parsed() ? inspect_app->help("prepare") : app.help();
    return command;
  } catch (const CLI::ParseError& error) {
    std::string message = error.what();
    std::ranges::replace(message, '\n', ' ');
    refuse("command line", "valid flags", message);
  }
  if (version) {
    command.print = version_line("prepare");
    return command;
  }
  command.inspect = inspect_app->parsed();
  const CLI::App& used = command.inspect ? *inspect_app : app;
  if (const std::vector<std::string> extras = used.remaining(true); !extras.empty()) refuse_words(used, extras);

  const Tokenizer chosen = make_tokenizer(tokenizer);
  if (command.inspect) {
    command.inspect_options.tokenizer = chosen;
    check_inspect(command.inspect_options, run);
  } else {
    command.prepare_options.tokenizer = chosen;
    if (separator_option->count() > 0) documents.document_separator = separator;
    check_prepare(command.prepare_options);
  }
  return command;
}

}  // namespace megalith
