// Samples of pretraining data and packs, as training reads them, compared with those of megatron-core by
// check_samples.py. Skipped if ${PYTHON:-python3} has no megatron-core.
#include <fmt/format.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "core/data/dataset.h"
#include "tests/hf/python.h"
#include "tests/unit/data/data_files.h"

namespace megalith::test {
namespace {

using Json = nlohmann::json;

constexpr std::int32_t kEod = 50;  // the largest id of the documents

void run(const std::string& command) { ASSERT_EQ(std::system(command.c_str()), 0) << command; }

class Megatron : public testing::Test {
 protected:
  void SetUp() override {
    if (std::system((python() + " -c 'import megatron.core.datasets' >/dev/null 2>&1").c_str()) != 0)
      GTEST_SKIP() << python() << " has no megatron-core; PYTHON names another interpreter";
  }

  // Runs prepare with the lines as its input.
  void prepare(const std::string& lines, const std::string& flags) const {
    write_bytes(folder_ / "input.jsonl", lines);
    run(fmt::format("{}/prepare --input '{}' --output-prefix '{}' {} >'{}'", MEGALITH_BIN_DIR, folder_ / "input.jsonl",
                    folder_ / "data", flags, folder_ / "log"));
  }

  // Appends the samples of a split to the file that the script reads, a line of JSON each.
  void write_samples(const DataConfig& config, const char* split, const Dataset& data) {
    for (std::int64_t k = 0; k < data.size(); ++k) {
      std::vector<std::int32_t> tokens(static_cast<std::size_t>(config.seq_length + 1));
      SampleMarks marks;
      data.sample(k, tokens, &marks);
      Json documents = Json::array();
      for (const SampleDocument& document : marks.documents) documents.push_back({document.rows, document.tokens});
      const DocumentMasks& masks = config.masks;
      samples_ << Json{{"split", split},
                       {"index", k},
                       {"reset_position_ids", masks.reset_position_ids},
                       {"reset_attention_mask", masks.reset_attention_mask},
                       {"eod_mask_loss", masks.eod_mask_loss},
                       {"inter_document_masking", masks.inter_document_masking},
                       {"tokens", tokens},
                       {"trained", marks.trained},
                       {"documents", documents}}
                      .dump()
               << "\n";
    }
  }

  void compare(const DataConfig& config, const std::string& kind) {
    samples_.close();
    run(
        fmt::format("{} {}/tests/megatron/check_samples.py {} '{}' '{}' --split {} --seed {} --seq-length {} "
                    "--train-samples {} --valid-samples {} --eod {}",
                    python(), MEGALITH_SOURCE_DIR, kind, config.data_path[0], folder_ / "samples.jsonl", config.split,
                    config.seed, config.seq_length, config.num_samples.train, config.num_samples.valid, kEod));
  }

  TestFolder folder_;
  std::ofstream samples_{folder_ / "samples.jsonl"};
};

// Short documents with EOD tokens at their end and some in them; several epochs.
TEST_F(Megatron, PretrainingSamplesAreThoseOfMegatronCore) {
  std::mt19937_64 random(49);
  std::string lines;
  for (int document = 0; document < 120; ++document) {
    std::string ids;
    for (auto left = random() % (document % 10 == 0 ? 200 : 40); left > 0; --left)
      ids += fmt::format("{} ", random() % 60 == 0 ? kEod : static_cast<std::int32_t>(random() % kEod));
    ids += fmt::format("{}", kEod);
    lines += Json{{"text", ids}}.dump() + "\n";
  }
  prepare(lines, fmt::format("--tokenizer-type null --vocab-size {}", kEod + 1));
  DataConfig config{.data_path = {folder_ / "data"}, .split = "90,10", .seq_length = 64, .vocab_size = kEod + 1};
  config.num_samples = {.train = 100, .valid = 10};
  for (unsigned flags = 0; flags <= 8; ++flags) {
    config.masks = {.reset_position_ids = (flags & 1) != 0,
                    .reset_attention_mask = (flags & 2) != 0,
                    .eod_mask_loss = (flags & 4) != 0,
                    .inter_document_masking = flags == 8,
                    .eod = kEod};
    const Datasets data = build_datasets(config);
    write_samples(config, "train", data.train);
    write_samples(config, "valid", data.valid);
  }
  compare(config, "gpt");
}

TEST_F(Megatron, PacksAreThoseOfMegatronsSftDataset) {
  std::mt19937_64 random(49);
  const auto text = [&] { return std::string(1 + random() % 30, static_cast<char>('a' + random() % 26)); };
  std::string lines;
  for (int chat = 0; chat < 60; ++chat) {
    Json messages = Json::array();
    for (auto turns = 1 + random() % 2; turns > 0; --turns) {
      messages.push_back({{"role", "user"}, {"content", text()}});
      messages.push_back({{"role", "assistant"}, {"content", text()}});
    }
    lines += Json{{"messages", messages}}.dump() + "\n";
  }
  prepare(lines, "--sft --chat-template chatml --seq-length 512 --pad-to-multiple 4");
  DataConfig config{.data_path = {folder_ / "data"}, .packs = true, .split = "1", .seq_length = 512, .vocab_size = 257};
  config.num_samples = {.train = 40};
  write_samples(config, "train", build_datasets(config).train);
  compare(config, "sft");
}

}  // namespace
}  // namespace megalith::test
