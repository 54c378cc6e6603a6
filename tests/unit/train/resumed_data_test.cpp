// Data of a resumed run: the samples after those of the first run, in its order while enough remain, with any ranks and
// batch.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <numeric>
#include <utility>

#include "core/data/indexed_dataset.h"
#include "tests/support/error_of.h"
#include "tests/support/matchers.h"
#include "tests/thread_ranks/thread_communicator.h"
#include "tests/unit/train/training_support.h"

namespace megalith::test {
namespace {

using Tokens = std::vector<std::int32_t>;

constexpr std::int64_t kLength = 16;
constexpr std::int64_t kDocument = 40;  // tokens

// No token comes twice.
void write_data(const std::string& prefix, std::int32_t first, int documents) {
  IndexedDatasetWriter writer(prefix, TokenType::kU16);
  for (int document = 0; document < documents; ++document) {
    Tokens tokens(kDocument);
    std::iota(tokens.begin(), tokens.end(), first);
    first += kDocument;
    writer.add_document(tokens);
  }
  writer.commit();
}

struct Part {
  int ranks;
  std::string batch;  // over all ranks, in micro batches of 1; 0: their number
  std::int64_t samples = batch == "0" ? ranks : std::stoll(batch);
};

struct Resume {
  std::string name;
  Part before, after;
  bool one_epoch;  // has enough samples for all orders
};

class ResumedData : public testing::TestWithParam<Resume> {
 protected:
  static constexpr std::int64_t kSteps = 12, kBefore = 6;

  ResumedData() {
    const int share = GetParam().one_epoch ? 3 : 1;
    write_data(folder_ / "a", 0, 3 * share);
    write_data(folder_ / "b", 500, 7 * share);
  }
  // Adds the samples of all its steps to read_, by their number, and returns its log.
  std::string run(const Part& part, const Words& more) {
    testing::internal::CaptureStderr();
    const auto record = [this](Trainer& trainer, int) {
      trainer.rank().runner.hooks(0).add(HookPoint::kPreForward, [this, &trainer](const HookContext& hook) {
        const StepInput& input = trainer.samples().next();
        const auto at = static_cast<std::size_t>(hook.microbatch);
        const auto tokens = input.tokens.subspan(at * (kLength + 1), kLength + 1);
        const std::lock_guard lock(mutex_);
        read_[input.first_samples[at]].emplace_back(tokens.begin(), tokens.end());
      });
    };
    train({.flags = data_ + Words{"--micro-batch-size", "1", "--global-batch-size", part.batch} + more,
           .ranks = part.ranks,
           .prepare = record});
    return testing::internal::GetCapturedStderr();
  }
  std::vector<Tokens> order_for(std::int64_t num_samples) const {
    const Datasets datasets = build_datasets({.data_path = {"0.3", folder_ / "a", "0.7", folder_ / "b"},
                                              .split = "1,0,0",
                                              .seed = 11,
                                              .seq_length = kLength,
                                              .vocab_size = 2000,
                                              .num_samples = {.train = num_samples}});
    std::vector<Tokens> samples(static_cast<std::size_t>(num_samples), Tokens(kLength + 1));
    for (std::size_t k = 0; k < samples.size(); ++k) datasets.train.sample(static_cast<std::int64_t>(k), samples[k]);
    return samples;
  }

