// Samples of prepare inspect --samples, as training reads them.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "apps/config/data_options.h"
#include "apps/config/program_options.h"
#include "apps/config/training_options.h"
#include "apps/flags/complete_options.h"
#include "apps/prepare/prepare.h"
#include "core/base/counted.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/data/dataset.h"
#include "core/data/pack_record.h"
#include "core/model/config.h"

namespace megalith {

namespace {

using Ids = std::vector<std::int32_t>;

// Samples of the whole run, which determine the number of epochs.
std::int64_t samples_of_run(const Options& options) {
  if (options.is_given("train-iters")) return options.train.train_iters * options.train.global_batch_size;
  return options.is_given("train-samples") ? options.train.train_samples : options.prepare.samples;
}

// Prints the documents of a sample. Token i of the sample is trained if the loss of row i - 1 counts.
void show_documents(std::int64_t k, const Ids& tokens, const SampleMarks& marks, const Tokenizer& tokenizer) {
  const std::size_t size = tokens.size() - 1;
  const auto is_kept = [&](std::size_t row) { return marks.trained.empty() || marks.trained[row] != 0; };
  std::int64_t losses = 0;
  for (std::size_t row = 0; row < size; ++row) losses += is_kept(row) ? 1 : 0;
  const auto documents =
      std::ranges::count_if(marks.documents, [](const SampleDocument& document) { return document.tokens > 0; });
  fmt::print("sample {}: {}, {} trained\n", k, counted(std::max<std::int64_t>(documents, 1), "document"), losses);
  const SampleDocument all{.rows = static_cast<std::int32_t>(size), .tokens = static_cast<std::int32_t>(size)};
  std::size_t begin = 0;
  for (const SampleDocument& document : marks.documents.empty() ? std::vector{all} : marks.documents) {
    const auto rows = static_cast<std::size_t>(document.rows), held = static_cast<std::size_t>(document.tokens);
    fmt::print("  rows {} to {}: {}{}\n", begin, begin + rows - 1, counted(held, "token"),
               held < rows ? fmt::format(", {} of padding", counted(rows - held, "row")) : "");
    const bool has_next = begin + rows == size && held == rows;  // the last label belongs to the document
    Ids ids(tokens.begin() + static_cast<std::ptrdiff_t>(begin),
            tokens.begin() + static_cast<std::ptrdiff_t>(begin + held + (has_next ? 1 : 0)));
    Ids trained(ids.size());
    for (std::size_t i = 0; i < ids.size(); ++i) trained[i] = begin + i > 0 && is_kept(begin + i - 1) ? 1 : 0;
    show_parts(ids, trained, tokenizer);
    begin += rows;
  }
}

}  // namespace

void show_samples(const Options& options, const Tokenizer& tokenizer) {
  const std::int64_t samples = options.prepare.samples, train_samples = samples_of_run(options);
  const std::int64_t seq_length = options.model.seq_length;
  if (samples > train_samples) {
    refuse_usage("--samples", {.expected = fmt::format("at most the {} samples of the run", train_samples),
                               .got = std::to_string(samples),
                               .remedy = "lower it, or raise --train-samples"});
  }
  const std::vector<std::string> prefixes = prefixes_of(options.data.data_path);
  const bool has_packs =
      std::ranges::all_of(prefixes, [](const std::string& prefix) { return read_pack_record(prefix).has_value(); });
  DocumentMasks masks = options.data.masks;
  masks.eod = tokenizer.eod();
  // train checks that the model has all ids.
  const Datasets datasets = build_datasets({.data_path = options.data.data_path,
                                            .packs = has_packs,
                                            .split = options.data.split,
                                            .seed = options.train.seed,
                                            .seq_length = seq_length,
                                            .vocab_size = std::numeric_limits<std::int32_t>::max(),
                                            .masks = masks,
                                            .num_samples = {.train = train_samples}});
  for (const std::string& note : datasets.notes) log_info(note);
  const bool has_marks = has_packs || masks.any();
  Ids tokens(static_cast<std::size_t>(seq_length + 1));
  for (std::int64_t k = 0; k < samples; ++k) {
    SampleMarks marks;
    datasets.train.sample(k, tokens, has_marks ? &marks : nullptr);
    if (has_marks) {
      show_documents(k, tokens, marks, tokenizer);
    } else {
      fmt::print("[{}]\n", fmt::join(tokens, ", "));
    }
  }
}

}  // namespace megalith
