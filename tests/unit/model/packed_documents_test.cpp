// Documents of a pack in a full dense model: each has the values that it has alone, whatever its neighbors are.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <random>

#include "core/device/copy.h"
#include "core/ops/elementwise/elementwise.h"
#include "core/ops/optim/grad_norm.h"
#include "tests/support/download.h"
#include "tests/unit/model/family_cases.h"
#include "tests/unit/model/model_run.h"

namespace megalith {
namespace {

using PackedTokens = std::vector<std::int32_t>;

// Values of one document.
struct PackedValues {
  std::vector<float> hidden;              // of each row, ahead of the head: layer output, then residual stream
  std::vector<float> losses;              // of some rows
  std::vector<float> embedding_gradient;  // of each row
};

// A dense model on one device; every call may have other documents, so the arena is not planned.
class PackedModel {
 public:
  PackedModel(const ModelConfig& config, DeviceType device)
      : config_(config), pool_(device), stream_(device, "compute") {
    gpt_.parameters->allocate(pool_, config.params_dtype);
    static_cast<void>(test::draw_weights(stream_, *gpt_.parameters, 1));
    sums_ = Tensor(pool_.allocate(sizeof(float), MemoryCategory::kOther, "test"), DType::kFp32, {1});
    parameters_ = static_cast<MicrobatchParameters*>(
        pool_.allocate(sizeof(MicrobatchParameters), MemoryCategory::kOther, "test"));
    launch(stream_, WriteMicrobatchParameters{.value = {.loss_scale = 0.125f}, .out = parameters_});
  }

  // Results by document; only the loss of document `trained` counts, if it is given.
  std::vector<PackedValues> run(const std::vector<PackedTokens>& documents, std::optional<std::size_t> trained = {}) {
    std::vector<PackedValues> values(documents.size());
    load(documents, trained);
    std::vector<Stash> stashes(gpt_.segments.size());
    gpt_.parameters->zero_gradients(stream_);
    const TensorList hidden = forward(microbatch_, stashes);
    for (int i = 0; i < 2; ++i) {
      if (hidden[i]) split(documents, hidden[i], values, &PackedValues::hidden);
    }
    TensorList gradient;
    for (std::size_t s = gpt_.segments.size(); s-- > 1;)
      gradient = gpt_.segments[s].segment->backward_data(ctx_, microbatch_, gradient, stashes[s]);
    split(documents, gradient[0], values, &PackedValues::embedding_gradient);
    gpt_.segments[0].segment->backward_data(ctx_, microbatch_, gradient, stashes[0]);
    for (std::size_t s = gpt_.segments.size(); s-- > 0;)
      gpt_.segments[s].segment->backward_weight(ctx_, microbatch_, stashes[s]);
    weight_gradients_.clear();
    for (const ParameterUnit& unit : gpt_.parameters->units()) {
      for (const Parameter* parameter : unit.parameters) {
        const std::vector<float> part = download(stream_, parameter->main_grad);
        weight_gradients_.insert(weight_gradients_.end(), part.begin(), part.end());
      }
    }
    arena_.reset();
    return values;
  }

  // Loss of one row of a document.
  float loss(const std::vector<PackedTokens>& documents, std::size_t document, std::size_t row) {
    load(documents, document, row);
    Microbatch mb = microbatch_;
    mb.mode = Mode::kEval;
    std::vector<Stash> stashes(gpt_.segments.size());
    launch(stream_, Fill{.x = sums_, .value = 0});
    forward(mb, stashes);
    const float loss = download(stream_, sums_)[0];
    arena_.reset();
    return loss;
  }

  const std::vector<float>& weight_gradients() const { return weight_gradients_; }  // of the last run

 private:
  Tensor upload(const std::vector<std::int32_t>& values, std::string_view name) {
    const Tensor to = ctx_.empty({std::ssize(values)}, DType::kInt32, name);
    copy_from_host(stream_, to.data, values.data(), to.bytes());
    stream_.synchronize();  // the values may be gone by then
    return to;
  }

