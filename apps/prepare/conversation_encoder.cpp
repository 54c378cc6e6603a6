#include "apps/prepare/conversation_encoder.h"

#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "apps/config/data_options.h"
#include "apps/config/program_options.h"
#include "core/base/error.h"
#include "core/chat/chat_template.h"
#include "core/chat/conversation.h"

namespace megalith {

namespace {

// Folder of tokenizer.json, which has the special tokens and the chat template; empty for other tokenizers.
std::string tokenizer_folder(const DataOptions& data) {
  if (data.tokenizer_type != TokenizerType::kHuggingFace) return "";
  const std::string file = tokenizer_file_path(tokenizer_files("HuggingFaceTokenizer")[0], data.tokenizer_model);
  const std::filesystem::path folder = std::filesystem::path(file).parent_path();
  return folder.empty() ? "." : folder.string();
}

}  // namespace

ConversationEncoder make_conversation_encoder(const Options& options) {
  const std::string folder = tokenizer_folder(options.data);
  const std::string& named = options.prepare.chat_template;
  if (named.empty() && folder.empty()) {
    refuse_usage("--chat-template",
                 {.expected = "a template, since the tokenizer has no folder with one",
                  .got = "none",
                  .remedy = "name chatml, llama3, identity, a file that ends in .jinja, or a folder of transformers"});
  }
  const auto chat = std::make_shared<const ChatTemplate>(ChatTemplate::load(named.empty() ? folder : named, folder));
  return [chat](const Tokenizer& tokenizer, std::string_view line, const std::string& place) {
    const Conversation conversation = parse_conversation(line, place);
    try {
      return encode_conversation(tokenizer, *chat, conversation);
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("{}: {}", place, error.what()));
    }
  };
}

}  // namespace megalith
