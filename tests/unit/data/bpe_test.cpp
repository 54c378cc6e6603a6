// Byte-level BPE against the ids of the Hugging Face and tiktoken libraries, of tests/golden/tokenizer.
#include "core/tokenizer/bpe_files.h"

#include <fmt/format.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "core/tokenizer/tokenizer.h"
#include "tests/support/matchers.h"
#include "tests/unit/data/data_files.h"

namespace megalith {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<std::int32_t>;

const std::string kFolder = MEGALITH_SOURCE_DIR "/tests/golden/tokenizer/";

const Json& golden() {
  static const Json file = Json::parse(read_bytes(kFolder + "golden.json"));
  return file;
}

Ids encode(const Tokenizer& tokenizer, std::string_view text) {
  Ids ids;
  tokenizer.encode(text, ids);
  return ids;
}

TokenizerOptions hugging_face(const std::string& name) {
  return {.type = "HuggingFaceTokenizer", .tokenizer_model = kFolder + name + ".json"};
}

TokenizerOptions gpt2_files() {
  return {.type = "GPT2BPETokenizer", .vocab_file = kFolder + "vocab.json", .merge_file = kFolder + "merges.txt"};
}

TokenizerOptions tiktoken(const std::string& pattern) {
  return {.type = "TikTokenizer", .tokenizer_model = kFolder + "ranks.tiktoken", .tiktoken_pattern = pattern};
}

// Twice over the texts, so that the second time words come out of the cache.
void expect_golden(const Tokenizer& tokenizer, const std::string& name) {
  for (int pass = 0; pass < 2; ++pass) {
    const Json& texts = golden().at("texts");
    for (std::size_t i = 0; i < texts.size(); ++i) {
      const auto text = texts[i].get<std::string>();
      EXPECT_EQ(encode(tokenizer, text), golden().at("ids").at(name)[i].get<Ids>()) << name << " of " << texts[i];
    }
  }
}

TEST(Bpe, HuggingFaceIds) {
  for (const std::string name : {"gpt2", "llama3", "qwen2"}) expect_golden(make_tokenizer(hugging_face(name)), name);
}

TEST(Bpe, TiktokenIds) {
  for (const std::string name : {"gpt2", "cl100k", "llama3", "qwen2", "o200k", "v1", "v2"}) {
    expect_golden(make_tokenizer(tiktoken(name)), "tiktoken " + name);
  }
}

TEST(Bpe, Gpt2FilesFindNoSpecialTokensInText) {
  const Tokenizer files = make_tokenizer(gpt2_files());
  const Tokenizer json = make_tokenizer(hugging_face("gpt2"));
  const Json& texts = golden().at("texts");
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const auto text = texts[i].get<std::string>();
    if (text.find("<|endoftext|>") != std::string::npos) continue;
    EXPECT_EQ(encode(files, text), encode(json, text));
  }
  EXPECT_EQ(encode(json, "<|endoftext|>"), Ids{json.eod()});
  EXPECT_GT(encode(files, "<|endoftext|>").size(), 1u);
  EXPECT_EQ(files.eod(), json.eod());
  EXPECT_EQ(files.vocab_size(), json.vocab_size());
  EXPECT_NE(files.identity(), json.identity());
}

TEST(Bpe, AnyBytesComeBack) {
  std::string bytes;
  for (int i = 0; i < 2048; ++i) bytes += static_cast<char>(i * 37 + i / 256);
  for (const TokenizerOptions& options : {gpt2_files(), hugging_face("llama3"), tiktoken("o200k")}) {
    const Tokenizer tokenizer = make_tokenizer(options);
    EXPECT_EQ(tokenizer.decode(encode(tokenizer, bytes)), bytes);
  }
}

TEST(Bpe, LongWordsTakeNoLonger) {
  const Tokenizer tokenizer = make_tokenizer(gpt2_files());
  std::string text;
  for (int i = 0; i < 200000; ++i) text += "the"[i * 7 % 3];
  const Ids ids = encode(tokenizer, text);  // would last minutes if it were quadratic
  EXPECT_EQ(tokenizer.decode(ids), text);
  EXPECT_LT(ids.size(), text.size());
}

