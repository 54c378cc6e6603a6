// Generation: logits from a KV cache, filled by a prefill and then token by token. They equal those of a forward over
// the full prefix, and both equal the fp64 reference.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "core/device/copy.h"
#include "tests/support/download.h"
#include "tests/unit/model/family_cases.h"
#include "tests/unit/model/model_run.h"

namespace megalith {
namespace {

using reference::GptArithmetic;

constexpr std::int64_t kSequences = 2;

// A model in generate mode; every call may have another length, so the arena is not planned.
class Generation {
 public:
  Generation(const ModelConfig& config, DeviceType device)
      : config_(config), pool_(device), stream_(device, "compute") {
    gpt_.parameters->allocate(pool_, config.params_dtype);
    weights_ = test::draw_weights(stream_, *gpt_.parameters, 1);
    const Shape shape{kSequences, config.seq_length, config.num_query_groups, config.kv_channels};
    for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
      cache_.keys.push_back(persistent(config.params_dtype, shape));
      cache_.values.push_back(persistent(config.params_dtype, shape));
    }
    start_ = persistent(DType::kInt32, {1});
    cache_.start = start_.as<std::int32_t>();
    std::vector<SegmentRunner::Entry> entries;
    for (const NamedSegment& named : gpt_.segments)
      entries.push_back(
          {.name = named.name, .segment = named.segment.get(), .module = named.module, .unit = named.layer_unit});
    runner_ = std::make_unique<SegmentRunner>(ctx_, std::move(entries));
    std::mt19937_64 random(4);
    std::uniform_int_distribution<std::int32_t> token(0, static_cast<std::int32_t>(config.vocab_size - 1));
    tokens_.resize(static_cast<std::size_t>(kSequences * config.seq_length));
    for (std::int32_t& t : tokens_) t = token(random);
  }

  // Logits [B, V] that follow tokens [start, start + count) of each sequence.
  std::vector<float> cached(std::int64_t start, std::int64_t count) {
    const auto position = static_cast<std::int32_t>(start);
    copy_from_host(stream_, start_.data, &position, sizeof(position));
    return forward(start, count, &cache_);
  }
  std::vector<float> uncached(std::int64_t count) { return forward(0, count, nullptr); }

  // Reference result: for each position the logits of all sequences.
  std::vector<std::vector<double>> reference_logits(GptArithmetic arithmetic) const {
    const reference::GptConfig shape = test::reference_config(config_);
    const reference::GptBatch batch{.sequences = static_cast<std::size_t>(kSequences),
                                    .length = static_cast<std::size_t>(config_.seq_length),
                                    .tokens = {tokens_.begin(), tokens_.end()},
                                    .labels = {tokens_.begin(), tokens_.end()},
                                    .dropout = {}};
    const std::vector<double> all = run_gpt(arithmetic, shape, weights_, batch).logits;
    std::vector<std::vector<double>> logits(batch.length);
    for (std::size_t row = 0; row < batch.tokens.size(); ++row) {
      std::vector<double>& at = logits[row % batch.length];
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>(row * shape.vocab);
      at.insert(at.end(), begin, begin + static_cast<std::ptrdiff_t>(shape.vocab));
    }
    return logits;
  }

 private:
  Tensor persistent(DType dtype, const Shape& shape) {
    const std::size_t bytes = static_cast<std::size_t>(shape.numel()) * size_of(dtype);
    return Tensor(pool_.allocate(bytes, MemoryCategory::kOther, "test"), dtype, shape);
  }

  std::vector<float> forward(std::int64_t start, std::int64_t count, const KvCache* cache) {
    std::vector<std::int32_t> tokens;
    for (std::int64_t row = 0; row < kSequences * count; ++row) {
      const std::int64_t position = std::min(start + row % count, config_.seq_length - 1);  // a test may go too far
      tokens.push_back(tokens_[static_cast<std::size_t>(row / count * config_.seq_length + position)]);
    }
    const Microbatch mb{.mode = Mode::kGenerate,
                        .sequences = kSequences,
                        .seq_length = count,
                        .tokens = ctx_.empty({kSequences * count}, DType::kInt32, "tokens"),
                        .cache = cache};
    copy_from_host(stream_, mb.tokens.data, tokens.data(), mb.tokens.bytes());
    runner_->begin(0, mb);
    for (int s = 0; s < runner_->num_segments(); ++s) runner_->run({.kind = ActionKind::kForward, .segment = s});
    const Tensor& padded = runner_->outputs(0)[0];
    const std::vector<float> all = download(stream_, padded);
    arena_.reset();
    std::vector<float> logits;
    for (std::int64_t s = 0; s < kSequences; ++s) {
      const auto first = all.begin() + s * config_.padded_vocab_size;
      logits.insert(logits.end(), first, first + config_.vocab_size);
    }
    return logits;
  }

