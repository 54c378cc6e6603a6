#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "apps/config/data_options.h"
#include "apps/config/program_options.h"
#include "apps/generate/chat_prompts.h"
#include "apps/generate/continuation.h"
#include "apps/generate/generator.h"
#include "apps/generate/json_lines.h"
#include "apps/generate/programs.h"
#include "apps/generate/prompts.h"
#include "core/base/counted.h"
#include "core/base/log.h"

namespace megalith {

namespace {

// Adds a token to each continuation. Returns true if any has not ended.
bool add_tokens(std::span<const std::int32_t> drawn, std::vector<Continuation>& continuations,
                std::vector<std::string>& texts) {
  bool continues = false;
  for (std::size_t i = 0; i < continuations.size(); ++i) {
    texts[i] += continuations[i].add(drawn[i]);
    continues |= !continuations[i].has_ended();
  }
  return continues;
}

// Prompts of --prompt-file with their results, which are written in the order of the prompts.
class PromptResults {
 public:
  PromptResults(const Session& session, const std::vector<Prompt>& prompts)
      : session_(session), prompts_(prompts), done_(prompts.size()) {
    session.together([&] {
      if (session.shows()) file_.emplace(session.options().generate.results);
    });
  }

  struct Result {
    std::string text;
    std::int64_t tokens = 0;
    bool has_ended = false;
  };

  // Sets the samples of a prompt, and writes what is complete.
  void set(std::size_t prompt, std::vector<Result> samples) {
    done_[prompt] = std::move(samples);
    for (; next_ < done_.size() && !done_[next_].empty(); ++next_) {
      for (std::size_t sample = 0; sample < done_[next_].size(); ++sample) write(next_, sample);
      std::fflush(stdout);
    }
  }

  void finish() {
    session_.together([&] {
      if (file_) file_->finish();
    });
  }

 private:
  void write(std::size_t index, std::size_t sample) {
    if (!file_) return;
    const Prompt& prompt = prompts_[index];
    const Result& result = done_[index][sample];
    if (!file_->is_open()) {
      const std::string text = prompt.shown + result.text + "\n";
      std::fwrite(text.data(), 1, text.size(), stdout);
      return;
    }
    nlohmann::ordered_json line;
    if (!prompt.id.empty()) line["id"] = nlohmann::ordered_json::parse(prompt.id);
    line["index"] = index;
    line["sample"] = sample;
    line["prompt"] = prompt.text;
    line["text"] = result.text;
    line["prompt_tokens"] = prompt.length();
    line["tokens"] = result.tokens;
    line["finish_reason"] = result.has_ended ? "stop" : "length";
    file_->add(line);
  }