TEST(Bpe, EodAndIdentity) {
  const Tokenizer gpt2 = make_tokenizer(hugging_face("gpt2"));
  EXPECT_EQ(gpt2.vocab_size(), 700);
  EXPECT_EQ(gpt2.eod(), 0);
  EXPECT_THAT(gpt2.identity(), StartsWith("bpe-gpt2-700-"));
  EXPECT_EQ(gpt2.identity(), make_tokenizer(hugging_face("gpt2")).identity());
  EXPECT_EQ(gpt2.decode(Ids{0, -1, 700, 1 << 30}), "");

  TokenizerOptions named = hugging_face("qwen2");
  named.eod_token = "<|im_start|>";
  const Tokenizer qwen2 = make_tokenizer(named);
  EXPECT_EQ(qwen2.eod(), 700);
  EXPECT_EQ(qwen2.vocab_size(), 702);
  EXPECT_NE(qwen2.identity(), make_tokenizer(hugging_face("qwen2")).identity());
  named.eod_token = "</s>";
  EXPECT_THAT(error_of(ExitCode::kUsage, [&] { make_tokenizer(named); }),
              AllOf(HasSubstr("--eod-token: expected a token of"), HasSubstr("got '</s>'")));
}

TEST(Bpe, TiktokenSpecialTokens) {
  TokenizerOptions options = tiktoken("cl100k");
  const std::int64_t ranks = make_tokenizer(options).eod();
  EXPECT_EQ(make_tokenizer(options).vocab_size(), ranks + 1);
  options.tiktoken_special_tokens = {fmt::format("<|endoftext|>={}", ranks + 5), "<|a=b|>"};
  const Tokenizer tokenizer = make_tokenizer(options);
  EXPECT_EQ(tokenizer.eod(), ranks + 5);
  EXPECT_EQ(tokenizer.vocab_size(), ranks + 7);
  EXPECT_EQ(encode(tokenizer, "<|a=b|>"), Ids{static_cast<std::int32_t>(ranks + 6)});
  EXPECT_EQ(tokenizer.decode(Ids{static_cast<std::int32_t>(ranks + 6)}), "<|a=b|>");
  EXPECT_EQ(tokenizer.decode(Ids{static_cast<std::int32_t>(ranks + 1)}), "");  // a hole

  const auto refused = [&](std::vector<std::string> tokens) {
    options.tiktoken_special_tokens = std::move(tokens);
    return error_of(ExitCode::kUsage, [&] { make_tokenizer(options); });
  };
  EXPECT_THAT(refused({"<|endoftext|>=3"}), HasSubstr("--tiktoken-special-tokens: expected names and ids that are not "
                                                      "taken, got '<|endoftext|>=3'"));
  EXPECT_THAT(refused({"a", "a"}), HasSubstr("not taken"));
  EXPECT_THAT(refused({"a=9000", "b=9000"}), HasSubstr("not taken"));
  EXPECT_THAT(refused({"a=4194303", "b"}), HasSubstr("ids of at most 4194303"));
  EXPECT_THAT(refused({""}), HasSubstr("NAME or NAME=ID"));
  EXPECT_THAT(refused({std::string(1025, 'x')}), HasSubstr("NAME or NAME=ID"));
}

TEST(Bpe, FlagsBelongToTheirType) {
  const auto refused = [](const TokenizerOptions& options) {
    return error_of(ExitCode::kUsage, [&] { make_tokenizer(options); });
  };
  EXPECT_THAT(refused({.type = "GPT2BPETokenizer", .vocab_file = "v"}),
              HasSubstr("--merge-file: expected one with --tokenizer-type GPT2BPETokenizer, got none"));
  EXPECT_THAT(refused({.vocab_file = "v"}),
              HasSubstr("--vocab-file: expected none with --tokenizer-type byte, got one"));
  EXPECT_THAT(refused({.type = "HuggingFaceTokenizer"}), HasSubstr("--tokenizer-model: expected one"));
  EXPECT_THAT(refused({.type = "TikTokenizer", .tokenizer_model = "m"}), HasSubstr("--tiktoken-pattern: expected one"));
  EXPECT_THAT(refused({.eod_token = "x"}), HasSubstr("--eod-token: expected none"));
  TokenizerOptions unknown = tiktoken("llama");
  EXPECT_THAT(refused(unknown), HasSubstr("--tiktoken-pattern: expected gpt2, cl100k, llama3, qwen2, o200k, v1 or v2, "
                                          "got 'llama'"));
  TokenizerOptions missing = gpt2_files();
  missing.merge_file = "/nonexistent/merges.txt";
  EXPECT_THAT(error_of(ExitCode::kFileIo, [&] { make_tokenizer(missing); }), HasSubstr("/nonexistent/merges.txt"));
}

