#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "apps/config/data_options.h"
#include "apps/config/program_options.h"
#include "apps/flags/complete_options.h"
#include "apps/prepare/prepare.h"
#include "core/base/counted.h"
#include "core/base/text/text.h"
#include "core/base/text/utf8.h"
#include "core/data/dataset.h"
#include "core/data/indexed_dataset.h"
#include "core/data/pack_record.h"

namespace megalith {

namespace {

constexpr std::int64_t kShownTokens = 200;

void show_document(const IndexedDataset& data, const Tokenizer& tokenizer, std::int64_t document) {
  std::vector<std::int32_t> shown;
  std::int64_t tokens = 0;
  std::int32_t last = -1;
  for (std::int64_t s = data.document_begin(document); s < data.document_begin(document + 1); ++s) {
    const std::int64_t length = data.sequence_length(s);
    const auto before = static_cast<std::int64_t>(shown.size());
    const std::int64_t part = std::min(length, kShownTokens - before);
    shown.resize(static_cast<std::size_t>(before + part));
    data.read(s, 0, std::span(shown).subspan(static_cast<std::size_t>(before)));
    if (length > 0) data.read(s, length - 1, std::span(&last, 1));
    tokens += length;
  }
  std::string text = tokenizer.decode(shown);
  if (std::cmp_less(shown.size(), tokens)) text = Utf8Stream().push(text);  // without a cut character
  fmt::print("  document {}: {}{}: {}{}\n", document, counted(tokens, "token"),
             last == tokenizer.eod() ? ", the last is EOD" : "", escaped(text),
             std::cmp_less(shown.size(), tokens) ? " ..." : "");
}

void show_counts(const std::string& prefix, const Tokenizer& tokenizer, std::int64_t documents) {
  const IndexedDataset data = IndexedDataset::open(prefix);
  fmt::print("{}: {}, {}, {} of type {} ({})\n", prefix, counted(data.num_documents(), "document"),
             counted(data.num_sequences(), "sequence"), counted(data.num_tokens(), "token"),
             to_string(data.token_type()), counted(data.num_tokens() * token_bytes(data.token_type()), "byte"));
  if (data.num_sequences() > 0) {
    std::int32_t shortest = std::numeric_limits<std::int32_t>::max();
    std::int32_t longest = 0;
    for (std::int64_t s = 0; s < data.num_sequences(); ++s) {
      shortest = std::min(shortest, data.sequence_length(s));
      longest = std::max(longest, data.sequence_length(s));
    }
    fmt::print("  tokens per sequence: {} to {}, {:.1f} on average\n", shortest, longest,
               static_cast<double>(data.num_tokens()) / static_cast<double>(data.num_sequences()));
  }
  for (std::int64_t document = 0; document < std::min(documents, data.num_documents()); ++document) {
    show_document(data, tokenizer, document);
  }
}

}  // namespace

void inspect(const Options& options) {
  const Tokenizer tokenizer = make_tokenizer(tokenizer_options(options));
  if (options.prepare.samples > 0) return show_samples(options, tokenizer);
  for (const std::string& prefix : prefixes_of(options.data.data_path)) {
    const bool has_packs = read_pack_record(prefix).has_value();
    (has_packs ? show_packs : show_counts)(prefix, tokenizer, options.prepare.documents);
  }
}

}  // namespace megalith