  // Two entries of the capacity are unused.
  void load(const std::vector<PackedTokens>& documents, std::optional<std::size_t> trained,
            std::optional<std::size_t> trained_row = {}) {
    std::vector<std::int32_t> tokens, labels, positions, begins, lengths;
    for (std::size_t d = 0; d < documents.size(); ++d) {
      begins.push_back(static_cast<std::int32_t>(tokens.size()));
      lengths.push_back(static_cast<std::int32_t>(documents[d].size()));
      for (std::size_t i = 0; i < documents[d].size(); ++i) {
        const bool counts =
            i + 1 < documents[d].size() && (!trained || *trained == d) && (!trained_row || *trained_row == i);
        tokens.push_back(documents[d][i]);
        labels.push_back(counts ? documents[d][i + 1] : -1);
        positions.push_back(static_cast<std::int32_t>(i));
      }
    }
    const auto rows = static_cast<std::int32_t>(tokens.size());
    begins.insert(begins.end(), 2, rows);
    lengths.insert(lengths.end(), 2, 0);
    microbatch_ = {.sequences = 1,
                   .seq_length = rows,
                   .tokens = upload(tokens, "tokens"),
                   .labels = upload(labels, "labels"),
                   .positions = upload(positions, "positions"),
                   .documents = {{.begin = upload(begins, "begins"), .length = upload(lengths, "lengths")}, rows, 0},
                   .parameters = parameters_,
                   .sums = sums_};
  }

  TensorList forward(const Microbatch& mb, std::vector<Stash>& stashes) {
    TensorList hidden, outputs;
    for (std::size_t s = 0; s < gpt_.segments.size(); ++s) {
      hidden = outputs;
      outputs = gpt_.segments[s].segment->forward(ctx_, mb, outputs, stashes[s]);
    }
    return hidden;
  }

  void split(const std::vector<PackedTokens>& documents, const Tensor& rows, std::vector<PackedValues>& values,
             std::vector<float> PackedValues::*to) {
    const std::vector<float> all = download(stream_, rows);
    auto at = all.begin();
    for (std::size_t d = 0; d < documents.size(); ++d) {
      const auto count = static_cast<std::ptrdiff_t>(documents[d].size()) * rows.size(1);
      std::vector<float>& mine = values[d].*to;
      mine.insert(mine.end(), at, at + count);
      at += count;
    }
  }

