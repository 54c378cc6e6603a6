#include "core/chat/chat_template.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/base/error.h"
#include "core/chat/jinja_text.h"

namespace megalith {

namespace {

bool is_assistant(const jinja::Value& message) {
  const jinja::Value* role = message.is(jinja::Value::Kind::kDict) ? message.as_dict().find("role") : nullptr;
  return role != nullptr && role->is_text() && role->as_text() == "assistant";
}

std::string json_of(jinja::Dict values) {
  return jinja::to_json(jinja::Value::dict(std::move(values)), {.sorted = true});
}

std::string messages_of(std::size_t count) { return fmt::format("{} message{}", count, count == 1 ? "" : "s"); }

// First byte that two texts do not share.
std::size_t first_difference(std::string_view a, std::string_view b) {
  const auto [in_a, in_b] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  return static_cast<std::size_t>(in_a - a.begin());
}

// Removes empty ranges and unites neighbors.
std::vector<jinja::Range> simplified(const std::vector<jinja::Range>& ranges) {
  std::vector<jinja::Range> simple;
  for (const jinja::Range& range : ranges) {
    if (range.begin == range.end) continue;
    if (!simple.empty() && simple.back().end == range.begin) {
      simple.back().end = range.end;
    } else {
      simple.push_back(range);
    }
  }
  return simple;
}

}  // namespace

ChatTemplate::ChatTemplate(jinja::Template text, SpecialTexts special, ChatOptions options)
    : template_(std::move(text)), special_(std::move(special)), options_(std::move(options)) {}

void ChatTemplate::set_tool_template(jinja::Template text) { tool_template_.assign(1, std::move(text)); }

std::string ChatTemplate::identity() const {
  std::string all = template_.text() + '\0';
  for (const jinja::Template& other : tool_template_) all += other.text() + '\0';
  const jinja::Date& date = options_.date;
  all += json_of(special_) + json_of(options_.variables) +
         fmt::format("{} {} {} {} {} {}", date.year, date.month, date.day, date.hour, date.minute, date.second);
  return fmt::format("chat-{:016x}", XXH3_64bits(all.data(), all.size()));
}

const jinja::Template& ChatTemplate::template_for(const jinja::Value& tools) const {
  const bool has_tools = !tools.is(jinja::Value::Kind::kNone) && !tool_template_.empty();
  return has_tools ? tool_template_.front() : template_;
}

jinja::Rendered ChatTemplate::render_first(std::span<const jinja::Value> messages, const jinja::Value& tools,
                                           bool add_generation_prompt) const {
  jinja::Dict variables = special_;
  variables.set("messages", jinja::Value::list({messages.begin(), messages.end()}));
  variables.set("tools", tools);
  variables.set("documents", jinja::Value::none());
  variables.set("add_generation_prompt", jinja::Value::boolean(add_generation_prompt));
  for (const auto& [name, value] : options_.variables.members) variables.set(name, value);
  return template_for(tools).render(variables, options_.date, options_.limits);
}

std::string ChatTemplate::render(const jinja::Value& messages, const jinja::Value& tools,
                                 bool add_generation_prompt) const {
  return render_first(messages.as_list().items, tools, add_generation_prompt).text;
}

LabelledText ChatTemplate::render_labelled(const jinja::Value& messages, const jinja::Value& tools,
                                           const std::vector<bool>& trained) const {
  const std::span<const jinja::Value> all = messages.as_list().items;
  require(trained.empty() || trained.size() == all.size(), "ChatTemplate: one label a message");
  jinja::Rendered rendered = render_first(all, tools, false);
  LabelledText labelled{.text = std::move(rendered.text), .trained = {}};
  std::vector<jinja::Range> ranges;
  if (template_for(tools).has_generation()) {
    ranges = select_marks(all, tools, trained, std::move(rendered.generated));
  } else {
    for (std::size_t i = 0; i < all.size(); ++i) {
      const bool is_wanted = is_assistant(all[i]) && (trained.empty() || trained[i]);
      if (is_wanted) ranges.push_back(find_answer(all, tools, i, labelled.text));
    }
  }
  labelled.trained = simplified(ranges);
  return labelled;
}

// The marks of message i are those that its rendering adds to the messages before it.
std::vector<jinja::Range> ChatTemplate::select_marks(std::span<const jinja::Value> messages, const jinja::Value& tools,
                                                     const std::vector<bool>& trained,
                                                     std::vector<jinja::Range> marks) const {
  std::vector<std::size_t> assistants;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (is_assistant(messages[i])) assistants.push_back(i);
  }
  if (trained.empty() || std::ranges::all_of(assistants, [&](std::size_t i) { return trained[i]; })) return marks;
  std::vector<jinja::Range> wanted;
  std::size_t begin = 0;
  for (const std::size_t i : assistants) {
    const bool is_last = i == assistants.back();
    const std::size_t end = is_last ? marks.size() : render_first(messages.first(i + 1), tools, false).generated.size();
    if (end < begin || end > marks.size()) {
      refuse_format(name(), "as many {% generation %} blocks of the first messages alone as in the conversation",
                    fmt::format("{} of the first {} messages", end, i + 1),
                    "train all answers, or mark each answer by one block");
    }
    for (std::size_t mark = begin; trained[i] && mark < end; ++mark) wanted.push_back(marks[mark]);
    begin = end;
  }
  return wanted;
}

jinja::Range ChatTemplate::find_answer(std::span<const jinja::Value> messages, const jinja::Value& tools,
                                       std::size_t message, std::string_view text) const {
  constexpr const char* kRemedy = "mark answers in the template by {% generation %}, or choose a built-in template";
  const std::string prompt = render_first(messages.first(message), tools, true).text;
  const bool is_last = message + 1 == messages.size();  // then the text is that of all messages
  const std::string rendered = is_last ? std::string() : render_first(messages.first(message + 1), tools, false).text;
  const std::string_view turn = is_last ? text : rendered;
  if (!turn.starts_with(prompt)) {
    refuse_format(name(),
                  fmt::format("the text of {} and the generation prompt to begin that of {}", messages_of(message),
                              messages_of(message + 1)),
                  fmt::format("another text from byte {}", first_difference(prompt, turn)), kRemedy);
  }
  if (!text.starts_with(turn)) {
    refuse_format(name(),
                  fmt::format("the text of {} to begin that of all {}", messages_of(message + 1), messages.size()),
                  fmt::format("another text from byte {}, as if the template changes earlier answers",
                              first_difference(turn, text)),
                  std::string("train the last answer alone (--sft-train last), or ") + kRemedy);
  }
  return {.begin = prompt.size(), .end = turn.size()};
}

}  // namespace megalith
