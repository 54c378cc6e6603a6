#include "apps/prepare/conversation_encoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
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

// Template of --chat-template or --sft-tokenizer-prompt-format; empty: the tokenizer folder's.
std::string template_name(const PrepareOptions& options) {
  const std::string& format = options.sft_tokenizer_prompt_format;
  if (format.empty()) return options.chat_template;
  constexpr std::string_view kFormats[] = {"nemotron-h-aligned", "nemotron-nano-v2", "identity"};
  if (std::ranges::find(kFormats, format) != std::end(kFormats)) return format;
  const bool is_default = format == "default";  // Megatron-LM trains all its tokens, also those of the user
  refuse_usage("--sft-tokenizer-prompt-format",
               {.expected = fmt::format("one of {}", fmt::join(kFormats, ", ")),
                .got = fmt::format("'{}'", format),
                .remedy = is_default ? "remove it: the template of the tokenizer's folder is used, and answers alone "
                                       "are trained; or name a folder or a file with --chat-template"
                                     : "name a template with --chat-template"});
}

}  // namespace

ConversationEncoder make_conversation_encoder(const Options& options) {
  const std::string folder = tokenizer_folder(options.data);
  const std::string named = template_name(options.prepare);
  const bool trains_last = options.prepare.sft_train == TrainedAnswers::kLast;
  if (named.empty() && folder.empty()) {
    refuse_usage("--chat-template",
                 {.expected = "a template, since the tokenizer has no folder with one",
                  .got = "none",
                  .remedy = "name a built-in template, a file that ends in .jinja, or a folder of transformers"});
  }
  const auto chat = std::make_shared<const ChatTemplate>(ChatTemplate::load(named.empty() ? folder : named, folder));
  return [chat, trains_last](const Tokenizer& tokenizer, std::string_view line, const std::string& place) {
    Conversation conversation = parse_conversation(line, place);
    if (trains_last) train_last_answer(conversation);
    try {
      return encode_conversation(tokenizer, *chat, conversation);
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("{}: {}", place, error.what()));
    }
  };
}

}  // namespace megalith
