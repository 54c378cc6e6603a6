// Samples of packs: rows, marks, order over epochs, and files or settings that do not fit.
#include "core/data/pack_dataset.h"

#include <map>
#include <random>
#include <set>

#include "core/data/numpy_shuffle.h"
#include "core/data/packing.h"
#include "tests/support/matchers.h"
#include "tests/unit/data/pack_files.h"

namespace megalith {
namespace {

using Tokens = std::vector<std::int32_t>;

struct PackSample {
  Tokens tokens;
  SampleMarks marks;
};

PackSample read_sample(const PackDataset& data, std::int64_t k, std::int64_t seq_length) {
  PackSample sample{.tokens = Tokens(static_cast<std::size_t>(seq_length + 1), -7)};
  data.sample(k, sample.tokens, &sample.marks);
  return sample;
}

TEST(PackDatasetTest, RowsOfASample) {
  const TestFolder folder;
  write_packs(folder / "d", {{5, 3}}, {.seq_length = 12, .pad_multiple = 4});
  const PackDataset data(folder / "d", {.seq_length = 14, .vocab_size = 200});
  ASSERT_EQ(data.size(), 1);
  const PackSample sample = read_sample(data, 0, 14);
  EXPECT_EQ(sample.tokens, (Tokens{0, 1, 2, 3, 4, 0, 0, 0, 100, 101, 102, 0, 0, 0, 0}));
  // Tokens 1, 2 and 4 of the first conversation and token 1 of the second, at the rows that predict them.
  EXPECT_EQ(sample.marks.trained, (std::vector<std::uint8_t>{1, 1, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0}));
  EXPECT_EQ(sample.marks.documents, (std::vector<SampleDocument>{
                                        {.rows = 8, .tokens = 5}, {.rows = 4, .tokens = 3}, {.rows = 2, .tokens = 0}}));
  EXPECT_EQ(data.max_documents(), 3);
  EXPECT_EQ(data.squares(0), 25 + 9);
}

TEST(PackDatasetTest, AFullPackHasNoPadding) {
  const TestFolder folder;
  write_packs(folder / "d", {{4, 4}}, {.seq_length = 8, .pad_multiple = 4});
  const PackDataset data(folder / "d", {.seq_length = 8, .vocab_size = 200});
  const PackSample sample = read_sample(data, 0, 8);
  EXPECT_EQ(sample.marks.documents, (std::vector<SampleDocument>{{.rows = 4, .tokens = 4}, {.rows = 4, .tokens = 4}}));
  EXPECT_EQ(sample.tokens.back(), 0);
  EXPECT_EQ(sample.marks.trained[3], 0) << "it would predict the next conversation";
}

TEST(PackDatasetTest, TrainsEachMarkedTokenOnceAnEpoch) {
  const TestFolder folder;
  constexpr std::int64_t kRows = 64, kMultiple = 4;
  std::vector<std::int32_t> lengths;
  for (std::int32_t i = 0; i < 90; ++i) lengths.push_back(1 + i * 37 % 41);
  const Packing packing = pack_documents(lengths, {.seq_length = kRows, .pad_multiple = kMultiple});
  std::vector<std::vector<std::int64_t>> packs;
  std::vector<std::int64_t> written;  // lengths in the order of write_packs
  for (std::int64_t p = 0; p < packing.num_packs(); ++p) {
    packs.emplace_back();
    for (const std::int32_t d : packing.pack(p)) packs.back().push_back(lengths[static_cast<std::size_t>(d)]);
    written.insert(written.end(), packs.back().begin(), packs.back().end());
  }
  write_packs(folder / "d", packs, {.seq_length = kRows, .pad_multiple = kMultiple});

  constexpr std::int64_t kEpochs = 3;
  const PackDataset data(
      folder / "d",
      {.num_samples = kEpochs * packing.num_packs(), .seq_length = kRows, .vocab_size = 100 * 90, .seed = 5});
  std::map<std::int32_t, int> trained;  // token: times
  for (std::int64_t k = 0; k < data.size(); ++k) {
    const PackSample sample = read_sample(data, k, kRows);
    std::int64_t rows = 0, squares = 0;
    for (const SampleDocument& document : sample.marks.documents) {
      EXPECT_EQ(document.rows % kMultiple, 0);
      rows += document.rows;
      squares += std::int64_t{document.tokens} * document.tokens;
    }
    EXPECT_EQ(rows, kRows);
    EXPECT_EQ(squares, data.squares(k));
    EXPECT_LE(static_cast<std::int64_t>(sample.marks.documents.size()), data.max_documents());
    for (std::size_t i = 0; i < sample.marks.trained.size(); ++i) {
      if (sample.marks.trained[i] != 0) ++trained[sample.tokens[i + 1]];
    }
  }
  std::map<std::int32_t, int> expected;
  for (std::size_t c = 0; c < written.size(); ++c) {
    for (std::int64_t i = 1; i < written[c]; ++i) {
      const auto conversation = static_cast<std::int64_t>(c);
      if (pack_token_is_trained(conversation, i)) expected[pack_token(conversation, i)] = kEpochs;
    }
  }
  EXPECT_EQ(trained, expected);
  EXPECT_EQ(static_cast<std::int64_t>(expected.size()), data.record().trained);
}

// Packs of one conversation each, so that the first token identifies the pack.
class PackOrder : public testing::Test {
 protected:
  static constexpr std::int64_t kPacks = 23;
  void SetUp() override {
    write_packs(folder_ / "d", std::vector<std::vector<std::int64_t>>(kPacks, {4}), {.seq_length = 4});
  }
  std::vector<std::int64_t> order(const PackDatasetConfig& of) const {
    PackDatasetConfig config = of;
    config.seq_length = 4;
    config.vocab_size = 100 * kPacks;
    const PackDataset data(folder_ / "d", config);
    std::vector<std::int64_t> packs;
    for (std::int64_t k = 0; k < data.size(); ++k) packs.push_back(read_sample(data, k, 4).tokens[0] / 100);
    return packs;
  }
  TestFolder folder_;
};

TEST_F(PackOrder, EveryEpochHasEachPackOnceInAnOrderOfItsOwnSeed) {
  const std::vector<std::int64_t> packs = order({.num_samples = 3 * kPacks, .seed = 11});
  ASSERT_EQ(packs.size(), 3u * kPacks);
  std::set<std::vector<std::int64_t>> orders;
  NumpyRandomState random(11);
  for (std::size_t epoch = 0; epoch < 3; ++epoch) {
    const auto begin = packs.begin() + static_cast<std::ptrdiff_t>(epoch) * kPacks;
    std::vector<std::int64_t> shuffled(kPacks);
    for (std::int64_t p = 0; p < kPacks; ++p) shuffled[static_cast<std::size_t>(p)] = p;
    random.shuffle(std::span(shuffled));
    EXPECT_EQ(std::vector<std::int64_t>(begin, begin + kPacks), shuffled) << epoch;
    orders.insert(shuffled);
  }
  EXPECT_EQ(orders.size(), 3u);
  EXPECT_NE(order({.seed = 12}), order({.seed = 11}));
}

TEST_F(PackOrder, MoreSamplesKeepIt) {
  const std::vector<std::int64_t> more = order({.num_samples = 60, .seed = 3});
  ASSERT_EQ(more.size(), 60u);
  for (const std::int64_t samples : {1, 10, 23, 24, 46}) {
    const std::vector<std::int64_t> fewer = order({.num_samples = samples, .seed = 3});
    EXPECT_EQ(fewer, std::vector<std::int64_t>(more.begin(), more.begin() + samples)) << samples;
  }
  EXPECT_EQ(order({.seed = 3}).size(), static_cast<std::size_t>(kPacks)) << "one epoch";
}

TEST_F(PackOrder, RangeOfPacks) {
  std::vector<std::int64_t> packs = order({.seed = 3, .packs = SequenceRange{.begin = 20, .end = 23}});
  std::ranges::sort(packs);
  EXPECT_EQ(packs, (std::vector<std::int64_t>{20, 21, 22}));
  EXPECT_THAT(error_of(ExitCode::kUsage, [&] { order({.packs = SequenceRange{.begin = 2, .end = 2}}); }),
              HasSubstr("--split: expected a share of at least one of the 23 packs"));
}

class PackFiles : public testing::Test {
 protected:
  void SetUp() override { write_packs(folder_ / "d", {{5, 3}, {7}}, {.seq_length = 12, .pad_multiple = 4}); }
  PackDataset open(const PackDatasetConfig& config = {.seq_length = 12, .vocab_size = 300}) const {
    return {folder_ / "d", config};
  }
  std::string error(ExitCode code, const PackDatasetConfig& config = {.seq_length = 12, .vocab_size = 300}) const {
    return error_of(code, [&] { read_sample(open(config), 0, config.seq_length); });
  }
  void change(const std::string& name, const std::string& from, const std::string& to) const {
    std::string bytes = read_bytes(folder_ / name);
    bytes.replace(bytes.find(from), from.size(), to);
    write_bytes(folder_ / name, bytes);
  }
  TestFolder folder_;
};

TEST_F(PackFiles, SettingsThatDoNotFit) {
  EXPECT_THAT(error(ExitCode::kUsage, {.seq_length = 11, .vocab_size = 300}),
              AllOf(HasSubstr("--seq-length: expected at least 12, the rows of the packs of "), HasSubstr("got 11")));
  EXPECT_EQ(open({.seq_length = 16, .vocab_size = 300}).size(), 2);
}

TEST_F(PackFiles, TokenOutsideTheVocabulary) {
  const std::string text = error_of(ExitCode::kFormat, [&] {
    const PackDataset data = open({.num_samples = 2, .seq_length = 12, .vocab_size = 102});
    for (std::int64_t k = 0; k < 2; ++k) read_sample(data, k, 12);
  });
  EXPECT_THAT(text, AnyOf(HasSubstr("d.bin: sequence 1, token 2: expected a token id below the vocabulary size 102"),
                          HasSubstr("d.bin: sequence 2, token 0: expected")));
}

TEST_F(PackFiles, RecordOfAnotherDataset) {
  const std::string record = read_bytes(folder_ / "d.packs");
  for (const auto& [from, to] : {std::pair("packs 2", "packs 3"), std::pair("documents 3", "documents 4"),
                                 std::pair("tokens 15", "tokens 16")}) {
    write_bytes(folder_ / "d.packs", record);
    change("d.packs", from, to);
    EXPECT_THAT(error(ExitCode::kFormat), AllOf(HasSubstr("d.packs: expected "), HasSubstr("as the index has"),
                                                HasSubstr("run prepare --sft again")))
        << to;
  }
  write_bytes(folder_ / "d.packs", record);
  change("d.packs", "seq_length 12", "seq_length 8");
  EXPECT_THAT(error(ExitCode::kFormat), HasSubstr("d.idx: pack 0: expected 1 to 8 rows, as "));
  std::filesystem::remove(folder_ / "d.packs");
  EXPECT_THAT(error(ExitCode::kFormat), HasSubstr("d.packs: expected the record of packs of conversations, got no"));
}

TEST_F(PackFiles, MaskOfAnotherDataset) {
  const auto copy_mask = [&](const std::vector<std::vector<std::int64_t>>& packs) {
    write_packs(folder_ / "other", packs, {.seq_length = 12, .pad_multiple = 4});
    for (const char* end : {"_mask.idx", "_mask.bin"})
      write_bytes(folder_ / (std::string("d") + end), read_bytes(folder_ / (std::string("other") + end)));
  };
  copy_mask({{5, 3}, {6}});
  EXPECT_THAT(error(ExitCode::kFormat), HasSubstr("d_mask.idx: length of sequence 2: expected 7, as "));
  copy_mask({{5}, {3, 7}});
  EXPECT_THAT(error(ExitCode::kFormat), HasSubstr("d_mask.idx: document index 1: expected 2, as "));
  copy_mask({{5, 3}});
  EXPECT_THAT(error(ExitCode::kFormat), HasSubstr("d_mask.idx: sequences: expected 3, as "));
  write_golden_dataset(folder_ / "d_mask", 3, 41);
  EXPECT_THAT(error(ExitCode::kFormat), HasSubstr("d_mask.idx: token type: expected u8, got u16"));
  std::filesystem::remove(folder_ / "d_mask.bin");
  EXPECT_THAT(error(ExitCode::kFileIo), HasSubstr("d_mask.bin"));
}

TEST_F(PackFiles, MaskOfOtherValues) {
  write_bytes(folder_ / "d_mask.bin", std::string(15, '\2'));
  EXPECT_THAT(error(ExitCode::kFormat), AllOf(HasSubstr("d_mask.bin: sequence "), HasSubstr("expected 0 or 1, got 2")));
}

TEST_F(PackFiles, EmptyPackOrConversation) {
  // Sequence lengths begin at byte 34, three of them, then three offsets and three document indices.
  std::string index = read_bytes(folder_ / "d.idx");
  index[34 + 3 * 12 + 8] = '\0';  // the first pack ends where it begins
  write_bytes(folder_ / "d.idx", index);
  index = read_bytes(folder_ / "d_mask.idx");
  index[34 + 3 * 12 + 8] = '\0';
  write_bytes(folder_ / "d_mask.idx", index);
  EXPECT_THAT(error(ExitCode::kFormat), HasSubstr("d.idx: pack 0: expected 1 to 12 rows"));
}

// One changed byte of any file: other samples or an Error, never a read beyond a file or a row.
TEST_F(PackFiles, AChangedByteIsAnErrorOrOtherSamples) {
  std::mt19937 random(9);
  int errors = 0;
  for (const char* name : {"d.packs", "d.idx", "d.bin", "d_mask.idx", "d_mask.bin"}) {
    const std::string good = read_bytes(folder_ / name);
    for (std::size_t i = 0; i < good.size(); ++i) {
      std::string bytes = good;
      bytes[i] = static_cast<char>(random());
      write_bytes(folder_ / name, bytes);
      try {
        const PackDataset data = open();
        for (std::int64_t k = 0; k < data.size(); ++k) {
          const PackSample sample = read_sample(data, k, 12);
          std::int64_t rows = 0;
          for (const SampleDocument& document : sample.marks.documents) rows += document.rows;
          EXPECT_EQ(rows, 12);
        }
      } catch (const Error& error) {
        EXPECT_TRUE(error.code() == ExitCode::kFormat || error.code() == ExitCode::kUsage) << name << ", byte " << i;
        ++errors;
      }
    }
    write_bytes(folder_ / name, good);
  }
  EXPECT_GT(errors, 200);
}

TEST_F(PackFiles, ChangedFilesEndTheRun) {
  for (const char* name : {"d.bin", "d_mask.bin", "d_mask.idx"}) {
    SetUp();
    const PackDataset data = open();
    data.check_unchanged();
    write_bytes(folder_ / name, read_bytes(folder_ / name) + "x");
    EXPECT_THAT(error_of(ExitCode::kFormat, [&] { data.check_unchanged(); }), HasSubstr(name));
    EXPECT_THAT(error_of(ExitCode::kFormat, [&] { read_sample(data, 0, 12); }), HasSubstr("written to"));
  }
}

}  // namespace
}  // namespace megalith
