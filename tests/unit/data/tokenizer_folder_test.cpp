// Folders in which Hugging Face transformers keep a tokenizer, and their possible files.
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/tokenizer/tokenizer.h"
#include "tests/support/matchers.h"
#include "tests/unit/data/data_files.h"

namespace megalith {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

const std::string kGolden = MEGALITH_SOURCE_DIR "/tests/golden/tokenizer/";

class TokenizerFolder : public testing::Test {
 protected:
  // gpt2.json, its <|endoftext|>, id 0, under another name.
  void write_tokenizer(const std::string& folder, const std::string& end) {
    fs::create_directories(folder);
    Json json = Json::parse(read_bytes(kGolden + "gpt2.json"));
    json["added_tokens"][0]["content"] = end;
    json["model"]["vocab"].erase("<|endoftext|>");
    json["model"]["vocab"][end] = 0;
    write_bytes(folder + "/tokenizer.json", json.dump());
  }
  void write_config(const std::string& text) { write_bytes(folder_ / "tokenizer_config.json", text); }
  static Tokenizer read(const std::string& model, const std::string& eod = {}) {
    return make_tokenizer({.type = "HuggingFaceTokenizer", .tokenizer_model = model, .eod_token = eod});
  }
  std::string refused(ExitCode code, const std::string& model) {
    return error_of(code, [&] { read(model); });
  }
  const TestFolder folder_;
};

TEST_F(TokenizerFolder, AFolderIsTakenWhereAFileIs) {
  write_tokenizer(folder_.path(), "<|endoftext|>");
  const Tokenizer by_file = read(folder_ / "tokenizer.json");
  EXPECT_EQ(read(folder_.path()).identity(), by_file.identity());
  EXPECT_EQ(read(folder_.path() + "/").identity(), by_file.identity());
  for (const char* name : {"vocab.json", "merges.txt"}) fs::copy(kGolden + name, folder_ / name);
  EXPECT_EQ(
      make_tokenizer({.type = "GPT2BPETokenizer", .vocab_file = folder_.path(), .merge_file = folder_.path()})
          .identity(),
      make_tokenizer(
          {.type = "GPT2BPETokenizer", .vocab_file = kGolden + "vocab.json", .merge_file = kGolden + "merges.txt"})
          .identity());
  fs::remove(folder_ / "tokenizer.json");
  EXPECT_THAT(refused(ExitCode::kFileIo, folder_.path()), HasSubstr("cannot open " + (folder_ / "tokenizer.json")));
}

TEST_F(TokenizerFolder, TheConfigNamesTheEndWhereTheVocabularyHasNoUsualName) {
  write_tokenizer(folder_.path(), "<|im_end|>");
  EXPECT_THAT(refused(ExitCode::kUsage, folder_.path()),
              HasSubstr("got none, and there is no <|endoftext|>, <|end_of_text|>, </s>"));
  for (const char* text :
       {R"({"eos_token": "<|im_end|>", "bos_token": "a", "other": [1]})",
        R"({"eos_token": {"content": "<|im_end|>", "lstrip": false}, "bos_token": {"content": "a"}})"}) {
    write_config(text);
    for (const std::string& model : {folder_.path(), folder_ / "tokenizer.json"}) {
      const Tokenizer tokenizer = read(model);
      EXPECT_EQ(tokenizer.eod(), 0) << text;
      std::vector<std::int32_t> a;
      tokenizer.encode("a", a);
      EXPECT_EQ(tokenizer.bos(), a.at(0)) << text;
    }
    EXPECT_EQ(read(folder_.path(), "b").identity(), read(folder_ / "tokenizer.json", "b").identity());
    EXPECT_NE(read(folder_.path(), "b").eod(), 0);  // --eod-token comes first
  }
  write_config(R"({"eos_token": "<|nowhere|>"})");
  EXPECT_THAT(refused(ExitCode::kUsage, folder_.path()),
              HasSubstr("</s>, nor the eos_token '<|nowhere|>' of " + (folder_ / "tokenizer_config.json")));
  write_config(R"({"eos_token": null, "bos_token": "<|nowhere|>"})");
  EXPECT_THAT(refused(ExitCode::kUsage, folder_.path()), testing::Not(HasSubstr("nowhere")));
}

// Versions without tokenizer_config.json behaved like this; checkpoints keep their identity.
TEST_F(TokenizerFolder, AUsualNameComesBeforeTheConfigs) {
  write_tokenizer(folder_.path(), "<|endoftext|>");
  const std::string identity = read(folder_.path()).identity();
  EXPECT_FALSE(read(folder_.path()).bos());
  write_config(R"({"eos_token": "a", "bos_token": "<|nowhere|>"})");
  EXPECT_EQ(read(folder_.path()).eod(), 0);
  EXPECT_EQ(read(folder_.path()).identity(), identity);
  EXPECT_FALSE(read(folder_.path()).bos());
}

TEST_F(TokenizerFolder, ABadConfigIsRefused) {
  write_tokenizer(folder_.path(), "<|endoftext|>");
  const auto expect = [&](const std::string& text, const std::string& message) {
    write_config(text);
    EXPECT_THAT(refused(ExitCode::kFormat, folder_.path()), HasSubstr("tokenizer_config.json: " + message));
  };
  expect("[1]", "expected an object, got array");
  expect("{", "byte 2: expected JSON");
  expect(R"({"eos_token": 3})", "eos_token: expected a text, got 3");
  expect(R"({"bos_token": {"content": 3}})", "bos_token.content: expected a text, got 3");
  expect(R"({"bos_token": {}})", "bos_token.content: expected a text, got null");
}

TEST_F(TokenizerFolder, SizesAreLookedAtBeforeFilesAreRead) {
  write_tokenizer(folder_.path(), "<|endoftext|>");
  write_config("{}");
  for (const char* name : {"tokenizer_config.json", "tokenizer.json"}) {
    fs::resize_file(folder_ / name, std::uint64_t{12} << 30);  // a hole: it uses no disk space
    for (const std::string& model : {folder_.path(), folder_ / "tokenizer.json"})
      EXPECT_THAT(refused(ExitCode::kFormat, model),
                  HasSubstr((folder_ / name) + ": expected at most 67108864 bytes, got 12884901888"));
  }
}

TEST_F(TokenizerFolder, LinksLeadToBelowTheFolderOrItsCache) {
  const std::string cache = folder_ / "hub/models--o--n", folder = cache + "/snapshots/0123";
  write_tokenizer(folder, "<|endoftext|>");
  fs::create_directories(cache + "/blobs");
  fs::rename(folder + "/tokenizer.json", cache + "/blobs/cafe");
  fs::create_symlink("../../blobs/cafe", folder + "/tokenizer.json");
  EXPECT_EQ(read(folder).eod(), 0);
  fs::create_directory_symlink(folder, folder_ / "short");
  EXPECT_EQ(read(folder_ / "short").eod(), 0);

  write_bytes(folder_ / "secret", "{}");
  write_bytes(cache + "/secret", "{}");
  for (const std::string& target : {folder_ / "secret", std::string("../../../../secret"), cache + "/secret",
                                    std::string("/etc/passwd"), std::string("../../blobs/../secret")}) {
    fs::create_symlink(target, folder + "/tokenizer_config.json");
    for (const std::string& model : {folder, folder + "/tokenizer.json"})
      EXPECT_THAT(refused(ExitCode::kFileIo, model), HasSubstr(", outside of its folder; put the file itself there"));
    fs::remove(folder + "/tokenizer_config.json");
  }
  EXPECT_THAT(error_of(ExitCode::kFileIo, [&] { read_model_file(folder, "none", 10); }), HasSubstr("cannot open"));
}

}  // namespace
}  // namespace megalith
