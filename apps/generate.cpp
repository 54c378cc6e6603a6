// generate: continues a prompt with a checkpoint of train.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "apps/flags.h"
#include "apps/generator.h"
#include "apps/program.h"
#include "apps/run_setup.h"
#include "apps/run_tokenizer.h"
#include "apps/training_checkpoint.h"
#include "core/base/counted.h"
#include "core/base/cpu_check.h"
#include "core/base/utf8.h"

namespace megalith {

namespace {

// The model as the checkpoint describes it; sampling as the command line says.
Options merge(const Options& command_line, const LoadedCheckpoint& checkpoint) {
  Options options = options_from_config(App::kPlan, checkpoint.state().config);
  options.parallel = {};  // one rank, whatever the layout was
  options.train.global_batch_size = 0;
  options.generate = command_line.generate;
  options.train.seed = command_line.train.seed;
  options.train.device = command_line.train.device;
  take_copied_files(options.data, checkpoint);
  // What has no copy may have moved since.
  for (std::string DataOptions::*file :
       {&DataOptions::vocab_file, &DataOptions::merge_file, &DataOptions::tokenizer_model}) {
    if (!(command_line.data.*file).empty()) options.data.*file = command_line.data.*file;
  }
  if (options.generate.temperature == 0) options.generate.top_k = 1;
  return options;
}

// Also where a tokenizer's size and kind are the same, other files give other ids.
Tokenizer tokenizer_of_checkpoint(const Options& options, const LoadedCheckpoint& checkpoint) {
  Tokenizer tokenizer = run_tokenizer(options, &checkpoint).tokenizer;
  if (tokenizer.identity() == checkpoint.state().tokenizer) return tokenizer;
  refuse_usage("tokenizer of checkpoint " + checkpoint.path(),
               {.expected = checkpoint.state().tokenizer,
                .got = tokenizer.identity(),
                .remedy = "the tokenizer's files have changed; name the ones it was trained with"});
}

// How many tokens to add to a prompt of so many: as --max-new-tokens says; its default ends where the positions do.
std::int64_t new_tokens(const Options& options, const Options& command_line, std::int64_t prompt) {
  const ModelConfig& model = options.model;
  const std::int64_t wanted = options.generate.max_new_tokens;
  if (model.position_embedding_type != PositionEmbedding::kLearnedAbsolute) return wanted;
  const std::int64_t most = model.max_position_embeddings - prompt;
  const auto flag = std::find_if(command_line.effective.begin(), command_line.effective.end(),
                                 [](const ConfigEntry& entry) { return entry.name == "max-new-tokens"; });
  if (wanted <= most) return wanted;
  if (most > 0 && flag->origin == "default") return most;
  refuse_usage(most > 0 ? "--max-new-tokens" : "--prompt",
               {.expected = fmt::format("at most {}: the model has {}{}",
                                        counted(most > 0 ? most : model.max_position_embeddings - 1, "token"),
                                        counted(model.max_position_embeddings, "learned position"),
                                        most > 0 ? fmt::format(" and the prompt takes {}", prompt) : ""),
                .got = std::to_string(most > 0 ? wanted : prompt),
                .remedy = most > 0 ? "lower it" : "shorten it"});
}

ExitCode generate(int argc, char** argv) {
  const Options command_line = parse_options(App::kGenerate, argc, argv);
  LoadedCheckpoint checkpoint = load_wanted(command_line.checkpoint);
  Options options = merge(command_line, checkpoint);
  const Tokenizer tokenizer = tokenizer_of_checkpoint(options, checkpoint);
  complete_options(options, tokenizer, 1);
  std::vector<std::int32_t> tokens;
  tokenizer.encode(options.generate.prompt, tokens);
  if (tokens.empty()) tokens.push_back(tokenizer.eod());  // what stands before the first word of a document

  const auto prompt = static_cast<std::int64_t>(tokens.size());
  const std::int64_t count = new_tokens(options, command_line, prompt);
  Generator generator(options, options.train.device, prompt + count);
  load_tensors({.parameters = generator.parameters(), .stream = generator.compute()}, checkpoint, LoadScope::kWeights);
  std::fputs(options.generate.prompt.c_str(), stdout);
  const std::string_view before = options.data.tokenizer_type == TokenizerType::kNull ? " " : "";
  Utf8Stream shown;
  generator.generate(tokens, count, [&](std::int32_t token) {
    if (token == tokenizer.eod()) return false;
    fmt::print("{}{}", before, shown.push(tokenizer.decode(std::span(&token, 1))));
    std::fflush(stdout);
    return true;
  });
  fmt::print("{}\n", shown.flush());
  return ExitCode::kOk;
}

}  // namespace

}  // namespace megalith

int main(int argc, char** argv) {
  megalith::require_cpu_baseline();
  return megalith::run_program("generate", [&] { return megalith::generate(argc, argv); });
}