// tokenizer.json of the golden gpt2 after `change`; returns the rejection message, which begins with the file.
std::string refused_json(const std::function<void(Json&)>& change) {
  Json json = Json::parse(read_bytes(kFolder + "gpt2.json"));
  change(json);
  const std::string text = json.dump();
  const std::string message =
      error_of(ExitCode::kFormat, [&] { parse_hugging_face_file({.name = "t.json", .text = text}); });
  EXPECT_THAT(message, StartsWith("t.json"));
  return message;
}

TEST(BpeHuggingFaceFile, RefusesWhatItDoesNotKnow) {
  const auto with = [](const std::string& pointer, const Json& value) {
    return refused_json([&](Json& json) { json[Json::json_pointer(pointer)] = value; });
  };
  EXPECT_THAT(with("/surprise", 1), HasSubstr("t.json: expected the keys version,"));
  EXPECT_THAT(with("/model/type", "Unigram"), HasSubstr("t.json: model.type: expected BPE, got 'Unigram'"));
  EXPECT_THAT(with("/model/dropout", 0.1), HasSubstr("model.dropout: expected none"));
  EXPECT_THAT(with("/model/byte_fallback", true), HasSubstr("model.byte_fallback: expected false"));
  EXPECT_THAT(with("/model/end_of_word_suffix", "</w>"), HasSubstr("got '</w>'"));
  EXPECT_THAT(with("/model/vocab", Json::array()), HasSubstr("model.vocab: expected an object"));
  EXPECT_THAT(with("/model/vocab/a", "x"), HasSubstr("model.vocab: token 'a': expected an integer id"));
  EXPECT_THAT(with("/model/vocab/a", -1), HasSubstr("an id from 0 to 4194303"));
  for (const std::uint64_t id :
       {std::uint64_t{4194304}, std::uint64_t{1} << 32, std::uint64_t{1} << 63, ~std::uint64_t{0}})
    EXPECT_THAT(with("/model/vocab/a", id), HasSubstr("token 'a': expected an id from 0 to 4194303")) << id;
  EXPECT_THAT(with("/model/vocab/zzzz", 5), HasSubstr("one token an id"));
  EXPECT_THAT(with("/model/vocab/" + std::string(3000, 'x'), 800), HasSubstr("1 to 1024 bytes"));
  EXPECT_THAT(with("/model/merges/0", "a"), HasSubstr("model.merges[0]: expected two tokens"));
  EXPECT_THAT(with("/model/merges/0", Json::array({"a", "qqq"})),
              HasSubstr("in the vocabulary, got a second one that is not"));
  EXPECT_THAT(with("/normalizer", {{"type", "Lowercase"}}), HasSubstr("normalizer: expected none, NFC"));
  EXPECT_THAT(with("/pre_tokenizer", nullptr), HasSubstr("pre_tokenizer: expected ByteLevel"));
  EXPECT_THAT(with("/pre_tokenizer/use_regex", false), HasSubstr("got use_regex false"));
  EXPECT_THAT(with("/pre_tokenizer/type", "Whitespace"), HasSubstr("got 'Whitespace'"));
  EXPECT_THAT(with("/decoder", {{"type", "WordPiece"}}), HasSubstr("decoder: expected ByteLevel"));
  EXPECT_THAT(with("/truncation", {{"max_length", 4}}), HasSubstr("truncation: expected none"));
  EXPECT_THAT(with("/added_tokens/0/lstrip", true), HasSubstr("added_tokens[0].lstrip: expected false"));
  EXPECT_THAT(with("/added_tokens/0/id", 5), HasSubstr("added_tokens[0].id: expected 0, as in model.vocab, got 5"));
  EXPECT_THAT(with("/added_tokens/0/content", "new"), HasSubstr("one token an id, got several of id 0"));
  EXPECT_THAT(with("/added_tokens/0/content", ""), HasSubstr("1 to 1024 bytes"));
  EXPECT_THAT(refused_json([](Json& json) { json["model"]["vocab"].erase("a"); }), HasSubstr("t.json: model"));
}

