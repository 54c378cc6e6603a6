// Masks of pretraining samples against masks built cell by cell as Megatron-LM does.
#include <algorithm>
#include <numeric>
#include <random>

#include "core/data/dataset.h"
#include "tests/unit/data/data_files.h"

namespace megalith {
namespace {

constexpr std::int32_t kEnd = 9;

// What a sample's marks say of each row: position, whether it is trained, and the first row that it sees.
struct RowMasks {
  std::vector<std::int64_t> position, first_visible;
  std::vector<std::uint8_t> trained;
  friend bool operator==(const RowMasks&, const RowMasks&) = default;
};

RowMasks of_marks(const SampleMarks& marks, const DocumentMasks& masks) {
  RowMasks rows{.trained = marks.trained};
  std::int64_t begin = 0;
  for (const SampleDocument& document : marks.documents) {
    EXPECT_EQ(document.rows, document.tokens);  // pretraining has no padding
    for (std::int64_t i = 0; i < document.rows; ++i) {
      rows.position.push_back(masks.restarts_positions() ? i : begin + i);
      rows.first_visible.push_back(masks.separates_documents() ? begin : 0);
    }
    begin += document.rows;
  }
  return rows;
}

// Visits the end of each document: rows after it see none up to it, and restart their positions.
RowMasks cell_by_cell(const std::vector<std::int32_t>& inputs, const DocumentMasks& masks) {
  const std::size_t length = inputs.size();
  RowMasks rows{.position = std::vector<std::int64_t>(length), .first_visible = std::vector<std::int64_t>(length)};
  std::iota(rows.position.begin(), rows.position.end(), 0);
  for (const std::int32_t token : inputs) rows.trained.push_back(!masks.eod_mask_loss || token != masks.eod ? 1 : 0);
  std::int64_t previous = 0;
  for (std::size_t i = 0; i < length; ++i) {
    if (inputs[i] != masks.eod) continue;
    const auto next = static_cast<std::int64_t>(i) + 1;
    for (std::size_t row = i + 1; row < length; ++row) {
      if (masks.reset_attention_mask) rows.first_visible[row] = next;
      if (masks.reset_position_ids) rows.position[row] -= next - previous;
    }
    previous = next;
  }
  return rows;
}

TEST(DocumentMasks, AreThoseOfMegatron) {
  std::mt19937_64 random(2);
  for (unsigned draw = 0; draw < 200; ++draw) {
    std::vector<std::int32_t> tokens(2 + random() % 30);
    for (std::int32_t& token : tokens) token = static_cast<std::int32_t>(kEnd - random() % (1 + draw % 7));
    for (unsigned flags = 1; flags < 8; ++flags) {
      const DocumentMasks masks{.reset_position_ids = (flags & 1) != 0,
                                .reset_attention_mask = (flags & 2) != 0,
                                .eod_mask_loss = (flags & 4) != 0,
                                .eod = kEnd};
      SampleMarks marks;
      mark_sample(tokens, masks, marks);
      tokens.pop_back();
      EXPECT_EQ(of_marks(marks, masks), cell_by_cell(tokens, masks));
      tokens.push_back(kEnd);
    }
  }
}

// Documents of the index: their borders in the sample's inputs, whatever the tokens.
TEST(DocumentMasks, OfTheIndexEndWhereItsSequencesDo) {
  const TestFolder folder;
  IndexedDatasetWriter writer(folder / "data", TokenType::kU16);
  // Each sequence has a separate token, so that a sample's tokens name their sequence.
  const std::vector<std::int64_t> lengths = {5, 1, 12, 3, 0, 7, 2, 9, 4, 1, 1, 6};
  for (std::size_t s = 0; s < lengths.size(); ++s)
    writer.add_document(std::vector<std::int32_t>(static_cast<std::size_t>(lengths[s]), static_cast<std::int32_t>(s)));
  writer.commit();
  constexpr std::int64_t kRows = 8;
  DataConfig config{.data_path = {folder / "data"}, .split = "1", .seq_length = kRows, .vocab_size = 100};
  config.masks = {.inter_document_masking = true, .eod = kEnd};
  config.num_samples = {.train = 24};
  const Datasets data = build_datasets(config);
  std::int64_t most = 0;
  for (std::int64_t k = 0; k < data.train.size(); ++k) {
    std::vector<std::int32_t> tokens(kRows + 1);
    SampleMarks marks;
    data.train.sample(k, tokens, &marks);
    std::vector<std::int64_t> begins, want = {0};
    std::int64_t row = 0;
    for (const SampleDocument& document : marks.documents) {
      begins.push_back(row);
      row += document.rows;
    }
    EXPECT_EQ(row, kRows);
    for (std::int64_t i = 1; i < kRows; ++i) {
      if (tokens[static_cast<std::size_t>(i)] != tokens[static_cast<std::size_t>(i - 1)]) want.push_back(i);
    }
    EXPECT_TRUE(std::ranges::includes(begins, want));  // a sequence of the next epoch may follow itself
    EXPECT_LE(begins.size(), want.size() + 1);
    EXPECT_EQ(marks.trained, std::vector<std::uint8_t>(kRows, 1));
    most = std::max(most, std::ssize(marks.documents));
  }
  EXPECT_LE(most, data.train.max_documents());
  EXPECT_LE(data.train.max_documents(), most + 2);  // an empty sequence, and one that only holds the last label
}

TEST(DocumentMasks, SplitsMayHaveTheirOwnPaths) {
  const TestFolder folder;
  for (const auto& [name, token] : {std::pair("train", 1), {"valid", 2}, {"test", 3}}) {
    IndexedDatasetWriter writer(folder / name, TokenType::kU16);
    writer.add_document(std::vector<std::int32_t>(41, token));
    writer.commit();
  }
  DataConfig config{.seq_length = 8, .vocab_size = 100};
  config.split_paths = {{{folder / "train"}, {"0.5", folder / "valid"}, {folder / "test"}}};
  config.num_samples = {.train = 4, .valid = kOneEpoch, .test = 3};
  const Datasets data = build_datasets(config);
  EXPECT_EQ(data.valid.size(), 5);
  for (const auto& [set, token] : {std::pair(&data.train, 1), {&data.valid, 2}, {&data.test, 3}}) {
    std::vector<std::int32_t> tokens(9);
    set->sample(0, tokens);
    EXPECT_EQ(tokens, std::vector<std::int32_t>(9, token));
  }
  config.num_samples.valid = 4;
  config.split_paths[2].clear();
  EXPECT_EQ(build_datasets(config).test.size(), 0);
}

TEST(DocumentMasks, PacksNeedTheirFlag) {
  const TestFolder folder;
  IndexedDatasetWriter writer(folder / "text", TokenType::kU16);
  writer.add_document(std::vector<std::int32_t>(41, 1));
  writer.commit();
  DataConfig config{.data_path = {folder / "text"}, .seq_length = 8, .vocab_size = 100};
  config.packs = true;
  config.num_samples = {.train = 4};
  EXPECT_THAT(error_of(ExitCode::kUsage, [&] { build_datasets(config); }),
              testing::HasSubstr("expected packs of conversations with --sft, got no"));
}

}  // namespace
}  // namespace megalith
