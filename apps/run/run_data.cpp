#include "apps/run/run_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <sstream>

#include "apps/config/data_options.h"
#include "apps/config/training_options.h"
#include "core/base/counted.h"
#include "core/base/files/file.h"
#include "core/base/side_by_side.h"
#include "core/base/text/parse_number.h"
#include "core/model/config.h"

namespace megalith {

DataStart data_start(const TrainState& state) {
  return {.at = {.steps = state.step, .samples = state.consumed_samples}, .order_samples = state.data_order_samples};
}

std::int64_t data_order_of(const TrainState& checkpoint) {
  if (checkpoint.data_order_samples > 0 || checkpoint.step == 0) return checkpoint.data_order_samples;
  const auto number = [&](const char* flag) {
    const auto found = checkpoint.config.find(flag);
    return found == checkpoint.config.end() ? 0 : parse_number<std::int64_t>(found->second).value_or(0);
  };
  std::int64_t samples = 0;
  const bool fits = !__builtin_mul_overflow(number("train-iters"), number("global-batch-size"), &samples);
  return fits && samples > 0 && samples <= kMaxSamples ? samples : 0;
}

namespace {

constexpr std::uint64_t kMaxArgsBytes = std::uint64_t{64} << 20;

}  // namespace

std::vector<std::string> data_path_of(const DataOptions& data) {
  if (data.data_args_path.empty()) return data.data_path;
  std::istringstream words(read_whole_file(data.data_args_path, kMaxArgsBytes));
  return {std::istream_iterator<std::string>(words), {}};
}

namespace {

struct SomeSamples {
  double mean_pairs = 0;  // sum of the documents' squared lengths
  std::int64_t max_documents = 0;
};

SomeSamples measure_samples(const Dataset& data, std::int64_t seq_length) {
  constexpr std::int64_t kSamples = 64;
  const std::int64_t count = std::min(kSamples, data.size());
  double sum = 0;
  SomeSamples some;
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(seq_length + 1));
  for (std::int64_t i = 0; i < count; ++i) {
    SampleMarks marks;
    data.sample(i * (data.size() / count), tokens, &marks);
    for (const SampleDocument& document : marks.documents) sum += std::pow(static_cast<double>(document.rows), 2);
    some.max_documents = std::max(some.max_documents, std::ssize(marks.documents));
  }
  some.mean_pairs = count > 0 ? sum / static_cast<double>(count) : 0;
  return some;
}

// Returns the maximum number of documents that EOD tokens end in the first `samples`. Beyond kTokens, samples at even
// distances are read, and the result has a margin. Each rank counts, so the result must not depend on time.
std::int64_t count_documents(const Dataset& data, std::int64_t samples, std::int64_t seq_length) {
  constexpr std::int64_t kTokens = std::int64_t{1} << 27;
  constexpr std::int64_t kThreads = 4;
  const std::int64_t count = std::min(samples, std::max<std::int64_t>(1, kTokens / seq_length));
  std::vector<std::int64_t> maximum(kThreads, 0);
  side_by_side(kThreads, kThreads, [&](std::size_t thread) {
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(seq_length + 1));
    SampleMarks marks;
    for (auto i = static_cast<std::int64_t>(thread); i < count; i += kThreads) {
      data.sample(i * (samples / count), tokens, &marks);
      maximum[thread] = std::max(maximum[thread], std::ssize(marks.documents));
    }
  });
  const std::int64_t most = std::ranges::max(maximum);
  return count == samples ? most : most + most / 4;
}

}  // namespace

void measure_documents(const Options& options, const RunData& data, MarkedSamples& marks) {
  constexpr std::int64_t kMultiple = 8;  // a capacity also serves orders with slightly more
  if (marks.documents == 0) return;
  const Datasets& sets = data.sets;
  const SomeSamples some = measure_samples(sets.train, options.model.seq_length);
  marks.pairs = some.mean_pairs;
  if (options.data.max_documents_per_sample > 0) return;
  std::int64_t most = std::max({sets.train.max_documents(), sets.valid.max_documents(), sets.test.max_documents()});
  if (most > 0 && options.data.masks.ends_at_eod()) {
    for (const Dataset* set : {&sets.train, &sets.valid, &sets.test}) {
      const std::int64_t read = set == &sets.train ? std::min(data.order_samples, set->size()) : set->size();
      most = std::max(most, count_documents(*set, read, options.model.seq_length));
    }
  }
  if (most == 0) most = std::max(marks.documents, 2 * some.max_documents);  // there is no index
  marks.documents = (most + kMultiple - 1) / kMultiple * kMultiple;
}

void build_data(RunData& data, const DataRequest& request) {
  if (data.built_for == request.start) return;
  const Options& options = request.options;
  const TrainingOptions& train = options.train;
  const DataStart& start = request.start;
  const std::int64_t needed = train.skip_train ? 0 : samples_to_train(train, start.at);
  const bool reads_all = train.full_validation && train.evaluates() && !options.data.mock_data;
  const bool tests = train.evaluates() && !options.data.mock_data;
  const std::int64_t valid = reads_all ? kOneEpoch : samples_to_evaluate(train);
  data.order_samples = std::max(needed, start.order_samples);
  DocumentMasks masks = options.data.masks;
  masks.eod = request.tokenizer.eod();
  data.sets = build_datasets(
      {.data_path = data_path_of(options.data),
       .split_paths = {options.data.train_data_path, options.data.valid_data_path, options.data.test_data_path},
       .packs = options.data.sft,
       .split = options.data.split,
       .seed = train.seed,
       .seq_length = options.model.seq_length,
       .vocab_size = request.tokenizer.vocab_size(),
       .tokenizer = request.tokenizer.identity(),
       .masks = masks,
       .mock = options.data.mock_data,
       .num_samples = {.train = needed, .valid = valid, .test = tests ? kOneEpoch : 0},
       .order_samples = start.order_samples});
  data.built_for = start;
  data.notes = data.sets.notes;
  data.warning.clear();
  if (train.skip_train || start.order_samples == 0 || needed == start.order_samples) return;
  if (needed < start.order_samples) {
    data.notes.push_back(fmt::format("training data keep the order that was built for {}; the run ends after {}",
                                     counted(start.order_samples, "sample"), needed));
  } else if (!data.sets.train.keeps_order_of(start.order_samples)) {
    data.warning = fmt::format(
        "training data change their order after sample {}: it was built for {}, and the run now ends after {}, which "
        "needs other epochs. All epochs are shuffled again, as in Megatron-LM, so samples may repeat early; to keep "
        "the order, end the run after {} or fewer",
        start.at.samples, counted(start.order_samples, "sample"), needed, counted(start.order_samples, "sample"));
  }
}

}  // namespace megalith