  const Session& session_;
  const std::vector<Prompt>& prompts_;
  std::vector<std::vector<Result>> done_;
  std::size_t next_ = 0;
  std::optional<ResultsFile> file_;  // of the rank that writes
};

// Continues the prompts of a batch.
void continue_batch(const Session& session, Generator& generator, const std::vector<Prompt>& prompts,
                    const std::vector<std::size_t>& batch, const TextRules& rules, PromptResults& results) {
  const std::int64_t samples = session.options().generate.num_samples, length = prompts[batch[0]].length();
  const Generator::Sizes sizes{
      .sequences = std::ssize(batch) * samples, .prompt = length, .tokens = length + session.new_tokens(length)};
  std::vector<std::int32_t> tokens, streams;
  for (const std::size_t prompt : batch) {
    for (std::int64_t i = 0; i < samples; ++i) {
      tokens.insert(tokens.end(), prompts[prompt].tokens.begin(), prompts[prompt].tokens.end());
      streams.push_back(static_cast<std::int32_t>(static_cast<std::int64_t>(prompt) * samples + i));
    }
  }
  const auto count = static_cast<std::size_t>(sizes.sequences);
  std::vector<Continuation> continuations(count, Continuation(session.tokenizer(), rules));
  std::vector<std::string> texts(count);
  const auto emit = [&](std::span<const std::int32_t> drawn) { return add_tokens(drawn, continuations, texts); };
  generator.generate(tokens, sizes, emit, streams);
  for (std::size_t b = 0; b < batch.size(); ++b) {
    std::vector<PromptResults::Result> of_prompt;
    for (std::size_t i = b * static_cast<std::size_t>(samples); i < (b + 1) * static_cast<std::size_t>(samples); ++i)
      of_prompt.push_back(
          {texts[i] + continuations[i].flush(), continuations[i].tokens(), continuations[i].has_ended()});
    results.set(batch[b], std::move(of_prompt));
  }
}

// Reads the prompts of --prompt-file. `stop_text` is set to the end of an answer in --chat.
std::vector<Prompt> prompts_of(const Session& session, std::string& stop_text) {
  const GenerateOptions& options = session.options().generate;
  if (!options.chat) return read_prompts(options.prompt_file, session.tokenizer());
  const ChatTemplate chat = load_chat_template(session.options().prepare.chat_template, session.tokenizer_folder());
  stop_text = end_of_turn(chat);
  return read_chat_prompts(options.prompt_file, chat, session.tokenizer());
}

}  // namespace

TextRules text_rules(const Session& session, const std::string& stop_text) {
  const bool is_null = session.options().data.tokenizer_type == TokenizerType::kNull;
  return {.eod = session.tokenizer().eod(), .stop_text = stop_text, .separator = is_null ? " " : ""};
}

std::unique_ptr<Generator> make_generator(Session& session, const Generator::Sizes& most, Communicator& ranks) {
  auto generator = std::make_unique<Generator>(session.options(), session.options().device, most, &ranks);
  const AbortOnUnwind guard(ranks);  // its streams may wait for peers
  session.load(generator->parameters(), generator->compute());
  return generator;
}

void print_text(const Session& session, std::string_view text) {
  if (!session.shows()) return;
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

void print_speed(const Session& session, const Generator::Speed& speed) {
  if (!session.options().generate.print_speed || !session.shows()) return;
  if (speed.tokens == 0) return log_info("too few tokens to measure the speed");
  log_info(fmt::format("{} in {:.3f} s: {:.1f} tokens/s", counted(speed.tokens, "token"), speed.seconds,
                       static_cast<double>(speed.tokens) / speed.seconds));
}

void continue_prompt(Session& session) {
  const GenerateOptions& options = session.options().generate;
  std::vector<std::int32_t> prompt;
  Generator::Sizes sizes{.sequences = options.num_samples};
  session.together([&] {
    prompt = encode_prompt(session.tokenizer(), options.prompt, session.tokenizer().begin());
    sizes.prompt = std::ssize(prompt);
    sizes.tokens = sizes.prompt + session.new_tokens(sizes.prompt);
    check_memory(session.options(), sizes, session.ranks(), session.free_bytes());
  });
  Communicator& ranks = session.connect();
  const std::unique_ptr<Generator> generator = make_generator(session, sizes, ranks);
  const AbortOnUnwind guard(ranks);
  std::vector<std::int32_t> prompts;
  for (std::int64_t i = 0; i < sizes.sequences; ++i) prompts.insert(prompts.end(), prompt.begin(), prompt.end());
  std::vector<Continuation> continuations(static_cast<std::size_t>(sizes.sequences),
                                          Continuation(session.tokenizer(), text_rules(session)));
  std::vector<std::string> texts(continuations.size());
  print_text(session, options.prompt);
  generator->generate(prompts, sizes, [&](std::span<const std::int32_t> drawn) {
    const bool continues = add_tokens(drawn, continuations, texts);
    print_text(session, std::exchange(texts[0], {}));  // token by token; the others follow
    return continues;
  });
  for (std::size_t i = 0; i < texts.size(); ++i)
    print_text(session, (i == 0 ? "" : options.prompt) + texts[i] + continuations[i].flush() + "\n");
  print_speed(session, generator->speed());
}

void continue_prompt_file(Session& session) {
  const GenerateOptions& options = session.options().generate;
  std::string stop_text;
  std::vector<Prompt> prompts;
  std::vector<std::vector<std::size_t>> batches;
  Generator::Sizes most{.sequences = 0};
  session.together([&] {
    prompts = prompts_of(session, stop_text);
    batches = batches_of(prompts, options.prompts_per_batch);
    for (const std::vector<std::size_t>& batch : batches) {
      const Prompt& first = prompts[batch[0]];
      most = {.sequences = std::max(most.sequences, std::ssize(batch) * options.num_samples),
              .prompt = std::max(most.prompt, first.length()),
              .tokens = std::max(most.tokens, first.length() + session.new_tokens(first.length(), first.place))};
    }
    check_memory(session.options(), most, session.ranks(), session.free_bytes());
  });
  PromptResults results(session, prompts);
  Communicator& ranks = session.connect();
  const std::unique_ptr<Generator> generator = make_generator(session, most, ranks);
  const AbortOnUnwind guard(ranks);
  Generator::Speed speed;
  for (const std::vector<std::size_t>& batch : batches) {
    continue_batch(session, *generator, prompts, batch, text_rules(session, stop_text), results);
    speed.tokens += generator->speed().tokens;
    speed.seconds += generator->speed().seconds;
  }
  results.finish();
  print_speed(session, speed);
}

}  // namespace megalith
