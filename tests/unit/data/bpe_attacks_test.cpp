// Texts and vocabularies made to use much time or memory. Results equal those of a plain search; time and memory stay
// within bounds for the text's length.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <map>
#include <random>

#include "core/tokenizer/added_token_finder.h"
#include "core/tokenizer/bpe_files.h"
#include "core/tokenizer/tokenizer.h"
#include "tests/support/matchers.h"
#include "tests/unit/data/data_files.h"

namespace megalith {
namespace {

using Ids = std::vector<std::int32_t>;
using AddedTokenList = std::vector<std::pair<std::string, std::int32_t>>;

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

double processor_seconds(const std::function<void()>& work) {
  const std::clock_t start = std::clock();
  work();
  return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

std::string random_text(std::mt19937& random, std::size_t bytes, std::string_view alphabet) {
  std::string text;
  for (std::size_t i = 0; i < bytes; ++i) text += alphabet[random() % alphabet.size()];
  return text;
}

// Text between tokens in brackets, and the ids.
std::string cut(const AddedTokenFinder& finder, std::string_view text) {
  std::string all;
  finder.cut(
      text, [&](std::string_view part) { all.append("[").append(part).append("]"); },
      [&](std::int32_t id, std::size_t) { all += std::to_string(id) + ";"; });
  return all;
}

std::string cut_plainly(const AddedTokenList& tokens, std::string_view text) {
  std::map<std::string, std::int32_t> ids(tokens.begin(), tokens.end());
  std::string all;
  std::string between;
  const auto end_part = [&] {
    if (!between.empty()) all += "[" + between + "]";
    between.clear();
  };
  for (std::size_t at = 0; at < text.size();) {
    const std::pair<const std::string, std::int32_t>* longest = nullptr;
    for (const auto& token : ids) {
      const bool is_here = text.substr(at).starts_with(token.first);
      if (is_here && (longest == nullptr || token.first.size() > longest->first.size())) longest = &token;
    }
    if (longest == nullptr) {
      between += text[at++];
      continue;
    }
    end_part();
    all += std::to_string(longest->second) + ";";
    at += longest->first.size();
  }
  end_part();
  return all;
}

TEST(AddedTokens, AreThoseOfAPlainSearch) {
  std::mt19937 random(20261122);
  for (int round = 0; round < 300; ++round) {
    AddedTokenList tokens;
    const std::string_view alphabet = round % 2 == 0 ? "ab" : "ab\xff\x01-";
    for (std::int32_t id = 0; id < 1 + round % 9; ++id)
      tokens.emplace_back(random_text(random, 1 + random() % 6, alphabet), id);
    std::map<std::string, std::int32_t> last;
    for (const auto& [text, id] : tokens) last[text] = id;
    const std::string text = random_text(random, random() % 60, alphabet);
    ASSERT_EQ(cut(AddedTokenFinder(tokens), text), cut_plainly(AddedTokenList(last.begin(), last.end()), text)) << text;
  }
}

// The text is searched a block of 64 KiB at a time.
TEST(AddedTokens, AreFoundAcrossBlocks) {
  const AddedTokenList tokens = {{"<|x|>", 0}, {"<|x|><|x|>", 1}, {std::string(1024, '-'), 2}, {"|>b", 3}};
  const AddedTokenFinder finder(tokens);
  constexpr std::size_t kBlock = std::size_t{1} << 16;
  for (const std::size_t before : {kBlock - 12, kBlock - 5, kBlock - 1, kBlock, 2 * kBlock - 3}) {
    const std::string text = std::string(before, 'a') + "<|x|><|x|><|x|>b";
    EXPECT_EQ(cut(finder, text), "[" + std::string(before, 'a') + "]1;0;[b]") << before;
  }
  for (const std::size_t before : {kBlock - 1023, kBlock - 512, kBlock}) {
    const std::string text = std::string(before, 'a') + std::string(1024 + 1023, '-');
    EXPECT_EQ(cut(finder, text), "[" + std::string(before, 'a') + "]2;[" + std::string(1023, '-') + "]") << before;
  }
  EXPECT_EQ(cut(AddedTokenFinder(), "text"), "[text]");
  EXPECT_EQ(cut(finder, ""), "");
}

// A look-up of each length at each place would be 2.6e8 of them. A search that continues after each short token for a
// long one would be 1e8 steps of an automaton.
TEST(AddedTokens, AThousandTakeNoLongerThanOne) {
  AddedTokenList tokens = {{"a", 0}};
  for (std::int32_t length = 1; length < 1000; ++length)
    tokens.emplace_back(std::string(static_cast<std::size_t>(length), 'a') + "b", length);
  const AddedTokenFinder finder(tokens);
  const std::string text(1 << 18, 'a');
  std::size_t found = 0;
  const double seconds = processor_seconds([&] {
    finder.cut(
        text, [](std::string_view) { FAIL(); }, [&](std::int32_t id, std::size_t) { found += id == 0 ? 1 : 0; });
  });
  EXPECT_EQ(found, text.size());
  EXPECT_LT(seconds, 2.0);  // ten times the duration with a sanitizer on a busy core
}

TEST(AddedTokens, OfMoreThan8MiBAreRefused) {
  std::string json = read_bytes(MEGALITH_SOURCE_DIR "/tests/golden/tokenizer/qwen2.json");
  const std::size_t at = json.find("\"added_tokens\":");
  std::string added;
  for (int id = 5000; id < 5000 + 8300; ++id) {
    added +=
        "{\"id\": " + std::to_string(id) + ", \"content\": \"" + std::to_string(id) + std::string(1018, 'x') + "\"},";
  }
  json.insert(json.find('[', at) + 1, added);
  EXPECT_THAT(error_of(ExitCode::kFormat, [&] { parse_hugging_face_file({.name = "t.json", .text = json}); }),
              HasSubstr("t.json: added_tokens: expected added tokens of at most 8 MiB in all, got"));
}

// All bytes, and `merges` of tokens over "ab" in any order of ranks.
BpeVocabulary random_vocabulary(std::mt19937& random, int merges, bool equal_ranks) {
  BpeVocabulary vocabulary{.source = "random"};
  std::map<std::string, std::int32_t> ids;
  const auto id_of = [&](const std::string& text) {
    const auto [place, fresh] = ids.try_emplace(text, static_cast<std::int32_t>(ids.size()));
    if (fresh) vocabulary.tokens.emplace_back(text, place->second);
    return place->second;
  };
  for (int byte = 0; byte < 256; ++byte)
    vocabulary.byte_ids[static_cast<std::size_t>(byte)] = id_of(std::string(1, static_cast<char>(byte)));
  std::vector<std::string> texts = {"a", "b"};
  for (int i = 0; i < merges; ++i) {
    const std::string left = texts[random() % texts.size()];
    const std::string right = texts[random() % texts.size()];
    texts.push_back(left + right);
    const std::int32_t merged = id_of(left + right);
    vocabulary.merges.push_back(
        {.left = id_of(left), .right = id_of(right), .merged = merged, .rank = equal_ranks ? merged : i});
  }
  if (!equal_ranks) {
    std::vector<std::int32_t> ranks(vocabulary.merges.size());
    for (std::size_t i = 0; i < ranks.size(); ++i) ranks[i] = static_cast<std::int32_t>(i);
    std::ranges::shuffle(ranks, random);
    for (std::size_t i = 0; i < ranks.size(); ++i) vocabulary.merges[i].rank = ranks[i];
  }
  vocabulary.eod = 0;
  return vocabulary;
}

// Follows the definition: merges the neighbors of the lowest rank, the leftmost ones first, until no merge is left.
Ids merge_plainly(const BpeVocabulary& vocabulary, std::string_view word) {
  std::map<std::pair<std::int32_t, std::int32_t>, std::pair<std::int32_t, std::int32_t>> merges;  // rank, merged
  for (const auto& merge : vocabulary.merges) merges[{merge.left, merge.right}] = {merge.rank, merge.merged};
  Ids ids;
  for (const char c : word) ids.push_back(vocabulary.byte_ids[static_cast<unsigned char>(c)]);
  for (;;) {
    std::size_t best = ids.size();
    std::int32_t rank = std::numeric_limits<std::int32_t>::max();
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto found = merges.find({ids[i], ids[i + 1]});
      if (found == merges.end() || found->second.first >= rank) continue;
      best = i;
      rank = found->second.first;
    }
    if (best == ids.size()) return ids;
    ids[best] = merges[{ids[best], ids[best + 1]}].second;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

TEST(BpeLongWords, MergeAsTheDefinitionSays) {
  std::mt19937 random(7);
  for (int round = 0; round < 150; ++round) {
    const BpeVocabulary vocabulary = random_vocabulary(random, 1 + round % 40, round % 2 == 0);
    const std::string word = random_text(random, 60 + random() % 100, "aab");
    const Tokenizer tokenizer(vocabulary);
    Ids ids;
    tokenizer.encode(word, ids);
    ASSERT_EQ(ids, merge_plainly(vocabulary, word)) << round << " " << word;
  }
}

// Fails to allocate beyond `bytes` more than the process has.
void limit_memory(std::size_t bytes) {
  std::ifstream status("/proc/self/status");
  std::size_t kib = 0;
  for (std::string key; status >> key;) {
    if (key == "VmData:") status >> kib;
  }
  const rlimit limit{.rlim_cur = kib * 1024 + bytes, .rlim_max = RLIM_INFINITY};
  require(kib > 0 && ::setrlimit(RLIMIT_DATA, &limit) == 0, "setrlimit");
}

TEST(BpeLongWordsDeathTest, TakeNoMoreThan32BytesAByte) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's own memory counts too";
  std::mt19937 random(11);
  BpeVocabulary vocabulary = random_vocabulary(random, 40, true);
  const auto encode = [&] {
    const Tokenizer tokenizer(vocabulary);
    const std::string word = random_text(random, 1 << 20, "ab");
    limit_memory(32 << 20);
    Ids ids;
    tokenizer.encode(word, ids);
    std::_Exit(ids.size() > 1000 && ids.size() < word.size() ? 0 : 1);
  };
  EXPECT_EXIT(encode(), testing::ExitedWithCode(0), "");
}

// A scanner or normalizer that reads its text repeatedly has 4e9 steps for one of these.
TEST(BpeTexts, OfAnyKindTakeTheTimeOfTheirLength) {
  const std::string folder = MEGALITH_SOURCE_DIR "/tests/golden/tokenizer/";
  const std::vector<std::string> parts = {
      " ",       "\n",           "\n ",  "A", "Aa",  "\u30fc", "\u30fcA",      "'s",           "\u0301",
      "e\u0301", "\u0345\u0316", "\xff", "1", "/\n", "<|",     "<|endoftext|", "\u1100\u1161", " \u0301"};
  for (const std::string name : {"gpt2", "llama3", "qwen2"}) {
    const Tokenizer tokenizer =
        make_tokenizer({.type = "HuggingFaceTokenizer", .tokenizer_model = folder + name + ".json"});
    for (const std::string& part : parts) {
      std::string text;
      while (text.size() < 1 << 16) text += part;
      Ids ids;
      const double seconds = processor_seconds([&] { tokenizer.encode(text + "x", ids); });
      EXPECT_LT(seconds, kSanitized ? 3.0 : 0.3) << name << " of " << testing::PrintToString(part);
    }
  }
}

}  // namespace
}  // namespace megalith
