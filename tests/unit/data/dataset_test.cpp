#include "core/data/dataset.h"

#include <algorithm>
#include <set>
#include <thread>

#include "tests/support/matchers.h"
#include "tests/unit/data/data_files.h"

namespace megalith {
namespace {

using TokenIds = std::vector<std::int32_t>;

class DatasetTest : public testing::Test {
 protected:
  DatasetTest() {
    write_golden_dataset(folder_ / "a", 30, 41);
    write_golden_dataset(folder_ / "b", 12, 67);
    config_ = {.data_path = {folder_ / "a"},
               .split = "70,20,10",
               .seed = 5,
               .seq_length = 8,
               .vocab_size = 251,
               .num_samples = {.train = 50, .valid = 10, .test = 3}};
  }
  std::string error() {
    return error_of(ExitCode::kUsage, [&] { build_datasets(config_); });
  }

  TestFolder folder_;
  DataConfig config_;
};

TokenIds sample_of(const Dataset& dataset, std::int64_t k, std::int64_t seq_length) {
  TokenIds tokens(static_cast<std::size_t>(seq_length + 1));
  dataset.sample(k, tokens);
  return tokens;
}

TEST_F(DatasetTest, SplitsShareNoDocument) {
  // Make the documents recognizable: document d holds only the token d.
  IndexedDatasetWriter writer(folder_ / "c", TokenType::kU16);
  for (std::int32_t d = 0; d < 20; ++d) writer.add_document(TokenIds(40, d));
  writer.commit();
  config_.data_path = {folder_ / "c"};
  const Datasets datasets = build_datasets(config_);
  const auto range_of = [&](const Dataset& dataset) {
    std::int32_t low = 1000;
    std::int32_t high = -1;
    for (std::int64_t k = 0; k < dataset.size(); ++k) {
      const TokenIds tokens = sample_of(dataset, k, 8);
      low = std::min(low, *std::ranges::min_element(tokens));
      high = std::max(high, *std::ranges::max_element(tokens));
    }
    return std::pair(low, high);
  };
  EXPECT_GE(datasets.train.size(), 50);
  EXPECT_EQ(range_of(datasets.train), std::pair(0, 13));
  EXPECT_EQ(range_of(datasets.valid), std::pair(14, 17));
  EXPECT_EQ(range_of(datasets.test), std::pair(18, 19));
}

TEST_F(DatasetTest, NeighboursInTheStreamShareOneToken) {
  const auto data = std::make_shared<const IndexedDataset>(IndexedDataset::open(folder_ / "a"));
  const GptDataset gpt(
      data, {.part = {.range = {.begin = 0, .end = 30}}, .num_samples = 200, .seq_length = 8, .vocab_size = 251});
  std::vector<TokenIds> stream(static_cast<std::size_t>(gpt.size()), TokenIds(9));
  for (std::int64_t k = 0; k < gpt.size(); ++k) {
    gpt.sample(k, stream[gpt.shuffle_index()[static_cast<std::size_t>(k)]]);
  }
  for (std::size_t i = 1; i < stream.size(); ++i) EXPECT_EQ(stream[i].front(), stream[i - 1].back());
}

TEST_F(DatasetTest, NothingIsBuiltForNoSamples) {
  config_.num_samples = {.train = 4};
  config_.split = "1";
  const Datasets datasets = build_datasets(config_);
  EXPECT_GE(datasets.train.size(), 4);
  EXPECT_EQ(datasets.valid.size(), 0);
  EXPECT_EQ(datasets.test.size(), 0);
}

TEST_F(DatasetTest, SplitWithoutDocuments) {
  config_.split = "969,30,1";  // a test of no documents is left out
  EXPECT_EQ(build_datasets(config_).test.size(), 0);
  config_.split = "100,0,0";
  EXPECT_THAT(error(), testing::AllOf(HasSubstr("--split"), HasSubstr("validation share"), HasSubstr("30 documents")));
}

// Training and validation split all tokens, each once, whether the cut is in a document or between two.
TEST_F(DatasetTest, ValidationTakesTheTailWhereNoDocumentFallsToIt) {
  struct Case {
    std::vector<std::int32_t> documents;  // tokens of each
    std::string split;
    std::int32_t first;  // first one for validation
  };
  const std::vector<Case> cases = {{{200}, "969,30,1", 191},  // 3 % would be 6 tokens: one sample of 9
                                   {{1000}, "90,10,0", 900},
                                   {{500, 500}, "80,20,0", 800},
                                   {{900, 80, 20}, "90,10,0", 900},  // full documents
                                   {{0, 850, 0, 100, 0, 50, 0, 0}, "95,5", 950},
                                   {{18}, "60,40", 9}};  // training has a sample too
  for (const auto& [documents, split, first] : cases) {
    SCOPED_TRACE(testing::PrintToString(documents));
    IndexedDatasetWriter writer(folder_ / "c", TokenType::kU16);
    std::int32_t next = 0;
    for (const std::int32_t length : documents) {
      TokenIds tokens;
      for (std::int32_t t = 0; t < length; ++t) tokens.push_back(next++);
      writer.add_document(tokens);
    }
    writer.commit();
    config_.data_path = {folder_ / "c"};
    config_.vocab_size = 1000;
    config_.split = split;
    const auto tokens_of = [&](const Dataset& dataset) {
      std::set<std::int32_t> all;
      for (std::int64_t k = 0; k < dataset.size(); ++k)
        for (const std::int32_t token : sample_of(dataset, k, 8)) all.insert(token);
      return all;
    };
    config_.num_samples = {.train = 600, .valid = 600};
    const Datasets datasets = build_datasets(config_);
    const std::set<std::int32_t> train = tokens_of(datasets.train), valid = tokens_of(datasets.valid);
    EXPECT_EQ(std::pair(*train.begin(), *train.rbegin()), std::pair(0, first - 1));
    EXPECT_EQ(std::pair(*valid.begin(), *valid.rbegin()), std::pair(first, next - 1));
    EXPECT_EQ(std::ssize(train), first);
    EXPECT_EQ(std::ssize(valid), next - first);
    ASSERT_EQ(datasets.notes.size(), 1u);
    EXPECT_THAT(datasets.notes[0], HasSubstr("it takes the last " + std::to_string(next - first) + " of training's " +
                                             std::to_string(next) + " tokens; --split 1 trains on all"));
    // A run without evaluations trains on the same split, so that a resume with them evaluates no trained samples.
    config_.num_samples = {.train = 600};
    const Datasets alone = build_datasets(config_);
    for (std::int64_t k = 0; k < alone.train.size(); ++k)
      EXPECT_EQ(sample_of(alone.train, k, 8), sample_of(datasets.train, k, 8));
  }
}

TEST_F(DatasetTest, ValidationHasNoTailWithoutAShareOrTwoSamples) {
  const auto write = [&](std::int64_t length) {
    IndexedDatasetWriter writer(folder_ / "c", TokenType::kU16);
    writer.add_document(TokenIds(static_cast<std::size_t>(length), 1));
    writer.commit();
  };
  config_.data_path = {folder_ / "c"};
  config_.num_samples = {.train = 5};
  write(17);
  config_.split = "969,30,1";
  EXPECT_TRUE(build_datasets(config_).notes.empty());
  config_.num_samples.valid = 5;
  EXPECT_THAT(error(),
              HasSubstr("which gives it none, and fewer tokens than two samples of 9, of which it would take"));
  write(18);
  EXPECT_EQ(build_datasets(config_).notes.size(), 1u);
  config_.split = "1";
  EXPECT_THAT(error(), HasSubstr("got '1', which gives it none; give it"));
  config_.num_samples.valid = 0;
  EXPECT_TRUE(build_datasets(config_).notes.empty());
}

TEST_F(DatasetTest, SplitOfEmptyDocuments) {
  IndexedDatasetWriter writer(folder_ / "e", TokenType::kU16);
  for (int i = 0; i < 10; ++i) writer.add_document(i < 8 ? TokenIds{1, 2} : TokenIds{});
  writer.commit();
  config_.data_path = {folder_ / "e"};
  config_.split = "80,20,0";
  config_.num_samples.test = 0;
  EXPECT_THAT(error(), testing::AllOf(HasSubstr("--split"), HasSubstr("sequences 8 to 10")));
}

TEST_F(DatasetTest, TextsThatAreNoSplit) {
  for (const std::string text : {"", "a", "1,", "1,2,3,4", "-1,2", "0,0,0", "1 2", "nan", "inf,1", "1e400", "1,,1"}) {
    SCOPED_TRACE(text);
    EXPECT_THAT(error_of(ExitCode::kUsage, [&] { split_sequences(text, 10); }), HasSubstr("--split"));
  }
  EXPECT_EQ(split_sequences(" 50 , 50 ", 10)[1], (SequenceRange{.begin = 5, .end = 10}));
}

TEST_F(DatasetTest, BadDataPaths) {
  config_.data_path = {};
  EXPECT_THAT(error(), HasSubstr("--data-path"));
  config_.data_path = {"0.5", folder_ / "a", "0.5"};
  EXPECT_THAT(error(), HasSubstr("--data-path: expected PREFIX..., or pairs WEIGHT PREFIX, got 3 entries, 2 of them"));
  config_.data_path = {"0.5", folder_ / "a", folder_ / "b", "0.5"};
  EXPECT_THAT(error(), HasSubstr("--data-path"));
  config_.data_path = {"-1", folder_ / "a"};
  EXPECT_THAT(error(), HasSubstr("weights of at least 0"));
  config_.data_path = {"0", folder_ / "a", "0", folder_ / "b"};
  EXPECT_THAT(error(), HasSubstr("a weight above 0"));
  config_.data_path = {"1e308", folder_ / "a", "1e308", folder_ / "b"};
  EXPECT_THAT(error(), HasSubstr("--data-path: expected weights with a finite sum, got an infinite one"));
  config_.data_path = {"1e308", folder_ / "a", "7e307", folder_ / "b"};
  EXPECT_GE(build_datasets(config_).train.size(), 50);
  config_.data_path = {"1e308", folder_ / "a", "1e-308", folder_ / "b"};  // a share of 0
  EXPECT_GE(build_datasets(config_).train.size(), 50);
  config_.data_path = {folder_ / "nowhere"};
  EXPECT_THAT(error_of(ExitCode::kFileIo, [&] { build_datasets(config_); }), HasSubstr("nowhere.idx"));
  EXPECT_EQ(prefixes_of({"3", "x", "4", "y"}), (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(prefixes_of({"x", "y"}), (std::vector<std::string>{"x", "y"}));
}

TEST_F(DatasetTest, UnweightedPrefixesGiveOneEpoch) {
  config_.data_path = {folder_ / "a", folder_ / "b"};
  config_.num_samples = {.train = 100000};
  EXPECT_THAT(error(), testing::AllOf(HasSubstr("--data-path"), HasSubstr("in one epoch"), HasSubstr("a weight")));
}

TEST_F(DatasetTest, ValuesOutOfRange) {
  config_.seed = -1;
  EXPECT_THAT(error(), HasSubstr("--seed"));
  config_.seed = std::int64_t{1} << 32;
  EXPECT_THAT(error(), HasSubstr("--seed"));
  config_.seed = 0;
  config_.seq_length = 0;
  EXPECT_THAT(error(), HasSubstr("--seq-length"));
  config_.seq_length = 8;
  config_.num_samples.train = std::int64_t{1} << 61;
  EXPECT_THAT(error(), HasSubstr("--train-iters"));
  config_.num_samples.train = std::int64_t{1} << 40;
  EXPECT_THAT(error(), HasSubstr("fewer than 2^32 samples"));
}

TEST_F(DatasetTest, TokensOutsideTheVocabularyAreNamed) {
  config_.vocab_size = 100;
  const Datasets datasets = build_datasets(config_);
  const std::string message = error_of(ExitCode::kFormat, [&] {
    for (std::int64_t k = 0; k < datasets.train.size(); ++k) sample_of(datasets.train, k, 8);
  });
  EXPECT_THAT(message, testing::AllOf(HasSubstr("a.bin: sequence"), HasSubstr("vocabulary size 100"),
                                      HasSubstr("another tokenizer")));
}

TEST_F(DatasetTest, ThreadsReadTheSame) {
  const Datasets datasets = build_datasets(config_);
  std::vector<TokenIds> expected;
  for (std::int64_t k = 0; k < datasets.train.size(); ++k) expected.push_back(sample_of(datasets.train, k, 8));
  std::vector<int> different(4, -1);
  {
    std::vector<std::jthread> threads;
    for (int& count : different) {
      threads.emplace_back([&] {
        count = 0;
        for (std::size_t k = 0; k < expected.size(); ++k) {
          count += sample_of(datasets.train, static_cast<std::int64_t>(k), 8) != expected[k] ? 1 : 0;
        }
      });
    }
  }
  EXPECT_THAT(different, testing::Each(0));
}

TEST_F(DatasetTest, ResumedRunReadsOn) {
  const Datasets first = build_datasets(config_);
  const Datasets again = build_datasets(config_);
  // 10 steps of 4 samples: one rank with microbatches of 2, then from step 6 on two ranks with microbatches of 1.
  std::vector<TokenIds> unbroken;
  for (std::int64_t k = 0; k < 40; ++k) unbroken.push_back(sample_of(first.train, k, 8));
  std::vector<TokenIds> resumed;
  for (std::int64_t consumed = 0; consumed < 40; consumed += 4) {
    const std::int64_t ranks = consumed < 24 ? 1 : 2;
    const std::int64_t micro_batch_size = consumed < 24 ? 2 : 1;
    for (std::int64_t microbatch = 0; microbatch < 2; ++microbatch) {
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        const SampleRange range = microbatch_samples({.consumed_samples = consumed,
                                                      .microbatch = microbatch,
                                                      .micro_batch_size = micro_batch_size,
                                                      .data_parallel_size = ranks,
                                                      .data_parallel_rank = rank});
        const Dataset& from = consumed < 24 ? first.train : again.train;
        for (std::int64_t k = range.begin; k < range.end; ++k) resumed.push_back(sample_of(from, k, 8));
      }
    }
  }
  EXPECT_EQ(resumed, unbroken);
}

// A data set says of every number of samples whether its own order begins as the one for that number.
TEST_F(DatasetTest, KnowsWhichNumbersOfSamplesHaveItsOrder) {
  for (const std::vector<std::string>& path :
       {std::vector<std::string>{folder_ / "a"}, {"0.3", folder_ / "a", "0.7", folder_ / "b"}}) {
    config_.data_path = path;
    const auto built = [&](std::int64_t samples) {
      config_.num_samples = {.train = samples};
      return build_datasets(config_).train;
    };
    int same = 0, other = 0;
    for (const std::int64_t samples : {10, 60, 90, 200}) {
      const Dataset dataset = built(samples);
      for (std::int64_t wanted = 5; wanted < 260; wanted += 5) {
        const Dataset second = built(wanted);
        bool equal = true;
        for (std::int64_t k = 0; k < std::min(samples, wanted); ++k)
          equal = equal && sample_of(dataset, k, 8) == sample_of(second, k, 8);
        EXPECT_EQ(dataset.keeps_order_of(wanted), equal) << samples << " and " << wanted;
        ++(equal ? same : other);
      }
    }
    EXPECT_GT(same, 10);
    EXPECT_GT(other, 20);
  }
}

TEST_F(DatasetTest, TakesTheOrderOfMoreSamples) {
  for (const std::vector<std::string>& path :
       {std::vector<std::string>{folder_ / "a"}, {"0.3", folder_ / "a", "0.7", folder_ / "b"}}) {
    config_.data_path = path;
    config_.num_samples = {.train = 300};
    const Dataset all = build_datasets(config_).train;
    config_.num_samples = {.train = 40};
    const Dataset few = build_datasets(config_).train;
    EXPECT_FALSE(few.keeps_order_of(300));
    config_.order_samples = 300;
    const Dataset ordered = build_datasets(config_).train;
    EXPECT_EQ(ordered.size(), all.size());
    for (std::int64_t k = 0; k < 300; ++k) EXPECT_EQ(sample_of(ordered, k, 8), sample_of(all, k, 8)) << k;
    config_.order_samples = 0;
  }
  config_.data_path = {folder_ / "a", folder_ / "b"};  // one epoch each, whose order is the same for any number
  const Dataset short_one = build_datasets(config_).train;
  config_.order_samples = 100000;
  EXPECT_EQ(build_datasets(config_).train.size(), short_one.size());
  EXPECT_TRUE(short_one.keeps_order_of(50));
}

TEST(Sampler, RanksTakeNeighbouringMicrobatches) {
  const MicrobatchPlace place{
      .consumed_samples = 96, .microbatch = 2, .micro_batch_size = 4, .data_parallel_size = 3, .data_parallel_rank = 1};
  EXPECT_EQ(microbatch_samples(place), (SampleRange{.begin = 96 + 24 + 4, .end = 96 + 24 + 8}));
}

DataConfig mock_config(std::int64_t seq_length, std::int64_t vocab_size) {
  return {.seed = 7,
          .seq_length = seq_length,
          .vocab_size = vocab_size,
          .mock = true,
          .num_samples = {.train = 200, .valid = 200, .test = 0}};
}

TEST(MockDataset, FollowsZipfsLaw) {
  const std::int64_t vocab = 1000;
  const std::int64_t length = 9999;
  const Datasets datasets = build_datasets(mock_config(length, vocab));
  std::vector<double> counts(static_cast<std::size_t>(vocab));
  for (std::int64_t k = 0; k < 200; ++k) {
    for (const std::int32_t token : sample_of(datasets.train, k, length)) {
      ASSERT_TRUE(token >= 0 && token < vocab);
      counts[static_cast<std::size_t>(token)] += 1.0;
    }
  }
  double harmonic = 0.0;
  for (std::int64_t r = 1; r <= vocab; ++r) harmonic += 1.0 / static_cast<double>(r);
  const double total = 200.0 * static_cast<double>(length + 1);
  double chi_squared = 0.0;
  for (std::size_t r = 0; r < counts.size(); ++r) {
    const double expected = total / (static_cast<double>(r + 1) * harmonic);
    chi_squared += (counts[r] - expected) * (counts[r] - expected) / expected;
  }
  // 999 degrees of freedom: mean 999, standard deviation 45. The data are fixed, so this cannot fail by chance.
  EXPECT_GT(chi_squared, 999 - 4 * 45);
  EXPECT_LT(chi_squared, 999 + 4 * 45);
}

TEST(MockDataset, TokenDependsOnSeedSampleAndPositionAlone) {
  const Datasets datasets = build_datasets(mock_config(64, 50000));
  const Datasets longer = build_datasets(mock_config(128, 50000));
  TokenIds head = sample_of(longer.train, 3, 128);
  head.resize(65);
  EXPECT_EQ(sample_of(datasets.train, 3, 64), head);
  EXPECT_NE(sample_of(datasets.train, 3, 64), sample_of(datasets.train, 4, 64));
  EXPECT_NE(sample_of(datasets.train, 3, 64), sample_of(datasets.valid, 3, 64));
  DataConfig other = mock_config(64, 50000);
  other.seed = 8;
  EXPECT_NE(sample_of(datasets.train, 3, 64), sample_of(build_datasets(other).train, 3, 64));
  EXPECT_EQ(datasets.train.size(), 200);
  EXPECT_EQ(datasets.test.size(), 0);
}

// Benchmarks of different versions compare only while the data stay the same.
TEST(MockDataset, FirstTokensStayTheSame) {
  const Datasets datasets = build_datasets(mock_config(7, 257));
  EXPECT_THAT(sample_of(datasets.train, 0, 7), testing::ElementsAre(25, 31, 14, 188, 0, 237, 2, 10));
}

TEST(MockDataset, VocabularyOfOne) {
  EXPECT_THAT(sample_of(build_datasets(mock_config(5, 1)).train, 0, 5), testing::Each(0));
}

}  // namespace
}  // namespace megalith
