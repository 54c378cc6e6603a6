// Chat templates: the text of a conversation as a model was trained to read it, and the parts that the model writes.
// Results equal those of Hugging Face transformers' apply_chat_template.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/chat/jinja.h"

namespace megalith {

// Tokens that a template names, such as bos_token and eos_token: texts by name. additional_special_tokens is a list.
using SpecialTexts = jinja::Dict;

struct ChatOptions {
  jinja::Dict variables;  // further variables of the template, such as enable_thinking
  jinja::Date date;       // of strftime_now; fixed, so that the same conversation always has the same text
  jinja::Limits limits;
};

struct LabelledText {
  std::string text;
  std::vector<jinja::Range> trained;  // bytes that the assistant writes, with its end of turn; in order, none empty
};

// Several threads may render at a time.
class ChatTemplate {
 public:
  // Loads a template. `where` is one of these:
  // - a folder of transformers: chat_template.jinja, and additional_chat_templates/tool_use.jinja if it exists, or else
  //   chat_template of tokenizer_config.json;
  // - a file with the ending .jinja;
  // - chatml, llama3, or Megatron-LM's formats identity (the contents alone), nemotron-h-aligned and nemotron-nano-v2.
  // Special tokens are those of tokenizer_config.json in `tokenizer_folder`, which may be empty, or of the folder.
  // Errors: kUsage for another name or a folder without a template; kFileIo; kFormat.
  static ChatTemplate load(const std::string& where, const std::string& tokenizer_folder, ChatOptions options = {});

  ChatTemplate(jinja::Template text, SpecialTexts special, ChatOptions options = {});
  void set_tool_template(jinja::Template text);  // used instead if a conversation has tools

  const std::string& name() const { return template_.name(); }
  // Identity for records: equal for equal templates, special tokens, variables and dates.
  std::string identity() const;
  const SpecialTexts& special() const { return special_; }

  // `messages` is a list of dictionaries; `tools` a list, or None. Error kFormat with the place in the template.
  std::string render(const jinja::Value& messages, const jinja::Value& tools, bool add_generation_prompt) const;

  // Renders and finds what the assistant writes in its messages for which trained[i] is set; an empty list means all.
  // If the template has {% generation %}, its blocks count. Else the text of message i is what follows the rendering of
  // the messages before it with a generation prompt. Error kFormat if that prompt does not begin the conversation, or
  // if the template changes an answer when more messages follow, as those that drop earlier reasoning.
  LabelledText render_labelled(const jinja::Value& messages, const jinja::Value& tools,
                               const std::vector<bool>& trained = {}) const;

 private:
  const jinja::Template& template_for(const jinja::Value& tools) const;
  jinja::Rendered render_first(std::span<const jinja::Value> messages, const jinja::Value& tools,
                               bool add_generation_prompt) const;
  std::vector<jinja::Range> select_marks(std::span<const jinja::Value> messages, const jinja::Value& tools,
                                         const std::vector<bool>& trained, std::vector<jinja::Range> marks) const;
  jinja::Range find_answer(std::span<const jinja::Value> messages, const jinja::Value& tools, std::size_t message,
                           std::string_view text) const;

  jinja::Template template_;
  std::vector<jinja::Template> tool_template_;  // at most one
  SpecialTexts special_;
  ChatOptions options_;
};

// Returns the special tokens of a tokenizer_config.json. Error kFormat.
SpecialTexts parse_special_texts(std::string_view config, const std::string& subject);

}  // namespace megalith
