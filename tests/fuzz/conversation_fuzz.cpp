// A line of fine-tuning data, rendered by a template without marks and by one with marks, and encoded as bytes. The
// first byte selects tokenizer_config.json instead.
#include "core/chat/conversation.h"

#include "core/base/error.h"
#include "core/chat/chat_tokens.h"
#include "core/chat/jinja_plain_json.h"
#include "core/chat/jinja_text.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace megalith;

constexpr std::string_view kUnmarked =
    "{% for m in messages %}{{ m.role ~ ':' ~ m.content ~ m.tool_calls ~ ';' }}{% endfor %}"
    "{{ tools | tojson }}{% if add_generation_prompt %}assistant:{% endif %}";

void use(const ChatTemplate& chat, const Conversation& conversation) {
  const ChatTokens tokens = encode_conversation(Tokenizer(), chat, conversation);
  if (tokens.ids.size() != tokens.trained.size()) fuzz::defect("labels of another length");
}

void compare_readers(std::string_view line) {
  const std::optional<jinja::Value> plain = jinja::parse_plain_json(line);
  if (!plain) return;
  std::string text = jinja::to_json(*plain, {}), other;
  try {
    other = jinja::to_json(jinja::parse_any_json(line, "line"), {});
  } catch (const megalith::Error&) {
  }
  if (text != other) fuzz::defect("two readers of JSON differ");
}

void try_line(std::string_view line) {
  compare_readers(line);
  static const ChatTemplate unmarked(jinja::Template("unmarked", kUnmarked), {});
  static const ChatTemplate chatml = ChatTemplate::load("chatml", "");
  Conversation conversation = parse_conversation(line, "line");
  if (conversation.trained.size() != conversation.messages.as_list().items.size()) fuzz::defect("one label a message");
  if (conversation.trained.size() > 20) return;  // without marks, time grows with the square of the messages
  train_last_answer(conversation);
  use(unmarked, conversation);
  use(chatml, conversation);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  const bool is_config = input.byte() % 8 == 7;
  fuzz::expect_result_or_error(
      [&] { is_config ? void(parse_special_texts(input.rest(), "config")) : try_line(input.rest()); });
  return 0;
}
