// Content of PREFIX.packs, the record that makes four files a dataset of packs:
//   PREFIX.bin, PREFIX.idx            tokens: a sequence is a conversation, a document of the index is a pack
//   PREFIX_mask.bin, PREFIX_mask.idx  u8 for each token: 1 if it is trained, as the predicted token
// The record is removed first and written last, so the files of a commit that a crash interrupts are no dataset.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace megalith {

// Each conversation occupies its tokens rounded up to pad_multiple rows; a pack has at most seq_length rows.
struct PackRecord {
  std::int64_t seq_length = 0;    // at least 1
  std::int64_t pad_multiple = 1;  // divides seq_length
  std::int64_t packs = 0;
  std::int64_t documents = 0;  // conversations
  std::int64_t tokens = 0;
  std::int64_t trained = 0;  // tokens with mask 1
  friend bool operator==(const PackRecord&, const PackRecord&) = default;
};

std::string to_text(const PackRecord& record);  // six lines "KEY VALUE" in the order of the fields

// Parses exactly these lines. Error kFormat for any other text; `subject` is the file.
PackRecord parse_pack_record(std::string_view text, const std::string& subject);

// Returns the record of a prefix; none: no such file, so no packs.
std::optional<PackRecord> read_pack_record(const std::string& prefix);

std::string mask_prefix(const std::string& prefix);  // PREFIX_mask

}  // namespace megalith
