#include "core/data/pack_dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "core/base/counted.h"
#include "core/base/error.h"
#include "core/data/data_record.h"
#include "core/data/numpy_shuffle.h"
#include "core/data/packing.h"

namespace megalith {

namespace {

constexpr std::int64_t kMaxPackSamples = std::numeric_limits<std::uint32_t>::max();

[[noreturn]] void refuse_mismatch(const std::string& place, const std::string& expected, const std::string& got) {
  refuse_format(place, expected, got, "the files are damaged or not from one dataset: run prepare --sft again");
}

PackRecord record_of(const std::string& prefix) {
  const std::optional<PackRecord> record = read_pack_record(prefix);
  if (record) return *record;
  refuse_format(pack_record_path(prefix), "the record of packs of conversations", "no such file",
                "prepare the data with --sft, and again if that was interrupted");
}

std::shared_ptr<const IndexedDataset> open_dataset(const std::string& prefix) {
  return std::make_shared<const IndexedDataset>(IndexedDataset::open(prefix));
}

void check_count(const std::string& path, const char* what, std::int64_t expected, std::int64_t got) {
  if (expected == got) return;
  refuse_mismatch(path, fmt::format("{} {}, as the index has", expected, what), std::to_string(got));
}

// The mask must have the sequences and documents of the tokens.
void check_twin(const IndexedDataset& tokens, const IndexedDataset& mask) {
  const std::string path = mask.prefix() + ".idx";
  if (mask.token_type() != TokenType::kU8) {
    refuse_mismatch(path + ": token type", to_string(TokenType::kU8), to_string(mask.token_type()));
  }
  const auto check = [&](const std::string& place, std::int64_t expected, std::int64_t got) {
    if (expected == got) return;
    refuse_mismatch(path + ": " + place, fmt::format("{}, as {}.idx has", expected, tokens.prefix()),
                    std::to_string(got));
  };
  check("sequences", tokens.num_sequences(), mask.num_sequences());
  check("documents", tokens.num_documents(), mask.num_documents());
  for (std::int64_t s = 0; s < tokens.num_sequences(); ++s) {
    if (tokens.sequence_length(s) != mask.sequence_length(s))
      check(fmt::format("length of sequence {}", s), tokens.sequence_length(s), mask.sequence_length(s));
  }
  for (std::int64_t d = 0; d < tokens.num_documents(); ++d) {
    if (tokens.document_begin(d) != mask.document_begin(d))
      check(fmt::format("document index {}", d), tokens.document_begin(d), mask.document_begin(d));
  }
}

}  // namespace

PackDataset::PackDataset(const std::string& prefix, const PackDatasetConfig& config)
    : record_(record_of(prefix)),
      tokens_(open_dataset(prefix)),
      mask_(open_dataset(mask_prefix(prefix))),
      seq_length_(config.seq_length),
      vocab_size_(config.vocab_size) {
  require(seq_length_ >= 1 && seq_length_ < std::numeric_limits<std::int32_t>::max() && config.num_samples >= 0 &&
              vocab_size_ >= 1,
          "PackDataset: bad configuration");
  check_files();
  check_length();
  build_order(config);
}

void PackDataset::check_files() {
  const std::string path = pack_record_path(tokens_->prefix());
  check_count(path, "packs", tokens_->num_documents(), record_.packs);
  check_count(path, "documents", tokens_->num_sequences(), record_.documents);
  check_count(path, "tokens", tokens_->num_tokens(), record_.tokens);
  check_twin(*tokens_, *mask_);
  for (std::int64_t p = 0; p < tokens_->num_documents(); ++p) {
    const std::int64_t begin = tokens_->document_begin(p), end = tokens_->document_begin(p + 1);
    std::int64_t rows = 0;
    for (std::int64_t s = begin; s < end && rows <= record_.seq_length; ++s) {
      const std::int64_t length = tokens_->sequence_length(s);
      if (length == 0) {
        refuse_mismatch(fmt::format("{}.idx: length of sequence {}", tokens_->prefix(), s), "at least 1 token", "0");
      }
      rows += padded_rows(length, record_.pad_multiple);
    }
    if (begin == end || rows > record_.seq_length) {
      refuse_mismatch(fmt::format("{}.idx: pack {}", tokens_->prefix(), p),
                      fmt::format("1 to {} rows, as {} says", record_.seq_length, path),
                      begin == end ? "none" : fmt::format("{} or more", rows));
    }
    max_documents_ = std::max(max_documents_, end - begin + 1);
  }
}

void PackDataset::check_length() const {
  const std::string& prefix = tokens_->prefix();
  if (seq_length_ < record_.seq_length) {
    refuse_usage("--seq-length",
                 {.expected = fmt::format("at least {}, the rows of the packs of {}", record_.seq_length, prefix),
                  .got = std::to_string(seq_length_),
                  .remedy = "raise it, or prepare the data with this --seq-length"});
  }
}

void PackDataset::build_order(const PackDatasetConfig& config) {
  const SequenceRange packs = config.packs.value_or(SequenceRange{.begin = 0, .end = tokens_->num_documents()});
  require(0 <= packs.begin && packs.begin <= packs.end && packs.end <= tokens_->num_documents(),
          "PackDataset: bad range");
  if (packs.begin == packs.end) {
    refuse_usage("--split", {.expected = fmt::format("a share of at least one of the {} of {}",
                                                     counted(record_.packs, "pack"), tokens_->prefix()),
                             .got = "none",
                             .remedy = "give it a larger share, or prepare more conversations"});
  }
  const std::int64_t samples = config.num_samples > 0 ? config.num_samples : packs.end - packs.begin;
  if (samples > kMaxPackSamples || packs.end > kMaxPackSamples) {
    refuse_usage("--train-iters or --train-samples", {.expected = "fewer than 2^32 samples and packs",
                                                      .got = counted(samples, "sample"),
                                                      .remedy = "lower the number of samples"});
  }
  NumpyRandomState random(config.seed);
  std::vector<std::uint32_t> epoch(static_cast<std::size_t>(packs.end - packs.begin));
  order_.reserve(static_cast<std::size_t>(samples));
  while (std::cmp_less(order_.size(), samples)) {
    std::iota(epoch.begin(), epoch.end(), static_cast<std::uint32_t>(packs.begin));
    random.shuffle(std::span(epoch));
    const std::size_t taken = std::min(epoch.size(), static_cast<std::size_t>(samples) - order_.size());
    order_.insert(order_.end(), epoch.begin(), epoch.begin() + static_cast<std::ptrdiff_t>(taken));
  }
}

void PackDataset::check_unchanged() const {
  tokens_->check_unchanged();
  mask_->check_unchanged();
}

std::int64_t PackDataset::pack_of(std::int64_t k) const {
  require(k >= 0 && k < size(), "PackDataset: no such sample");
  return order_[static_cast<std::size_t>(k)];
}

std::int64_t PackDataset::squares(std::int64_t k) const {
  const std::int64_t pack = pack_of(k);
  std::int64_t sum = 0;
  for (std::int64_t s = tokens_->document_begin(pack); s < tokens_->document_begin(pack + 1); ++s) {
    const std::int64_t length = tokens_->sequence_length(s);
    sum += length * length;
  }
  return sum;
}

void PackDataset::sample(std::int64_t k, std::span<std::int32_t> tokens, SampleMarks* marks) const {
  require(marks != nullptr, "PackDataset::sample: packs need marks");
  require(std::cmp_equal(tokens.size(), seq_length_ + 1),
          "PackDataset::sample: tokens must have seq_length + 1 elements");
  const std::int64_t pack = pack_of(k);
  try {
    read_pack(pack, tokens, *marks);
  } catch (const Error&) {
    check_unchanged();  // a changed file explains the error
    throw;
  }
  check_unchanged();  // after the read
}

void PackDataset::read_pack(std::int64_t pack, std::span<std::int32_t> tokens, SampleMarks& marks) const {
  std::ranges::fill(tokens, 0);
  marks.trained.assign(static_cast<std::size_t>(seq_length_), 0);
  marks.documents.clear();
  std::int64_t row = 0;
  for (std::int64_t s = tokens_->document_begin(pack); s < tokens_->document_begin(pack + 1); ++s) {
    const std::int32_t length = tokens_->sequence_length(s);
    const std::int64_t rows = padded_rows(length, record_.pad_multiple);
    const auto at = static_cast<std::size_t>(row), count = static_cast<std::size_t>(length);
    read_document(s, tokens.subspan(at, count), std::span(marks.trained).subspan(at, count - 1));
    marks.documents.push_back({.rows = static_cast<std::int32_t>(rows), .tokens = length});
    row += rows;
  }
  if (row < seq_length_) marks.documents.push_back({.rows = static_cast<std::int32_t>(seq_length_ - row)});
}

// `trained` has a row for each token but the last.
void PackDataset::read_document(std::int64_t sequence, std::span<std::int32_t> tokens,
                                std::span<std::uint8_t> trained) const {
  tokens_->read(sequence, 0, tokens);
  const auto bad = std::ranges::find_if(tokens, [&](std::int32_t id) { return id < 0 || id >= vocab_size_; });
  if (bad != tokens.end()) {
    refuse_format(fmt::format("{}.bin: sequence {}, token {}", tokens_->prefix(), sequence, bad - tokens.begin()),
                  fmt::format("a token id below the vocabulary size {}", vocab_size_), std::to_string(*bad),
                  "the data was prepared with another tokenizer, or is damaged");
  }
  thread_local std::vector<std::int32_t> mask;
  mask.resize(tokens.size());
  mask_->read(sequence, 0, mask);
  for (std::size_t i = 0; i < mask.size(); ++i) {
    if (mask[i] > 1) {
      refuse_mismatch(fmt::format("{}.bin: sequence {}, token {}", mask_->prefix(), sequence, i), "0 or 1",
                      std::to_string(mask[i]));
    }
    if (i > 0) trained[i - 1] = static_cast<std::uint8_t>(mask[i]);
  }
}

}  // namespace megalith
