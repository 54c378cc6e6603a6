#include "core/chat/conversation.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/base/error.h"
#include "core/chat/jinja_text.h"
#include "core/checkpoint/printable.h"

namespace megalith {

namespace {

using jinja::Dict;
using jinja::Value;
using ValueKind = Value::Kind;

[[noreturn]] void refuse(const std::string& place, const std::string& expected, const std::string& got) {
  refuse_format(place, expected, got, "correct or remove the line");
}

// Describes a value for messages.
std::string shown(const Value* value) {
  if (value == nullptr) return "none";
  if (value->is_text()) return "the text " + printable(value->as_text());
  constexpr std::pair<ValueKind, const char*> kNames[] = {
      {ValueKind::kNone, "null"},      {ValueKind::kBool, "a boolean"}, {ValueKind::kInt, "an integer"},
      {ValueKind::kFloat, "a number"}, {ValueKind::kList, "a list"},    {ValueKind::kDict, "an object"}};
  const auto found = std::ranges::find(kNames, value->kind(), &std::pair<ValueKind, const char*>::first);
  return found == std::end(kNames) ? "a value" : found->second;
}

bool is_list(const Value* value) { return value != nullptr && value->is(ValueKind::kList); }
bool is_text(const Value* value) { return value != nullptr && value->is_text(); }
// A missing member and null are the same.
const Value* find_set(const Dict& dict, std::string_view key) {
  const Value* found = dict.find(key);
  return found != nullptr && found->is(ValueKind::kNone) ? nullptr : found;
}

const Dict& object_of(const Value& value, const std::string& place) {
  if (!value.is(ValueKind::kDict)) refuse(place, "an object", shown(&value));
  return value.as_dict();
}

class LineParser {
 public:
  LineParser(const Dict& line, std::string place) : line_(line), place_(std::move(place)) {}

  Conversation parse() {
    const Value* messages = find_set(line_, "messages");
    const Value* turns = find_set(line_, "conversations");
    if (messages != nullptr && turns != nullptr) refuse(place_, "'messages' or 'conversations'", "both");
    if (messages != nullptr) {
      add_list("messages", *messages, true);
    } else if (turns != nullptr) {
      add_system();
      add_list("conversations", *turns, true);
    } else {
      add_pair();
    }
    if (messages_.empty()) refuse(place_, "at least one message", "none");
    conversation_.messages = Value::list(std::move(messages_));
    add_tools();
    return std::move(conversation_);
  }

 private:
  void add_list(const std::string& key, const Value& list, bool trained) {
    if (!list.is(ValueKind::kList)) refuse(place_ + ": " + key, "a list of messages", shown(&list));
    for (std::size_t i = 0; i < list.as_list().items.size(); ++i) {
      const std::string place = fmt::format("{}: {}[{}]", place_, key, i);
      const Dict& message = object_of(list.as_list().items[i], place);
      const bool is_turn = message.find("from") != nullptr && message.find("role") == nullptr;
      add_message(is_turn ? message_of_turn(message, place) : message, place, trained);
    }
  }

  // ShareGPT's {"from", "value"}.
  static Dict message_of_turn(const Dict& turn, const std::string& place) {
    constexpr std::pair<std::string_view, std::string_view> kRoles[] = {
        {"system", "system"},       {"human", "user"},      {"user", "user"},         {"gpt", "assistant"},
        {"assistant", "assistant"}, {"model", "assistant"}, {"chatgpt", "assistant"}, {"bard", "assistant"},
        {"bing", "assistant"},      {"tool", "tool"},       {"observation", "tool"}};
    const Value* from = turn.find("from");
    const auto role =
        std::ranges::find_if(kRoles, [&](const auto& r) { return is_text(from) && r.first == from->as_text(); });
    if (role == std::end(kRoles)) refuse(place + ": from", "system, human, gpt, tool or a synonym", shown(from));
    const Value* value = turn.find("value");
    if (!is_text(value)) refuse(place + ": value", "a text", shown(value));
    Dict message;
    message.set("role", Value::text(std::string(role->second)));
    message.set("content", *value);
    if (const Value* weight = turn.find("weight")) message.set("weight", *weight);
    return message;
  }

  void add_message(const Dict& message, const std::string& place, bool trained) {
    const Value* role = message.find("role");
    if (!is_text(role) || role->as_text().empty()) refuse(place + ": role", "a text", shown(role));
    check_content(message, place);
    const bool is_assistant = role->as_text() == "assistant";
    conversation_.trained.push_back(is_assistant && trained && weight_of(message, place) == 1);
    messages_.push_back(Value::dict(cleaned(message)));
  }

