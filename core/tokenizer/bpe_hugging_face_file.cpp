// Reader of tokenizer.json from version 0.23 and older of the tokenizers library.
#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>

#include "core/tokenizer/bpe_files.h"
#include "core/tokenizer/bpe_spelling.h"

namespace megalith {

namespace {

using Json = nlohmann::json;

// JSON value and its place: FILE: KEY.KEY.
struct Node {
  const Json& value;
  std::string place;
};

std::string shown(const Json& value) {
  if (value.is_string()) return quoted_bytes(value.get_ref<const std::string&>());
  return value.is_structured() ? value.type_name() : value.dump();
}

[[noreturn]] void refuse(const Node& node, const std::string& expected) {
  refuse_tokenizer_file(node.place, expected, shown(node.value));
}

void expect_object(const Node& node, std::initializer_list<std::string_view> keys) {
  if (!node.value.is_object()) refuse(node, "an object");
  for (const auto& [key, value] : node.value.items()) {
    if (std::ranges::find(keys, key) == keys.end()) {
      refuse_tokenizer_file(node.place, fmt::format("the keys {}", fmt::join(keys, ", ")), quoted_bytes(key));
    }
  }
}

// Returns a null value if the key is absent.
Node member(const Node& node, const char* key) {
  static const Json null;
  const auto found = node.value.find(key);
  const std::string separator = node.place.find(": ") == std::string::npos ? ": " : ".";
  return {found == node.value.end() ? null : *found, node.place + separator + key};
}

bool boolean(const Node& node, bool otherwise) {
  if (node.value.is_null()) return otherwise;
  if (!node.value.is_boolean()) refuse(node, "true or false");
  return node.value.get<bool>();
}

const Json& array(const Node& node, const char* expected = "an array") {
  if (!node.value.is_array()) refuse(node, expected);
  return node.value;
}

const std::string& text(const Node& node) {
  if (!node.value.is_string()) refuse(node, "a text");
  return node.value.get_ref<const std::string&>();
}

void expect_none(const Node& node, const char* expected) {
  // NOLINTNEXTLINE(readability-container-size-empty): empty() is also true of lists
  const bool is_none = node.value.is_null() || node.value == "" || node.value == 0 || node.value == false;
  if (!is_none) refuse(node, expected);
}

const std::string& type_of(const Node& node) {
  if (!node.value.is_object()) refuse(node, "an object with a type");
  return text(member(node, "type"));
}

void expect_type(const Node& node, std::string_view type, const char* expected) {
  if (type_of(node) != type) refuse_tokenizer_file(node.place, expected, quoted_bytes(type_of(node)));
}

void read_normalizer(BpeVocabulary& vocabulary, const Node& node) {
  if (node.value.is_null()) return;
  const std::string& type = type_of(node);
  if (type == "NFC") {
    expect_object(node, {"type"});
    vocabulary.nfc = true;
  } else if (type == "Sequence") {
    expect_object(node, {"type", "normalizers"});
    const Node list = member(node, "normalizers");
    for (const Json& item : array(list)) read_normalizer(vocabulary, {item, list.place});
  } else {
    refuse_tokenizer_file(node.place, "none, NFC or a Sequence of it", quoted_bytes(type));
  }
}

// Reads a ByteLevel pre-tokenizer; returns use_regex.
bool read_byte_level(BpeVocabulary& vocabulary, const Node& node) {
  expect_type(node, "ByteLevel", "ByteLevel");
  expect_object(node, {"type", "add_prefix_space", "trim_offsets", "use_regex"});
  vocabulary.prefix_space = boolean(member(node, "add_prefix_space"), true);
  return boolean(member(node, "use_regex"), true);
}

WordPattern read_split(const Node& node) {
  expect_type(node, "Split", "Split and then ByteLevel");
  expect_object(node, {"type", "pattern", "behavior", "invert"});
  const std::string& behavior = text(member(node, "behavior"));
  const bool invert = boolean(member(node, "invert"), false);
  if (!((behavior == "Isolated" && !invert) || (behavior == "Removed" && invert))) {
    refuse_tokenizer_file(node.place, "behavior Isolated, or Removed with invert",
                          fmt::format("{}{}", quoted_bytes(behavior), invert ? " with invert" : ""));
  }
  const Node pattern = member(node, "pattern");
  expect_object(pattern, {"Regex"});
  const Node regex = member(pattern, "Regex");
  const std::optional<WordPattern> known = word_pattern_of_regex(text(regex));
  if (!known) {
    refuse_tokenizer_file(regex.place, fmt::format("that of {}", word_pattern_names()), shown(regex.value),
                          "expressions are recognized, never executed");
  }
  return *known;
}

void read_pre_tokenizer(BpeVocabulary& vocabulary, const Node& node) {
  constexpr const char* kExpected = "ByteLevel with use_regex, or a Sequence of Split and ByteLevel without it";
  if (node.value.is_null()) refuse_tokenizer_file(node.place, kExpected, "none");
  const std::string& type = type_of(node);
  if (type == "ByteLevel") {
    if (!read_byte_level(vocabulary, node)) refuse_tokenizer_file(node.place, kExpected, "use_regex false");
    vocabulary.pattern = WordPattern::kGpt2;
    return;
  }
  if (type != "Sequence") refuse_tokenizer_file(node.place, kExpected, quoted_bytes(type));
  expect_object(node, {"type", "pretokenizers"});
  const Node list = member(node, "pretokenizers");
  if (!list.value.is_array() || list.value.size() != 2) refuse_tokenizer_file(list.place, kExpected, "another number");
  vocabulary.pattern = read_split({list.value[0], list.place + "[0]"});
  const Node byte_level{list.value[1], list.place + "[1]"};
  const bool cuts_again = read_byte_level(vocabulary, byte_level);
  if (cuts_again || vocabulary.prefix_space) {
    refuse_tokenizer_file(byte_level.place, "use_regex and add_prefix_space false after a Split", "true");
  }
}

void read_merges(SpelledVocabulary& spelled, const Node& node) {
  std::size_t number = 0;
  for (const Json& merge : array(node, "an array of merges")) {
    const std::string place = fmt::format("{}[{}]", node.place, number++);
    if (merge.is_string()) {
      const std::string_view both = merge.get_ref<const std::string&>();
      const std::size_t space = both.find(' ');
      if (space != std::string_view::npos && both.rfind(' ') == space) {
        spelled.add_merge(place, both.substr(0, space), both.substr(space + 1));
        continue;
      }
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      spelled.add_merge(place, merge[0].get_ref<const std::string&>(), merge[1].get_ref<const std::string&>());
      continue;
    }
    refuse_tokenizer_file(place, "two tokens, in an array or with a space between", shown(merge));
  }
}

SpelledVocabulary read_model(BpeVocabulary& vocabulary, const Node& node) {
  expect_object(node, {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                       "byte_fallback", "ignore_merges", "vocab", "merges"});
  if (const Node type = member(node, "type"); !type.value.is_null() && text(type) != "BPE") {
    refuse(type, "BPE");
  }
  expect_none(member(node, "dropout"), "none: the same text is to give the same ids");
  expect_none(member(node, "continuing_subword_prefix"), "none for a tokenizer of bytes");
  expect_none(member(node, "end_of_word_suffix"), "none for a tokenizer of bytes");
  expect_none(member(node, "byte_fallback"), "false for a tokenizer of bytes");
  vocabulary.whole_words = boolean(member(node, "ignore_merges"), false);
  const Node vocab = member(node, "vocab");
  SpelledVocabulary spelled(vocabulary, vocab.place, vocab.value);
  read_merges(spelled, member(node, "merges"));
  return spelled;
}

void read_added_token(BpeVocabulary& vocabulary, const SpelledVocabulary& spelled, const Node& node) {
  expect_object(node, {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
  for (const char* key : {"single_word", "lstrip", "rstrip"}) {
    if (const Node flag = member(node, key); boolean(flag, false)) {
      refuse_tokenizer_file(flag.place, "false", "true", "added tokens that take the space around them are not built");
    }
  }
  const Node id = member(node, "id");
  const std::string& content = text(member(node, "content"));
  if (content.empty() || content.size() > kMaxTokenBytes) {
    refuse_tokenizer_file(node.place + ".content", fmt::format("1 to {} bytes", kMaxTokenBytes),
                          std::to_string(content.size()));
  }
  if (!id.value.is_number_unsigned() || id.value > kMaxTokenId) {
    refuse(id, fmt::format("an id from 0 to {}", kMaxTokenId));
  }
  const bool special = boolean(member(node, "special"), false);
  const AddedToken token{
      .text = content, .id = id.value.get<std::int32_t>(), .normalized = boolean(member(node, "normalized"), !special)};
  if (const auto known = spelled.id_of(content); known && *known != token.id) {
    refuse_tokenizer_file(id.place, fmt::format("{}, as in model.vocab", *known), std::to_string(token.id));
  }
  vocabulary.added.push_back(token);
}

// Fails if two tokens share an id, or two added tokens share a text.
void check_added(const BpeVocabulary& vocabulary, const SpelledVocabulary& spelled, const std::string& place) {
  std::vector<std::int32_t> ids;
  for (const auto& token : vocabulary.tokens) ids.push_back(token.second);
  for (const AddedToken& token : vocabulary.added) {
    if (!spelled.id_of(token.text)) ids.push_back(token.id);
  }
  std::ranges::sort(ids);
  const auto twice = std::ranges::adjacent_find(ids);
  if (twice != ids.end()) refuse_tokenizer_file(place, "one token an id", fmt::format("several of id {}", *twice));
  std::vector<std::string_view> texts;
  std::size_t bytes = 0;
  for (const AddedToken& token : vocabulary.added) {
    texts.push_back(token.text);
    bytes += token.text.size();
  }
  if (bytes > kMaxAddedBytes)
    refuse_tokenizer_file(place, "added tokens of at most 8 MiB in all", fmt::format("{} bytes", bytes));
  std::ranges::sort(texts);
  const auto again = std::ranges::adjacent_find(texts);
  if (again != texts.end()) refuse_tokenizer_file(place, "each token once", quoted_bytes(*again) + " again");
}

}  // namespace

// Tokens are "TOKEN", or {"content": "TOKEN", ...} from older libraries. Other keys of the file are ignored.
SpecialTokens parse_tokenizer_config(const TokenizerFile& file) {
  const Json json = parse_tokenizer_json(file);
  const Node root{json, file.name};
  if (!json.is_object()) refuse(root, "an object");
  const auto named = [&](const char* key) -> std::string {
    const Node token = member(root, key);
    if (token.value.is_null()) return {};
    return text(token.value.is_object() ? member(token, "content") : token);
  };
  return {.source = file.name, .eos = named("eos_token"), .bos = named("bos_token")};
}

BpeVocabulary parse_hugging_face_file(const TokenizerFile& file) {
  const Json json = parse_tokenizer_json(file);
  const Node root{json, file.name};
  BpeVocabulary vocabulary{.source = file.name};
  expect_object(root, {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                       "post_processor", "decoder", "model"});
  expect_none(member(root, "truncation"), "none: every token of a text is wanted");
  expect_none(member(root, "padding"), "none: the tokens of the text alone are wanted");
  read_normalizer(vocabulary, member(root, "normalizer"));
  read_pre_tokenizer(vocabulary, member(root, "pre_tokenizer"));
  if (const Node decoder = member(root, "decoder"); !decoder.value.is_null()) {
    expect_type(decoder, "ByteLevel", "ByteLevel");
  }
  const SpelledVocabulary spelled = read_model(vocabulary, member(root, "model"));
  const Node added = member(root, "added_tokens");
  if (!added.value.is_null()) {
    std::size_t number = 0;
    for (const Json& token : array(added)) {
      read_added_token(vocabulary, spelled, {token, fmt::format("{}[{}]", added.place, number++)});
    }
    check_added(vocabulary, spelled, added.place);
  }
  return vocabulary;
}

}  // namespace megalith