TEST(BpeHuggingFaceFile, RefusesWrongTypesOfValues) {
  const auto with = [](const std::string& pointer, const Json& value) {
    return refused_json([&](Json& json) { json[Json::json_pointer(pointer)] = value; });
  };
  const Json split = Json::parse(read_bytes(kFolder + "llama3.json"))["pre_tokenizer"];
  const auto with_split = [&](const std::string& pointer, const Json& value) {
    Json changed = split;
    changed[Json::json_pointer(pointer)] = value;
    return with("/pre_tokenizer", changed);
  };
  EXPECT_THAT(with("/model", 3), HasSubstr("model: expected an object, got 3"));
  EXPECT_THAT(with("/model/type", Json::array()), HasSubstr("model.type: expected a text, got array"));
  EXPECT_THAT(with("/model/merges", 1), HasSubstr("model.merges: expected an array of merges, got 1"));
  EXPECT_THAT(with("/model/merges/0", "a b c"), HasSubstr("model.merges[0]: expected two tokens"));
  EXPECT_THAT(with("/model/merges/0", {"a", 1}), HasSubstr("model.merges[0]: expected two tokens"));
  EXPECT_THAT(with("/model/merges/0", 7), HasSubstr("got 7"));
  EXPECT_THAT(with("/model/ignore_merges", "yes"), HasSubstr("ignore_merges: expected true or false, got 'yes'"));
  EXPECT_THAT(with("/normalizer", "NFC"), HasSubstr("normalizer: expected an object with a type, got 'NFC'"));
  EXPECT_THAT(with("/normalizer", {{"type", "NFC"}, {"more", 1}}), HasSubstr("normalizer: expected the keys type"));
  EXPECT_THAT(with("/normalizer", {{"type", "Sequence"}}), HasSubstr("normalizer.normalizers: expected an array"));
  EXPECT_THAT(with("/normalizer", {{"type", "Sequence"}, {"normalizers", {{{"type", "NFD"}}}}}),
              HasSubstr("normalizer.normalizers: expected none, NFC or a Sequence of it, got 'NFD'"));
  EXPECT_THAT(with("/decoder", 1), HasSubstr("decoder: expected an object with a type, got 1"));
  EXPECT_THAT(with("/added_tokens", 1), HasSubstr("added_tokens: expected an array, got 1"));
  EXPECT_THAT(with("/added_tokens/0", 1), HasSubstr("added_tokens[0]: expected an object"));
  EXPECT_THAT(with("/added_tokens/0/id", 4194304), HasSubstr("added_tokens[0].id: expected an id from 0 to 4194303"));
  EXPECT_THAT(with("/added_tokens/0/id", -1), HasSubstr("added_tokens[0].id: expected an id"));
  EXPECT_THAT(with("/added_tokens/1", {{"id", 0}, {"content", "<|endoftext|>"}}),
              HasSubstr("added_tokens: expected each token once, got '<|endoftext|>' again"));
  EXPECT_THAT(with_split("/pretokenizers", Json::array()), HasSubstr("got another number"));
  EXPECT_THAT(with_split("/pretokenizers/0/type", "Digits"), HasSubstr("expected Split and then ByteLevel"));
  EXPECT_THAT(with_split("/pretokenizers/1/type", "Split"), HasSubstr("pretokenizers[1]: expected ByteLevel"));
  EXPECT_THAT(with_split("/pretokenizers/1/use_regex", true), HasSubstr("use_regex and add_prefix_space false"));
  EXPECT_THAT(with_split("/pretokenizers/1/add_prefix_space", true), HasSubstr("use_regex and add_prefix_space false"));
  EXPECT_THAT(with_split("/pretokenizers/0/behavior", "Removed"), HasSubstr("expected behavior Isolated, or Removed"));
  EXPECT_THAT(with_split("/pretokenizers/0/invert", true), HasSubstr("got 'Isolated' with invert"));
  EXPECT_THAT(with_split("/pretokenizers/0/pattern", {{"String", " "}}), HasSubstr("pattern: expected the keys Regex"));
}