  static void check_content(const Dict& message, const std::string& place) {
    const Value* content = find_set(message, "content");
    const Value* calls = find_set(message, "tool_calls");
    if (calls != nullptr && !is_list(calls)) refuse(place + ": tool_calls", "a list", shown(calls));
    if (is_text(content) || (content == nullptr && calls != nullptr)) return;
    const bool is_empty = content == nullptr && message.find("content") == nullptr;
    if (!is_list(content)) {
      refuse(place + ": content", "a text or a list of parts", is_empty ? "none" : shown(message.find("content")));
    }
    for (const Value& part : content->as_list().items) object_of(part, place + ": content: part");
  }

  static std::int64_t weight_of(const Dict& message, const std::string& place) {
    const Value* weight = find_set(message, "weight");
    if (weight == nullptr) return 1;
    const bool is_known = weight->is_number() && (weight->as_real() == 0 || weight->as_real() == 1);
    if (!is_known) refuse(place + ": weight", "0 or 1", shown(weight));
    return weight->as_real() == 1 ? 1 : 0;
  }

  // Drops null members, and fills the names of reasoning from each other, as transformers does.
  static Dict cleaned(const Dict& message) {
    const Value* reasoning = nullptr;
    for (const char* name : {"reasoning", "thinking", "reasoning_content"}) {  // the last one counts
      if (const Value* found = find_set(message, name)) reasoning = found;
    }
    Dict clean;
    if (reasoning != nullptr) clean.set("thinking", *reasoning);
    for (const auto& [name, value] : message.members) {
      if (!value.is(ValueKind::kNone) || name == "content") clean.set(name, value);
    }
    if (reasoning != nullptr) clean.set("reasoning_content", *reasoning);
    return clean;
  }

  void add_system() {
    const Value* system = find_set(line_, "system");
    if (system == nullptr) return;
    if (!is_text(system)) refuse(place_ + ": system", "a text", shown(system));
    if (system->as_text().empty()) return;
    Dict message;
    message.set("role", Value::text("system"));
    message.set("content", *system);
    add_message(message, place_ + ": system", false);
  }

  void add_pair() {
    const Value* prompt = find_set(line_, "prompt");
    const Value* completion = find_set(line_, "completion");
    if (prompt == nullptr || completion == nullptr) {
      refuse(place_, "'messages', 'conversations', or 'prompt' and 'completion'", "none of them");
    }
    if (is_text(prompt) && is_text(completion)) {
      add_text("user", *prompt);
      add_text("assistant", *completion);
      return;
    }
    if (!is_list(prompt) || !is_list(completion)) {
      refuse(place_, "two texts or two lists as 'prompt' and 'completion'",
             fmt::format("{} and {}", shown(prompt), shown(completion)));
    }
    add_list("prompt", *prompt, false);
    add_list("completion", *completion, true);
  }

  void add_text(const char* role, const Value& content) {
    Dict message;
    message.set("role", Value::text(role));
    message.set("content", content);
    add_message(message, place_, true);
  }

  void add_tools() {
    const Value* tools = find_set(line_, "tools");
    if (tools == nullptr || (tools->is_text() && tools->as_text().empty())) return;
    const std::string place = place_ + ": tools";
    const Value list = tools->is_text() ? jinja::parse_json(tools->as_text(), place) : *tools;
    if (!list.is(ValueKind::kList)) refuse(place, "a list of objects", shown(&list));
    for (const Value& tool : list.as_list().items) object_of(tool, place);
    if (!list.as_list().items.empty()) conversation_.tools = list;
  }

  const Dict& line_;
  std::string place_;
  std::vector<Value> messages_;
  Conversation conversation_;
};

}  // namespace

Conversation parse_conversation(std::string_view line, const std::string& place) {
  const Value value = jinja::parse_json(line, place);
  return LineParser(object_of(value, place), place).parse();
}

void train_last_answer(Conversation& conversation) {
  std::vector<bool>& trained = conversation.trained;
  const auto last = std::find(trained.rbegin(), trained.rend(), true);
  if (last == trained.rend()) return;
  const auto kept = trained.rend() - last;
  trained.assign(static_cast<std::size_t>(kept), false);
  trained.back() = true;
  const std::vector<Value>& messages = conversation.messages.as_list().items;
  if (kept < std::ssize(messages)) conversation.messages = Value::list({messages.begin(), messages.begin() + kept});
}

}  // namespace megalith
