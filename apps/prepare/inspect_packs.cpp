#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "apps/prepare/prepare.h"
#include "core/base/counted.h"
#include "core/base/text/text.h"
#include "core/data/indexed_dataset.h"
#include "core/data/pack_dataset.h"
#include "core/data/packing.h"

namespace megalith {

namespace {

constexpr std::int64_t kShownConversations = 8;           // of a pack
constexpr std::int64_t kShownTokensOfConversation = 200;  // of a conversation

using Ids = std::vector<std::int32_t>;

Ids read_sequence(const IndexedDataset& data, std::int64_t sequence) {
  Ids values(static_cast<std::size_t>(data.sequence_length(sequence)));
  data.read(sequence, 0, values);
  return values;
}

}  // namespace

void show_parts(std::span<const std::int32_t> ids, std::span<const std::int32_t> marks, const Tokenizer& tokenizer) {
  const std::size_t shown = std::min(ids.size(), static_cast<std::size_t>(kShownTokensOfConversation));
  for (std::size_t begin = 0, end = 0; begin < shown; begin = end) {
    while (end < shown && marks[end] == marks[begin]) ++end;
    const bool is_cut = end == shown && shown < ids.size();
    fmt::print("      {:10}{}{}\n", marks[begin] != 0 ? "trained" : "untrained",
               escaped(tokenizer.decode(ids.subspan(begin, end - begin))), is_cut ? " ..." : "");
  }
}

namespace {

void show_pack(const IndexedDataset& data, const IndexedDataset& mask, const PackRecord& record, std::int64_t pack,
               const Tokenizer& tokenizer) {
  const std::int64_t begin = data.document_begin(pack), end = data.document_begin(pack + 1);
  std::int64_t rows = 0;
  for (std::int64_t s = begin; s < end; ++s) rows += padded_rows(data.sequence_length(s), record.pad_multiple);
  fmt::print("  pack {}: {}, {} of {} rows\n", pack, counted(end - begin, "conversation"), rows, record.seq_length);
  for (std::int64_t s = begin; s < std::min(end, begin + kShownConversations); ++s) {
    const Ids ids = read_sequence(data, s), marks = read_sequence(mask, s);
    fmt::print("    conversation {}: {}, {} trained\n", s, counted(ids.size(), "token"), std::ranges::count(marks, 1));
    show_parts(ids, marks, tokenizer);
  }
  if (end - begin > kShownConversations) {
    fmt::print("    and {} more\n", counted(end - begin - kShownConversations, "conversation"));
  }
}

}  // namespace

void show_packs(const std::string& prefix, const Tokenizer& tokenizer, std::int64_t packs) {
  constexpr std::int64_t kAnyVocabulary = std::numeric_limits<std::int32_t>::max();
  const PackRecord record = read_pack_record(prefix).value_or(PackRecord());
  const PackDataset checked(prefix, {.seq_length = record.seq_length, .vocab_size = kAnyVocabulary});
  const IndexedDataset data = IndexedDataset::open(prefix), mask = IndexedDataset::open(mask_prefix(prefix));
  fmt::print("{}: {} of {} rows, {}, {} of type {}, {} trained\n", prefix, counted(record.packs, "pack"),
             record.seq_length, counted(record.documents, "conversation"), counted(record.tokens, "token"),
             to_string(data.token_type()), record.trained);
  fmt::print("  at most {} per pack, each padded to a multiple of {}\n",
             counted(checked.max_documents() - 1, "conversation"), counted(record.pad_multiple, "row"));
  for (std::int64_t pack = 0; pack < std::min(packs, record.packs); ++pack)
    show_pack(data, mask, record, pack, tokenizer);
}

}  // namespace megalith
