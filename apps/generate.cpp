// generate: continues a prompt with a checkpoint of train.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include "apps/flags.h"
#include "apps/generator.h"
#include "apps/program.h"
#include "apps/run_setup.h"
#include "apps/run_tokenizer.h"
#include "apps/training_checkpoint.h"
#include "core/base/counted.h"
#include "core/base/cpu_check.h"
#include "core/base/log.h"
#include "core/base/utf8.h"

namespace megalith {

namespace {

const ConfigEntry& entry_of(const Options& command_line, std::string_view flag) {
  return *std::find_if(command_line.effective.begin(), command_line.effective.end(),
                       [flag](const ConfigEntry& entry) { return entry.name == flag; });
}

// The model as the checkpoint describes it; sampling as the command line says.
Options merge(const Options& command_line, const LoadedCheckpoint& checkpoint) {
  Options options = options_from_config(App::kPlan, checkpoint.state().config);
  options.parallel = {};  // one rank, whatever the layout was
  options.train.global_batch_size = 0;
  options.generate = command_line.generate;
  options.train.seed = command_line.train.seed;
  options.train.device = command_line.train.device;
  options.train.cuda_graph_impl = entry_of(command_line, "cuda-graph-impl").origin == "default"
                                      ? CudaGraphImpl::kLocal
                                      : command_line.train.cuda_graph_impl;
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
  if (wanted <= most) return wanted;
  if (most > 0 && entry_of(command_line, "max-new-tokens").origin == "default") return most;
  refuse_usage(most > 0 ? "--max-new-tokens" : "--prompt",
               {.expected = fmt::format("at most {}: the model has {}{}",
                                        counted(most > 0 ? most : model.max_position_embeddings - 1, "token"),
                                        counted(model.max_position_embeddings, "learned position"),
                                        most > 0 ? fmt::format(" and the prompt takes {}", prompt) : ""),
                .got = std::to_string(most > 0 ? wanted : prompt),
                .remedy = most > 0 ? "lower it" : "shorten it"});
}

// Shows the first continuation token by token, and the others behind it. What comes behind an end of document is left
// out.
class Continuations {
 public:
  Continuations(const Options& options, const Tokenizer& tokenizer)
      : prompt_(options.generate.prompt),
        before_(options.data.tokenizer_type == TokenizerType::kNull ? " " : ""),
        tokenizer_(tokenizer),
        texts_(static_cast<std::size_t>(options.generate.num_samples)) {
    std::fputs(prompt_.c_str(), stdout);
  }

  bool add(std::span<const std::int32_t> drawn) {
    bool goes_on = false;
    for (std::size_t i = 0; i < texts_.size(); ++i) {
      Text& text = texts_[i];
      text.ended = text.ended || drawn[i] == tokenizer_.eod();
      if (text.ended) continue;
      goes_on = true;
      text.waiting += before_ + text.stream.push(tokenizer_.decode(drawn.subspan(i, 1)));
    }
    show(texts_.front());
    return goes_on;
  }

  void finish() {
    for (Text& text : texts_) {
      if (&text != &texts_.front()) std::fputs(prompt_.c_str(), stdout);
      text.waiting += text.stream.flush() + "\n";
      show(text);
    }
  }

 private:
  struct Text {
    Utf8Stream stream;
    std::string waiting;  // to be shown
    bool ended = false;
  };

  static void show(Text& text) {
    std::fwrite(text.waiting.data(), 1, text.waiting.size(), stdout);
    std::fflush(stdout);
    text.waiting.clear();
  }

  const std::string prompt_, before_;
  const Tokenizer& tokenizer_;
  std::vector<Text> texts_;
};

std::string speed_line(const Generator::Speed& speed) {
  if (speed.tokens == 0) return "too few tokens to tell their speed";
  return fmt::format("{} in {:.3f} s: {:.1f} tokens/s", counted(speed.tokens, "token"), speed.seconds,
                     static_cast<double>(speed.tokens) / speed.seconds);
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
  const std::int64_t samples = options.generate.num_samples;
  const Generator::Sizes sizes{.sequences = samples, .prompt = prompt, .tokens = prompt + count};
  Generator generator(options, options.train.device, sizes);
  load_tensors({.parameters = generator.parameters(), .stream = generator.compute()}, checkpoint, LoadScope::kWeights);
  std::vector<std::int32_t> prompts;
  for (std::int64_t i = 0; i < samples; ++i) prompts.insert(prompts.end(), tokens.begin(), tokens.end());
  Continuations shown(options, tokenizer);
  generator.generate(prompts, sizes, [&](std::span<const std::int32_t> drawn) { return shown.add(drawn); });
  shown.finish();
  if (options.generate.print_speed) log_info(speed_line(generator.speed()));
  return ExitCode::kOk;
}

}  // namespace

}  // namespace megalith

int main(int argc, char** argv) {
  megalith::require_cpu_baseline();
  return megalith::run_program("generate", [&] { return megalith::generate(argc, argv); });
}