  ModelConfig config_;
  MemoryPool pool_;
  Stream stream_;
  Arena arena_{pool_, Arena::Mode::kUnplanned};
  GptModel gpt_ = build_gpt(config_);
  const Context ctx_{.compute = stream_, .arena = arena_};
  Tensor sums_;
  MicrobatchParameters* parameters_ = nullptr;
  Microbatch microbatch_;
  std::vector<float> weight_gradients_;
};

std::vector<PackedTokens> draw_documents(const std::vector<std::size_t>& lengths, std::int64_t vocabulary) {
  std::mt19937_64 random(7);
  std::uniform_int_distribution<std::int32_t> token(0, static_cast<std::int32_t>(vocabulary - 1));
  std::vector<PackedTokens> documents;
  for (const std::size_t length : lengths) {
    documents.emplace_back(length);
    for (std::int32_t& t : documents.back()) t = token(random);
  }
  return documents;
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {  // relative to b
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    size += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(difference / std::max(size, 1e-30));
}

class PackedDocuments : public test::FamilyTest {
 protected:
  // Dropout masks belong to rows of a sample, not to documents.
  ModelConfig config() const {
    ModelConfig config = test::FamilyTest::config();
    config.hidden_dropout = 0;
    return config;
  }
  void SetUp() override {
    test::FamilyTest::SetUp();
    const bool is_library = device() == DeviceType::kCuda && config().params_dtype == DType::kBf16;
    if (is_library && config().kv_channels % 16 != 0) GTEST_SKIP() << "cuDNN packs heads of a multiple of 16";
  }
  // Equal bits on the CPU; on CUDA fp32 within 1e-6 of the norm, bf16 within its rounding.
  void expect_same(const std::vector<float>& got, const std::vector<float>& want) const {
    ASSERT_EQ(got.size(), want.size());
    if (device() == DeviceType::kCpu) {
      EXPECT_EQ(got, want);
      return;
    }
    EXPECT_LT(distance(got, want), config().params_dtype == DType::kFp32 ? 1e-6 : 0.02);
  }
  void expect_same(const PackedValues& got, const PackedValues& want) const {
    expect_same(got.hidden, want.hidden);
    expect_same(got.embedding_gradient, want.embedding_gradient);
  }
  // The document without the others. On CUDA padding keeps the number of rows, as a microbatch of a run does: cuBLAS
  // chooses kernels by it, and other kernels differ by more than 1e-6 in some rows.
  std::vector<PackedTokens> alone_in(const std::vector<PackedTokens>& pack, std::size_t document) const {
    std::vector<PackedTokens> alone{pack[document]};
    for (std::size_t other = 0; device() == DeviceType::kCuda && other < pack.size(); ++other) {
      if (other != document) alone.emplace_back(pack[other].size());
    }
    return alone;
  }
  double sum_tolerance() const { return config().params_dtype == DType::kFp32 ? 1e-5 : 0.03; }
};
INSTANTIATE_TEST_SUITE_P(Families, PackedDocuments, testing::ValuesIn(test::family_cases()), test::name_of_family_case);

TEST_P(PackedDocuments, HaveTheValuesThatTheyHaveAlone) {
  PackedModel model(config(), device());
  const auto limit = static_cast<std::size_t>(config().seq_length);
  const std::vector<PackedTokens> pack = draw_documents({limit, 3, limit / 2 + 1, 1, 7}, config().vocab_size);
  const std::vector<PackedValues> packed = model.run(pack);
  for (std::size_t d = 0; d < pack.size(); ++d) {
    SCOPED_TRACE("document " + std::to_string(d));
    expect_same(packed[d], model.run(alone_in(pack, d), 0)[0]);
    const std::vector<float> weights_alone = model.weight_gradients();
    static_cast<void>(model.run(pack, d));
    if (pack[d].size() > 1) {
      EXPECT_LT(distance(model.weight_gradients(), weights_alone), sum_tolerance());
    }
    for (std::size_t row : {std::size_t{0}, pack[d].size() / 2}) {
      const float loss = model.loss(pack, d, row);
      EXPECT_EQ(loss == 0, row + 1 >= pack[d].size());
      expect_same({loss}, {model.loss(alone_in(pack, d), 0, row)});
    }
  }
}

TEST_P(PackedDocuments, AreIndependentOfTheirNeighborsAndOfTheOrder) {
  PackedModel model(config(), device());
  std::vector<PackedTokens> pack = draw_documents({5, 9, 4, 6}, config().vocab_size);
  const std::vector<PackedValues> before = model.run(pack);
  const std::vector<float> gradients = model.weight_gradients();
  std::vector<PackedTokens> turned = pack;
  std::ranges::rotate(turned, turned.begin() + 1);
  const std::vector<PackedValues> other_order = model.run(turned);
  for (std::size_t d = 0; d < pack.size(); ++d)
    expect_same(other_order[(d + pack.size() - 1) % pack.size()], before[d]);
  EXPECT_LT(distance(model.weight_gradients(), gradients), sum_tolerance());
  for (std::int32_t& token : pack[1]) token = static_cast<std::int32_t>((token + 1) % config().vocab_size);
  const std::vector<PackedValues> after = model.run(pack);
  for (const std::size_t d : {0, 2, 3}) {
    EXPECT_EQ(after[d].hidden, before[d].hidden);  // on any device
    if (device() == DeviceType::kCpu) {
      EXPECT_EQ(after[d].embedding_gradient, before[d].embedding_gradient);
    }
  }
  EXPECT_NE(after[1].hidden, before[1].hidden);
}

}  // namespace
}  // namespace megalith
