// Files of chat templates.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/base/error.h"
#include "core/base/files/file.h"
#include "core/chat/built_in_templates.h"
#include "core/chat/chat_template.h"
#include "core/chat/jinja_lexer.h"
#include "core/checkpoint/printable.h"
#include "core/checkpoint/strict_json.h"
#include "core/tokenizer/tokenizer.h"

namespace megalith {

namespace {

using nlohmann::json;

constexpr std::size_t kMaxTokenText = 1024;
constexpr std::string_view kToolTemplateFile = "additional_chat_templates/tool_use.jinja";

// Text of a token: a string, or an object with the string `content`.
std::string token_text(const json& token, const std::string& subject) {
  if (!token.is_object()) return json_text(token, kMaxTokenText, subject);
  if (!token.contains("content")) refuse_content(subject, "key content", "none");
  return json_text(token["content"], kMaxTokenText, subject + ": content");
}

SpecialTexts special_texts(const json& config, const std::string& subject) {
  SpecialTexts special;
  for (const char* name :
       {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}) {
    const auto found = config.find(name);
    if (found == config.end() || found->is_null()) continue;
    special.set(name, jinja::Value::text(token_text(*found, fmt::format("{}: {}", subject, name))));
  }
  constexpr const char* kAdditional = "additional_special_tokens";
  const auto additional = config.find(kAdditional);
  if (additional == config.end() || !additional->is_array()) return special;
  std::vector<jinja::Value> tokens;
  for (const json& token : *additional) {
    tokens.push_back(jinja::Value::text(token_text(token, fmt::format("{}: {}", subject, kAdditional))));
  }
  special.set(kAdditional, jinja::Value::list(std::move(tokens)));
  return special;
}

json parse_config(std::string_view text, const std::string& subject) {
  json config = parse_strict_json(text, subject);
  if (!config.is_object()) refuse_content(subject, "an object", config.type_name());
  return config;
}

// Templates of a folder by their names: default, and tool_use if there is one.
using Texts = std::vector<std::pair<std::string, std::string>>;

const std::string* text_named(const Texts& texts, std::string_view name) {
  const auto found = std::ranges::find(texts, name, &Texts::value_type::first);
  return found == texts.end() ? nullptr : &found->second;
}

// Reads chat_template: a text, or a list of {"name", "template"}.
Texts texts_of_config(const json& config, const std::string& subject) {
  const auto found = config.find("chat_template");
  if (found == config.end() || found->is_null()) return {};
  const std::string key = subject + ": chat_template";
  if (!found->is_array()) return {{"default", json_text(*found, jinja::kMaxTemplateBytes, key)}};
  Texts texts;
  for (const json& entry : *found) {
    JsonObject object(entry, key);
    texts.emplace_back(object.text("name", kMaxTokenText), object.text("template", jinja::kMaxTemplateBytes));
    object.finish();
  }
  return texts;
}

Texts texts_of_folder(const std::string& folder, const json& config, const std::string& subject) {
  const auto read = [&](std::string_view name) { return read_model_file(folder, name, jinja::kMaxTemplateBytes); };
  if (!look_at(fmt::format("{}/{}", folder, kChatTemplate))) return texts_of_config(config, subject);
  Texts texts = {{"default", read(kChatTemplate)}};
  if (look_at(fmt::format("{}/{}", folder, kToolTemplateFile))) texts.emplace_back("tool_use", read(kToolTemplateFile));
  return texts;
}

bool is_directory(const std::string& path) {
  const std::optional<PathInfo> info = look_at(path);
  return info && info->type == EntryType::kDirectory;
}

const BuiltInTemplate* find_built_in(const std::string& name) {
  const auto found = std::ranges::find(kBuiltInTemplates, name, &BuiltInTemplate::name);
  return found == std::end(kBuiltInTemplates) ? nullptr : found;
}

constexpr const char* kKinds =
    "chatml, llama3, identity, nemotron-h-aligned, nemotron-nano-v2, a file that ends in .jinja, or a folder with a "
    "chat template";

ChatTemplate load_folder(const std::string& folder, const json& config, const std::string& subject,
                         SpecialTexts special, ChatOptions options) {
  const Texts texts = texts_of_folder(folder, config, subject);
  const std::string* text = text_named(texts, "default");
  if (text == nullptr) {
    refuse_usage("chat template", {.expected = kKinds,
                                   .got = fmt::format("{}, which has no chat template", printable(folder)),
                                   .remedy = "name a built-in template or a file"});
  }
  const bool has_file = look_at(fmt::format("{}/{}", folder, kChatTemplate)).has_value();
  const std::string source = has_file ? fmt::format("{}/{}", folder, kChatTemplate) : subject + ": chat_template";
  ChatTemplate loaded(jinja::Template(source, *text), std::move(special), std::move(options));
  if (const std::string* tools = text_named(texts, "tool_use")) {
    loaded.set_tool_template(jinja::Template(source + " (tool_use)", *tools));
  }
  return loaded;
}

}  // namespace

SpecialTexts parse_special_texts(std::string_view config, const std::string& subject) {
  return special_texts(parse_config(config, subject), subject);
}

ChatTemplate ChatTemplate::load(const std::string& where, const std::string& tokenizer_folder, ChatOptions options) {
  const bool is_folder = find_built_in(where) == nullptr && is_directory(where);
  const std::string folder = tokenizer_folder.empty() && is_folder ? where : tokenizer_folder;
  const auto config_of = [](const std::string& of_folder, std::string& subject) -> json {
    subject = fmt::format("{}/{}", of_folder, kTokenizerConfig);
    if (of_folder.empty() || !look_at(subject)) return json::object();
    return parse_config(read_model_file(of_folder, kTokenizerConfig, kMaxTokenizerFileBytes), subject);
  };
  std::string subject;
  const json config = config_of(folder, subject);
  SpecialTexts special = special_texts(config, subject);
  if (const BuiltInTemplate* built_in = find_built_in(where)) {
    return {jinja::Template(std::string(built_in->name), built_in->text), std::move(special), std::move(options)};
  }
  if (is_folder) {
    std::string own_subject;
    const json own = config_of(where, own_subject);
    return load_folder(where, own, own_subject, std::move(special), std::move(options));
  }
  if (!where.ends_with(".jinja")) {
    refuse_usage("chat template",
                 {.expected = kKinds, .got = printable(where), .remedy = "check the name and the path"});
  }
  return {jinja::Template(where, read_whole_file(where, jinja::kMaxTemplateBytes)), std::move(special),
          std::move(options)};
}

}  // namespace megalith
