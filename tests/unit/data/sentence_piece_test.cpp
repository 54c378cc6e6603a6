// SentencePiece models: ids are those of its library, in tests/golden/tokenizer/sentencepiece.json.
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/tokenizer/tokenizer.h"
#include "tests/support/matchers.h"
#include "tests/unit/data/data_files.h"

namespace megalith {
namespace {

const std::string kModels = MEGALITH_SOURCE_DIR "/tests/golden/tokenizer/";

class SentencePiece : public testing::Test {
 protected:
  void SetUp() override {
    try {
      make("GPTSentencePieceTokenizer", "bpe");
    } catch (const Error& error) {
      ASSERT_THAT(error.what(), HasSubstr("install libsentencepiece-dev"));
      GTEST_SKIP() << "built without SentencePiece";
    }
  }
  static Tokenizer make(const std::string& type, const std::string& model, const std::string& eod = {}) {
    return make_tokenizer({.type = type, .tokenizer_model = kModels + model + ".model", .eod_token = eod});
  }
  static std::vector<std::int32_t> encode(const Tokenizer& tokenizer, const std::string& text) {
    std::vector<std::int32_t> ids;
    tokenizer.encode(text, ids);
    return ids;
  }
};

TEST_F(SentencePiece, IdsAreTheLibrarys) {
  const nlohmann::json golden = nlohmann::json::parse(read_bytes(kModels + "sentencepiece.json"));
  for (const auto& [model, ids] : golden["ids"].items()) {
    const Tokenizer tokenizer = make("GPTSentencePieceTokenizer", model);
    for (std::size_t i = 0; i < golden["texts"].size(); ++i) {
      const auto text = golden["texts"][i].get<std::string>();
      EXPECT_EQ(encode(tokenizer, text), ids[i].get<std::vector<std::int32_t>>()) << model << ": " << text;
    }
  }
}

TEST_F(SentencePiece, TextsComeBackWithTheSpaceAheadOfThem) {
  const Tokenizer tokenizer = make("GPTSentencePieceTokenizer", "bpe");
  for (const std::string text : {"Hello,  world!\n", "\u4e2d\u6587 caf\u00e9", "a <|im_start|> b"}) {
    std::string spelled;
    for (const std::int32_t id : encode(tokenizer, text)) spelled += tokenizer.decode(std::span(&id, 1));
    EXPECT_EQ(spelled, " " + text);
  }
}

TEST_F(SentencePiece, Llama2BeginsTextsWithBos) {
  const Tokenizer gpt = make("GPTSentencePieceTokenizer", "unigram");
  const Tokenizer llama = make("Llama2Tokenizer", "unigram");
  EXPECT_TRUE(gpt.begin().empty());
  EXPECT_THAT(std::vector<std::int32_t>(llama.begin().begin(), llama.begin().end()), ElementsAre(1));
  EXPECT_EQ(llama.bos(), 1);
  EXPECT_EQ(llama.eod(), 2);
  EXPECT_EQ(llama.vocab_size(), 400);
  EXPECT_EQ(llama.identity(), gpt.identity());
  EXPECT_THAT(llama.identity(), testing::StartsWith("sentencepiece-400-"));
  EXPECT_EQ(make("GPTSentencePieceTokenizer", "unigram", "<|im_start|>").eod(), 3);
}

TEST_F(SentencePiece, BordersAreThoseOfPieces) {
  const Tokenizer tokenizer = make("GPTSentencePieceTokenizer", "bpe");
  const std::string text = "a <|im_start|>b";
  const std::vector<std::size_t> bytes = {0, text.find('<'), text.size()};
  std::vector<std::int32_t> ids;
  BorderIds borders(bytes);
  tokenizer.encode(text, ids, borders);
  const auto symbol = std::ranges::find(ids, 3) - ids.begin();
  EXPECT_EQ(borders.ids(0), 0u);
  EXPECT_EQ(borders.ids(1), static_cast<std::size_t>(symbol));
  EXPECT_EQ(borders.ids(2), ids.size());
}

TEST_F(SentencePiece, RejectsOtherFilesAndPieces) {
  EXPECT_THAT(error_of(ExitCode::kUsage, [] { make("Llama2Tokenizer", "bpe", "none"); }), HasSubstr("--eod-token"));
  TestFolder folder;
  for (const std::string& content :
       {std::string(), std::string("{}"), read_bytes(kModels + "bpe.model").substr(0, 99)}) {
    write_bytes(folder / "x.model", content);
    EXPECT_THAT(error_of(ExitCode::kFormat,
                         [&] { make_tokenizer({.type = "Llama2Tokenizer", .tokenizer_model = folder / "x.model"}); }),
                HasSubstr("x.model: expected a SentencePiece model"));
  }
}

}  // namespace
}  // namespace megalith
