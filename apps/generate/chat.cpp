#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <optional>

#include "apps/config/program_options.h"
#include "apps/generate/chat_prompts.h"
#include "apps/generate/programs.h"
#include "core/base/counted.h"
#include "core/base/error.h"
#include "core/base/log.h"

namespace megalith {

namespace {

// Conversation with standard input.
class Chat {
 public:
  explicit Chat(Session& session) : session_(session) {
    session.together([&] {
      if (const std::int64_t samples = session.options().generate.num_samples; samples > 1)
        refuse_usage("--num-samples", {.expected = "1 with --chat on standard input",
                                       .got = std::to_string(samples),
                                       .remedy = "remove it, or give --prompt-file"});
      chat_.emplace(load_chat_template(session.options().prepare.chat_template, session.tokenizer_folder()));
      rules_ = text_rules(session, end_of_turn(*chat_));
      const std::int64_t wanted = session.options().generate.max_chat_tokens;
      capacity_ = std::min(wanted, max_positions(session.options()).value_or(wanted));
      check_memory(session.options(), most(), session.ranks(), session.free_bytes());
    });
  }

  Generator::Sizes most() const { return {.prompt = capacity_ - 1, .tokens = capacity_}; }

  // Answers messages up to the end of standard input.
  void run(Generator& generator) {
    std::ios::sync_with_stdio(false);  // in_avail() counts what was read ahead
    const bool is_terminal = session_.shows() && isatty(STDIN_FILENO) != 0;
    while (true) {
      if (is_terminal) print_text(session_, "> ");
      const std::optional<std::string> line = next_line();
      if (!line) return;
      if (line->empty() || *line == "/reset") {
        messages_.clear();
      } else {
        answer(*line, generator);
      }
    }
  }

  Generator::Speed speed() const { return speed_; }

 private:
  // The first rank reads. While there is no line, its peers hear from it, so that their wait does not time out.
  std::optional<std::string> next_line() {
    constexpr std::string_view kNoneYet = "\n\n";
    std::string line;
    do {
      if (session_.shows()) {
        if (session_.ranks() > 1 && !has_input()) {
          line = kNoneYet;
        } else if (std::getline(std::cin, line)) {
          if (line.ends_with('\r')) line.pop_back();
          line += '\n';
        } else {
          line.clear();
        }
      }
      line = session_.broadcast(line);
    } while (line == kNoneYet);
    if (line.empty()) return std::nullopt;
    line.pop_back();
    return line;
  }

  // Waits for a limited time; true also at the end of the input.
  static bool has_input() {
    constexpr int kMilliseconds = 10'000;
    if (std::cin.rdbuf()->in_avail() != 0) return true;
    pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
    return poll(&input, 1, kMilliseconds) != 0;
  }

  std::vector<std::int32_t> prompt() const {
    return encode_prompt(session_.tokenizer(),
                         chat_->render(jinja::Value::list(messages_), jinja::Value::none(), true));
  }

  void answer(const std::string& message, Generator& generator) {
    messages_.push_back(message_of("user", message));
    std::vector<std::int32_t> tokens = prompt();
    if (std::ssize(tokens) >= capacity_ && messages_.size() > 1) {
      warn("the conversation", std::ssize(tokens), "a conversation begins");
      messages_.erase(messages_.begin(), messages_.end() - 1);
      tokens = prompt();
    }
    if (std::ssize(tokens) >= capacity_) {
      warn("the message", std::ssize(tokens), "it is left out");
      return messages_.clear();
    }
    const std::int64_t length = std::ssize(tokens);
    const std::int64_t count = std::min(session_.options().generate.max_new_tokens, capacity_ - length);
    Continuation continuation(session_.tokenizer(), rules_);
    std::string text;
    const auto add = [&](const std::string& added) {
      text += added;
      print_text(session_, added);
    };
    generator.generate(tokens, {.prompt = length, .tokens = length + count}, [&](std::span<const std::int32_t> drawn) {
      add(continuation.add(drawn[0]));
      return !continuation.has_ended();
    });
    add(continuation.flush());
    print_text(session_, "\n");
    messages_.push_back(message_of("assistant", text));
    speed_.tokens += generator.speed().tokens;
    speed_.seconds += generator.speed().seconds;
  }

  void warn(const char* what, std::int64_t tokens, const char* consequence) const {
    if (!session_.shows()) return;
    log_warning(
        fmt::format("{} has {}, and less than {} fit; {}", what, counted(tokens, "token"), capacity_, consequence));
  }

  Session& session_;
  std::optional<ChatTemplate> chat_;
  TextRules rules_;
  std::int64_t capacity_ = 0;  // tokens of a conversation
  std::vector<jinja::Value> messages_;
  Generator::Speed speed_;
};

}  // namespace

void chat(Session& session) {
  Chat conversation(session);
  Communicator& ranks = session.connect();
  const std::unique_ptr<Generator> generator = make_generator(session, conversation.most(), ranks);
  const AbortOnUnwind guard(ranks);
  conversation.run(*generator);
  print_speed(session, conversation.speed());
}

}  // namespace megalith
