// generate: continues a prompt with a checkpoint of train.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "apps/flags.h"
#include "apps/generator.h"
#include "apps/program.h"
#include "apps/trainer.h"
#include "apps/training_checkpoint.h"
#include "core/base/cpu_check.h"

namespace megalith {

namespace {

// The model as the checkpoint describes it; sampling as the command line says.
Options merge(const Options& command_line, const TrainState& state) {
  Options options = options_from_config(App::kTrain, state.config);
  options.generate = command_line.generate;
  options.train.seed = command_line.train.seed;
  complete_options(options, tokenizer_of(options), 1);
  return options;
}

std::int64_t room(const Options& options, std::int64_t prompt) {
  const std::int64_t wanted = prompt + options.generate.max_new_tokens;
  const ModelConfig& model = options.model;
  if (model.position_embedding_type == PositionEmbedding::kLearnedAbsolute && wanted > model.max_position_embeddings) {
    fail({.code = ExitCode::kUsage,
          .subject = "--max-new-tokens",
          .expected = fmt::format("at most {}: the model has {} learned positions and the prompt takes {}",
                                  std::max<std::int64_t>(0, model.max_position_embeddings - prompt),
                                  model.max_position_embeddings, prompt),
          .got = std::to_string(options.generate.max_new_tokens),
          .show_place = false});
  }
  return wanted;
}

ExitCode run(int argc, char** argv) {
  const Options command_line = parse_options(App::kGenerate, argc, argv);
  std::optional<LoadedCheckpoint> checkpoint = find_checkpoint(
      {.directory = command_line.checkpoint.load,
       .step = command_line.checkpoint.ckpt_step > 0 ? std::optional(command_line.checkpoint.ckpt_step) : std::nullopt,
       .sync = one_rank()});
  if (!checkpoint) {
    fail({.code = ExitCode::kNoCheckpoint,
          .subject = "--load " + command_line.checkpoint.load,
          .expected = "a checkpoint",
          .got = "none",
          .show_place = false});
  }
  const Options options = merge(command_line, checkpoint->state());
  const Tokenizer tokenizer = tokenizer_of(options);
  std::vector<std::int32_t> tokens;
  tokenizer.encode(options.generate.prompt, tokens);
  if (tokens.empty()) tokens.push_back(tokenizer.eod());  // what stands before the first word of a document

  Generator generator(options, options.train.device, room(options, static_cast<std::int64_t>(tokens.size())));
  load_tensors(generator.parameters(), nullptr, generator.compute(), *checkpoint, LoadScope::kWeights);
  std::fputs(options.generate.prompt.c_str(), stdout);
  generator.generate(tokens, options.generate.max_new_tokens, [&](std::int32_t token) {
    if (token == tokenizer.eod()) return false;
    const std::string text = tokenizer.decode(std::span(&token, 1));
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
    return true;
  });
  std::fputc('\n', stdout);
  return ExitCode::kOk;
}

}  // namespace

}  // namespace megalith

int main(int argc, char** argv) {
  megalith::require_cpu_baseline();
  return megalith::run_program("generate", [&] { return megalith::run(argc, argv); });
}