  ModelConfig config_;
  MemoryPool pool_;
  Stream stream_;
  Arena arena_{pool_, Arena::Mode::kUnplanned};
  GptModel gpt_ = build_gpt(config_);
  KvCache cache_;
  Tensor start_;
  const Context ctx_{.compute = stream_, .arena = arena_};
  std::unique_ptr<SegmentRunner> runner_;
  std::vector<std::int32_t> tokens_;
  reference::GptTensors weights_;
};

class GptGeneration : public test::FamilyTest {};
INSTANTIATE_TEST_SUITE_P(Families, GptGeneration, testing::ValuesIn(test::family_cases()), test::name_of_family_case);

template <class A, class B>
double l2_distance(const A& got, const B& want) {
  double sum = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double difference = static_cast<double>(got[i]) - static_cast<double>(want[i]);
    sum += difference * difference;
  }
  return std::sqrt(sum);
}

TEST_P(GptGeneration, CachedLogitsAreThoseOfTheWholeForward) {
  Generation model(config(), device());
  const bool fp32 = own_arithmetic() == GptArithmetic::kFp32;
  const auto truth = model.reference_logits(GptArithmetic::kFp64);
  const auto own = model.reference_logits(own_arithmetic());
  constexpr std::int64_t kPrefill = 5;
  // cuDNN makes a plan for each length.
  const std::int64_t stride = device() == DeviceType::kCuda && config().seq_length > 100 ? 9 : 1;
  double cached_error = 0, whole_error = 0, own_error = 0;
  for (std::int64_t count = kPrefill; count <= config().seq_length; ++count) {
    const std::vector<float> cached = count == kPrefill ? model.cached(0, kPrefill) : model.cached(count - 1, 1);
    if ((config().seq_length - count) % stride != 0) continue;
    const std::vector<float> whole = model.uncached(count);
    const std::vector<double>& want = truth[static_cast<std::size_t>(count - 1)];
    ASSERT_EQ(cached.size(), want.size());
    cached_error += std::pow(l2_distance(cached, want), 2);
    whole_error += std::pow(l2_distance(whole, want), 2);
    own_error += std::pow(l2_distance(own[static_cast<std::size_t>(count - 1)], want), 2);
    const double size = l2_distance(want, std::vector<double>(want.size(), 0.0));
    if (fp32) {
      EXPECT_LT(l2_distance(cached, whole), 1e-5 * size) << "position " << count - 1;
    }
  }
  EXPECT_GT(own_error, 0);
  EXPECT_LE(std::sqrt(whole_error), 2 * std::sqrt(own_error));
  EXPECT_LE(std::sqrt(cached_error), 2 * std::sqrt(own_error));
}

TEST_P(GptGeneration, ItDoesNotMatterHowThePrefixWasFilled) {
  const std::int64_t last = config().seq_length - 1;
  const Generation model(config(), device());
  const std::vector<double> truth = model.reference_logits(GptArithmetic::kFp64).back();
  const std::vector<double> own = model.reference_logits(own_arithmetic()).back();
  const std::vector<std::vector<std::int64_t>> pieces_of_prefix = {{last}, {1, 6, last - 7}, {3, last - 3}};
  for (const std::vector<std::int64_t>& pieces : pieces_of_prefix) {
    Generation other(config(), device());
    std::int64_t start = 0;
    for (const std::int64_t count : pieces) {
      other.cached(start, count);
      start += count;
    }
    EXPECT_LE(l2_distance(other.cached(last, 1), truth), 2 * l2_distance(own, truth)) << pieces.size() << " pieces";
  }
}

class GptGenerationLimits : public test::OnDevice<DeviceType> {};
INSTANTIATE_TEST_SUITE_P(Backends, GptGenerationLimits, testing::ValuesIn(test::devices()), test::name_of_device_case);

TEST_P(GptGenerationLimits, TheCacheMayNotOverflow) {
  const ModelConfig config = test::family("llama");
  Generation model(config, device());
  model.cached(0, config.seq_length - 1);
  model.cached(config.seq_length - 1, 1);
  EXPECT_THROW(model.cached(config.seq_length - 1, 2), Error);
}

TEST_P(GptGenerationLimits, ACachedTokenSeesTheTokensBeforeIt) {
  const ModelConfig config = test::family("gpt2");
  Generation model(config, device()), empty(config, device());
  model.cached(0, 5);
  EXPECT_NE(model.cached(5, 1), empty.cached(5, 1)) << "the cache was not read";
}

}  // namespace
}  // namespace megalith