  const TestFolder folder_;
  const Words data_ = {"--mock-data=false", "--data-path", "0.3",           folder_ / "a",         "0.7",
                       folder_ / "b",       "--split",     "1,0,0",         "--tokenizer-type",    "null",
                       "--vocab-size",      "2000",        "--train-iters", std::to_string(kSteps)};
  const Words saving_ = {"--save", folder_ / "c", "--load", folder_ / "c"};
  std::mutex mutex_;
  std::map<std::int64_t, std::vector<Tokens>> read_;
};

TEST_P(ResumedData, ReadsOnWithoutRepeats) {
  const auto& [name, before, after, one_epoch] = GetParam();
  const std::int64_t built = kSteps * before.samples, consumed = kBefore * before.samples;
  const std::int64_t end = consumed + (kSteps - kBefore) * after.samples, order = std::max(built, end);
  std::vector<Tokens> first = order_for(built), rest = order_for(order);
  const std::int64_t shared = std::min(built, order);
  const bool keeps = std::equal(first.begin(), first.begin() + shared, rest.begin());

  run(before, saving_ + Words{"--exit-interval", std::to_string(kBefore)});
  const std::string log = run(after, saving_);

  std::vector<Tokens> expected(first.begin(), first.begin() + consumed);
  expected.insert(expected.end(), rest.begin() + consumed, rest.begin() + end);
  std::vector<Tokens> read;
  for (const auto& [sample, times] : read_) {
    EXPECT_EQ(sample, std::ssize(read));
    EXPECT_EQ(times.size(), 1u) << "sample " << sample;
    read.push_back(times[0]);
  }
  EXPECT_EQ(read, expected);
  std::map<std::int32_t, int> inputs;
  for (const Tokens& sample : read)
    for (std::int64_t t = 0; t < kLength; ++t) ++inputs[sample[static_cast<std::size_t>(t)]];
  const int most = std::ranges::max_element(inputs, {}, [](const auto& of) { return of.second; })->second;
  if (one_epoch) {
    EXPECT_EQ(most, 1);
  }
  if (keeps) {
    EXPECT_LE(most, 3);
    EXPECT_THAT(log, Not(HasSubstr("change their order")));
  } else {
    EXPECT_FALSE(one_epoch);
    EXPECT_THAT(log, HasSubstr("warning: training data change their order after sample " + std::to_string(consumed) +
                               ": it was built for " + std::to_string(built) + " samples, and the run now ends after " +
                               std::to_string(end) + ", which needs other epochs. All epochs are shuffled again, as "));
  }
  EXPECT_THAT(read_bytes(folder_ / "c/step_0000012/state.json"),
              HasSubstr("\"data_order_samples\": " + std::to_string(order)));
}

std::vector<Resume> resumes() {
  std::vector<Resume> all;
  for (const bool one_epoch : {true, false}) {
    const std::string epochs = one_epoch ? "OneEpoch" : "ThreeEpochs";
    all.push_back({"FourRanksToOne" + epochs, {4, "0"}, {1, "0"}, one_epoch});
    all.push_back({"OneRankToFour" + epochs, {1, "0"}, {4, "0"}, one_epoch});
    all.push_back({"SmallerBatch" + epochs, {2, "4"}, {2, "2"}, one_epoch});
    all.push_back({"LargerBatch" + epochs, {1, "2"}, {1, "4"}, one_epoch});
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Of, ResumedData, testing::ValuesIn(resumes()), [](const auto& of) { return of.param.name; });

// Sizes of data sets follow from the length of the run, so that only other data than these can end early.
TEST(StepSamples, TrainingNeverBeginsAgainAndEvaluationDoes) {
  const Options options = parse_flags(App::kTrain, tiny_flags()).options;
  const Datasets data = build_datasets(
      {.seed = 11, .seq_length = kLength, .vocab_size = 257, .mock = true, .num_samples = {.train = 20, .valid = 20}});
  ThreadWorld(1).run([&](Communicator& world) {
    const RunConfig config = run_config(options, 1);  // a batch of 8
    const Mesh mesh = Mesh::create(world, config.mesh);
    StepSamples samples(options, config, mesh, data);
    RunProgress before{.samples = 12};
    samples.read_next(before);
    const Tokens last(samples.next().tokens.end() - (kLength + 1), samples.next().tokens.end());
    Tokens expected(kLength + 1);
    data.train.sample(19, expected);
    EXPECT_EQ(last, expected);
    before = {.steps = 4, .samples = 13};
    EXPECT_THAT(error_of(ExitCode::kUsage, [&] { samples.read_next(before); }),
                HasSubstr("--data-path: expected 21 training samples for step 5, got 20"));
    EXPECT_THAT(error_of(ExitCode::kUsage, [&] { samples.again({.steps = 4, .samples = 13}); }),
                HasSubstr("21 training samples"));

    testing::internal::CaptureStderr();
    samples.evaluation({data.valid}, 12, 1);
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
    testing::internal::CaptureStderr();
    const StepInput input = samples.evaluation({data.valid}, 13, 1);
    const Tokens again(input.tokens.end() - (kLength + 1), input.tokens.end());
    data.valid.sample(0, expected);
    EXPECT_EQ(again, expected);
    samples.evaluation({data.valid}, 20, 1);
    EXPECT_THAT(testing::internal::GetCapturedStderr(),
                testing::EndsWith("evaluations have read all 20 validation samples and restart with the first\n"));
  });
}

TEST(RunData, OrderOfEarlierCheckpointsIsThatOfTheirFlags) {
  TrainState state;
  state.config = {{"train-iters", "12"}, {"global-batch-size", "4"}};
  EXPECT_EQ(data_order_of(state), 0);  // imported weights
  state.step = 6;
  EXPECT_EQ(data_order_of(state), 48);
  state.data_order_samples = 30;
  EXPECT_EQ(data_order_of(state), 30);
  state.data_order_samples = 0;
  state.config["train-iters"] = "1000000000000";
  state.config["global-batch-size"] = "1000000000000";
  EXPECT_EQ(data_order_of(state), 0);
  state.config.clear();
  EXPECT_EQ(data_order_of(state), 0);
}

}  // namespace
}  // namespace megalith::test
