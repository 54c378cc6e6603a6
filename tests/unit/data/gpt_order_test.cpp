// Compared with tests/golden/data/gpt_order.json, which numpy made by another method.
#include <fmt/format.h>

#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "core/data/dataset.h"
#include "core/data/gpt_dataset.h"
#include "core/data/numpy_shuffle.h"
#include "core/data/split.h"
#include "tests/unit/data/data_files.h"

namespace megalith {
namespace {

using Json = nlohmann::json;
using OrderTokens = std::vector<std::int32_t>;

const Json& golden_order() {
  static const Json file = Json::parse(read_bytes(MEGALITH_SOURCE_DIR "/tests/golden/data/gpt_order.json"));
  return file;
}

// FNV-1a over the little-endian bytes of 32-bit values, as 16 hex digits.
class Fnv {
 public:
  template <class Value>
  void add(Value value) {
    for (int shift = 0; shift < 32; shift += 8) {
      hash_ = (hash_ ^ ((static_cast<std::uint32_t>(value) >> shift) & 0xff)) * 0x100000001b3u;
    }
  }
  std::string hex() const { return fmt::format("{:016x}", hash_); }

 private:
  std::uint64_t hash_ = 0xcbf29ce484222325u;
};

template <class Values>
std::string fnv_of(const Values& values) {
  Fnv hash;
  for (const auto value : values) hash.add(value);
  return hash.hex();
}

TEST(GptOrder, IsMegatrons) {
  const TestFolder folder;
  for (const Json& golden_case : golden_order().at("orders")) {
    SCOPED_TRACE(golden_case.at("name"));
    write_golden_dataset(folder / "d", golden_case.at("count"), golden_case.at("spread"));
    const auto data = std::make_shared<const IndexedDataset>(IndexedDataset::open(folder / "d"));
    const GptDataset gpt(data,
                         {.part = {.range = {.begin = golden_case.at("range")[0], .end = golden_case.at("range")[1]}},
                          .num_samples = golden_case.at("num_samples"),
                          .seq_length = golden_case.at("seq_length"),
                          .vocab_size = 251,
                          .seed = golden_case.at("seed")});
    EXPECT_EQ(gpt.num_epochs(), golden_case.at("epochs"));
    ASSERT_EQ(gpt.size(), golden_case.at("size"));
    EXPECT_EQ(fnv_of(gpt.document_index()), golden_case.at("document_index_fnv").get<std::string>());
    EXPECT_EQ(fnv_of(gpt.shuffle_index()), golden_case.at("shuffle_index_fnv").get<std::string>());
    Fnv starts;
    Json start_rows;
    for (const GptDataset::SampleStart& start : gpt.sample_index()) {
      starts.add(start.position);
      starts.add(start.offset);
      start_rows.push_back({start.position, start.offset});
    }
    EXPECT_EQ(starts.hex(), golden_case.at("sample_index_fnv").get<std::string>());
    if (!golden_case.contains("samples")) continue;

    EXPECT_EQ(Json(gpt.document_index()), golden_case.at("document_index"));
    EXPECT_EQ(Json(gpt.shuffle_index()), golden_case.at("shuffle_index"));
    EXPECT_EQ(start_rows, golden_case.at("sample_index"));
    for (std::size_t k = 0; k < golden_case.at("samples").size(); ++k) {
      OrderTokens tokens(golden_case.at("seq_length").get<std::size_t>() + 1);
      gpt.sample(static_cast<std::int64_t>(k), tokens);
      EXPECT_EQ(Json(tokens), golden_case.at("samples")[k]) << k;
    }
  }
}

TEST(GptOrder, SplitsAreMegatrons) {
  for (const Json& golden_case : golden_order().at("splits")) {
    SCOPED_TRACE(golden_case.dump());
    const auto ranges = split_sequences(golden_case.at("split"), golden_case.at("count"));
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      EXPECT_EQ(ranges[i].begin, golden_case.at("ranges")[i][0]);
      EXPECT_EQ(ranges[i].end, golden_case.at("ranges")[i][1]);
    }
  }
}

TEST(GptOrder, BlendingIsMegatrons) {
  for (const Json& golden_case : golden_order().at("blend_orders")) {
    SCOPED_TRACE(golden_case.at("weights").dump());
    const auto weights = normalized(normalized(golden_case.at("weights").get<std::vector<double>>()));
    ASSERT_EQ(weights.size(), golden_case.at("normalized").size());
    for (std::size_t d = 0; d < weights.size(); ++d) {
      EXPECT_EQ(weights[d], std::strtod(golden_case.at("normalized")[d].get<std::string>().c_str(), nullptr)) << d;
    }
    const BlendIndex index = build_blend_index(weights, golden_case.at("size"));
    EXPECT_EQ(fnv_of(index.dataset), golden_case.at("fnv").get<std::string>());
    const Json first(std::vector<std::uint16_t>(index.dataset.begin(), index.dataset.begin() + 40));
    EXPECT_EQ(first, golden_case.at("first"));
    std::vector<std::int64_t> drawn(weights.size(), 0);
    for (std::size_t k = 0; k < index.sample.size(); ++k) EXPECT_EQ(index.sample[k], drawn[index.dataset[k]]++);
  }
}

TEST(GptOrder, BlendedSamplesAreMegatrons) {
  const TestFolder folder;
  for (const Json& golden_case : golden_order().at("blends")) {
    SCOPED_TRACE(golden_case.at("weights").dump());
    std::vector<std::string> data_path;
    for (std::size_t d = 0; d < golden_case.at("counts").size(); ++d) {
      const std::string prefix = folder / fmt::format("d{}", d);
      write_golden_dataset(prefix, golden_case.at("counts")[d], golden_case.at("spreads")[d]);
      if (!golden_case.at("weights").is_null()) data_path.push_back(golden_case.at("weights")[d].dump());
      data_path.push_back(prefix);
    }
    const Datasets datasets = build_datasets({.data_path = data_path,
                                              .split = golden_case.at("split"),
                                              .seed = golden_case.at("seed"),
                                              .seq_length = golden_case.at("seq_length"),
                                              .vocab_size = 251,
                                              .num_samples = {.train = golden_case.at("num_samples")}});
    ASSERT_EQ(datasets.train.size(), golden_case.at("size"));
    EXPECT_EQ(datasets.valid.size(), 0);
    Fnv all;
    OrderTokens tokens(golden_case.at("seq_length").get<std::size_t>() + 1);
    for (std::int64_t k = 0; k < datasets.train.size(); ++k) {
      datasets.train.sample(k, tokens);
      for (const std::int32_t token : tokens) all.add(token);
      if (k >= 5) continue;
      EXPECT_EQ(Json(tokens), golden_case.at("samples")[static_cast<std::size_t>(k)]) << k;
    }
    EXPECT_EQ(all.hex(), golden_case.at("fnv").get<std::string>());
  }
}

TEST(NumpyShuffle, KnownPermutations) {
  // numpy.random.RandomState(seed).shuffle(numpy.arange(10))
  std::vector<int> values(10);
  std::iota(values.begin(), values.end(), 0);
  NumpyRandomState(0).shuffle(std::span(values));
  EXPECT_THAT(values, testing::ElementsAre(2, 8, 4, 9, 1, 6, 7, 3, 0, 5));
}

}  // namespace
}  // namespace megalith