TEST(BpeHuggingFaceFile, KnowsOlderSpellingsOfTheSame) {
  const auto ids = [](const Json& json) {
    const std::string text = json.dump();
    BpeVocabulary vocabulary = parse_hugging_face_file({.name = "t.json", .text = text});
    vocabulary.eod = 0;
    return encode(Tokenizer(std::move(vocabulary)), "It is a truth, caf\u00e9 12345  universally");
  };
  const Json now = Json::parse(read_bytes(kFolder + "llama3.json"));
  Json older = now;
  for (Json& merge : older["model"]["merges"]) {
    merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
  }
  older["model"].erase("type");
  older["model"].erase("ignore_merges");
  older["model"]["dropout"] = nullptr;
  older["decoder"] = nullptr;
  older["added_tokens"] = nullptr;
  older["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed";
  older["pre_tokenizer"]["pretokenizers"][0]["invert"] = true;
  Json newer = now;
  newer["model"]["ignore_merges"] = false;
  EXPECT_EQ(ids(older), ids(newer));
}

TEST(BpeHuggingFaceFile, RecognisesPatternsAndExecutesNone) {
  Json json = Json::parse(read_bytes(kFolder + "llama3.json"));
  json["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(a+)+$";
  const std::string text = json.dump();
  EXPECT_THAT(error_of(ExitCode::kFormat, [&] { parse_hugging_face_file({.name = "t.json", .text = text}); }),
              HasSubstr("t.json: pre_tokenizer.pretokenizers[0].pattern.Regex: expected that of gpt2, cl100k, llama3, "
                        "qwen2, o200k, v1 or v2, got '(a+)+$'"));
}

TEST(BpeHuggingFaceFile, RefusesWhatIsNoJson) {
  const auto refused = [](const std::string& text) {
    return error_of(ExitCode::kFormat, [&] { parse_hugging_face_file({.name = "t.json", .text = text}); });
  };
  EXPECT_THAT(refused(""), HasSubstr("t.json: byte"));
  EXPECT_THAT(refused("{\"model\": 1"), HasSubstr("expected JSON, got a syntax error"));
  EXPECT_THAT(refused("\xff"), HasSubstr("t.json: byte 1"));
  EXPECT_THAT(refused("[1]"), HasSubstr("expected an object"));
  EXPECT_THAT(refused("{}"), HasSubstr("pre_tokenizer"));
  EXPECT_THAT(refused("{\"model\": 1e999}"), HasSubstr("t.json"));
  EXPECT_THAT(refused(std::string(1000000, '[')), HasSubstr("JSON of at most 32 levels"));
  EXPECT_THAT(refused('[' + std::string(1 << 22, ',')), HasSubstr("JSON of at most 4194304 values, got 4194306"));
}

TEST(BpeGpt2Files, RefusesBadMerges) {
  const std::string vocab = read_bytes(kFolder + "vocab.json");
  const auto refused = [&](const std::string& merges) {
    return error_of(ExitCode::kFormat, [&] {
      parse_gpt2_files({.name = "vocab.json", .text = vocab}, {.name = "merges.txt", .text = merges});
    });
  };
  EXPECT_THAT(refused("#version: 0.2\nt h e\n"), HasSubstr("merges.txt:2: expected two tokens"));
  EXPECT_THAT(refused("th\n"),
              HasSubstr("merges.txt:1: expected two tokens with a space between, got a line (bytes: 2, spaces: 0);"));
  EXPECT_THAT(refused("\n"), HasSubstr("merges.txt:1"));
  EXPECT_THAT(refused("t \n"), HasSubstr("merges.txt:1"));
  EXPECT_THAT(refused(" t\n"), HasSubstr("merges.txt:1"));
  EXPECT_THAT(refused("t\x01\x7f\xff\n"), HasSubstr("got a line (bytes: 4, spaces: 0);"));
  EXPECT_THAT(refused("t qqqq\n"), HasSubstr("got a second one that is not"));
  EXPECT_THAT(error_of(ExitCode::kFormat, [] { parse_gpt2_files({.name = "v", .text = "{}"}, {.name = "m"}); }),
              HasSubstr("v: expected a token for each of the 256 bytes, got none for byte 0x00"));
}

TEST(BpeGpt2Files, LinesMayEndInTwoCharacters) {
  const std::string vocab = read_bytes(kFolder + "vocab.json"), merges = read_bytes(kFolder + "merges.txt");
  const auto ids = [&](const std::string& text) {
    BpeVocabulary vocabulary =
        parse_gpt2_files({.name = "vocab.json", .text = vocab}, {.name = "merges.txt", .text = text});
    vocabulary.eod = 0;
    return encode(Tokenizer(std::move(vocabulary)), "the thing");
  };
  std::string crlf;
  for (const char c : merges) crlf += c == '\n' ? std::string("\r\n") : std::string(1, c);
  EXPECT_EQ(ids(crlf), ids(merges));
  EXPECT_NE(ids(merges), ids(""));
}

TEST(BpeGpt2Files, TokensThatSpellNoBytesAreKeptAsTheyAre) {
  Json vocab = Json::parse(read_bytes(kFolder + "vocab.json"));
  vocab["\u4e2d"] = 700;
  vocab["a b"] = 701;  // a space is spelled otherwise
  const std::string text = vocab.dump();
  const BpeVocabulary vocabulary = parse_gpt2_files({.name = "vocab.json", .text = text}, {.name = "merges.txt"});
  EXPECT_THAT(vocabulary.opaque, testing::UnorderedElementsAre(700, 701));
  EXPECT_THAT(vocabulary.tokens, testing::Contains(std::pair<std::string, std::int32_t>("\u4e2d", 700)));
  EXPECT_THAT(vocabulary.tokens, testing::Contains(std::pair<std::string, std::int32_t>("a b", 701)));
}

TEST(BpeGpt2Files, NoTokenThatEndsDocuments) {
  Json vocab = Json::parse(read_bytes(kFolder + "vocab.json"));
  vocab.erase("<|endoftext|>");
  const std::string text = vocab.dump();
  const BpeVocabulary vocabulary = parse_gpt2_files({.name = "vocab.json", .text = text}, {.name = "merges.txt"});
  EXPECT_EQ(error_of(ExitCode::kUsage, [&] { find_eod(vocabulary, ""); }),
            "--eod-token: expected a token of vocab.json that ends documents, got none, and there is no "
            "<|endoftext|>, <|end_of_text|>, </s>");
  EXPECT_EQ(find_eod(vocabulary, "a"), vocab["a"].get<std::int32_t>());
}

TEST(BpeTiktokenFile, EmptyLinesAndLinesThatEndInTwoCharacters) {
  const std::string ranks = read_bytes(kFolder + "ranks.tiktoken");
  std::string other = "\n";
  for (const char c : ranks) other += c == '\n' ? std::string("\r\n\r\n") : std::string(1, c);
  const auto tokens = [](const std::string& text) {
    return parse_tiktoken_file({.name = "ranks", .text = text}, WordPattern::kCl100k, {}).tokens;
  };
  EXPECT_EQ(tokens(other), tokens(ranks));
}

TEST(BpeTiktokenFile, RefusesBadLines) {
  const std::string ranks = read_bytes(kFolder + "ranks.tiktoken");
  const auto refused = [&](const std::string& more) {
    return error_of(ExitCode::kFormat,
                    [&] { parse_tiktoken_file({.name = "ranks", .text = more}, WordPattern::kCl100k, {}); });
  };
  EXPECT_THAT(refused(""), HasSubstr("none for byte 0x00"));
  EXPECT_THAT(refused("AAA= 0\nx"),
              HasSubstr("ranks:2: expected a token of at most 1024 bytes in base64, a space and"));
  EXPECT_THAT(refused("AA-= 0"), HasSubstr("ranks:1"));
  EXPECT_THAT(refused("AA{= 0"), HasSubstr("ranks:1: expected a token"));
  EXPECT_THAT(refused(" 0"), HasSubstr("ranks:1: expected a token"));
  EXPECT_THAT(refused("AAA= -1"), HasSubstr("ranks:1"));
  EXPECT_THAT(refused("AAA= 4194304"), HasSubstr("ranks:1"));
  EXPECT_THAT(refused("AAA= 1 2"), HasSubstr("ranks:1"));
  EXPECT_THAT(refused("==== 1"), HasSubstr("ranks:1"));
  EXPECT_THAT(refused(std::string(4000, 'A') + " 1"), HasSubstr("ranks:1"));
  EXPECT_THAT(refused(ranks + "AAECAwQFBgc= 3\n"), HasSubstr("one token a rank, got two of rank 3"));
  EXPECT_THAT(refused(ranks + "YQ== 9000\n"), HasSubstr("each token once, got 'a' again"));
}

}  // namespace
}  // namespace megalith
