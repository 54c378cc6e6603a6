#include "core/data/pack_record.h"

#include <fmt/format.h>

#include <limits>

#include "core/data/data_record.h"

namespace megalith {

std::string to_text(const PackRecord& record) {
  return fmt::format("seq_length {}\npad_multiple {}\npacks {}\ndocuments {}\ntokens {}\ntrained {}\n",
                     record.seq_length, record.pad_multiple, record.packs, record.documents, record.tokens,
                     record.trained);
}

PackRecord parse_pack_record(std::string_view text, const std::string& subject) {
  RecordLines lines(text, subject);
  PackRecord record;
  record.seq_length = lines.take_count("seq_length");
  record.pad_multiple = lines.take_count("pad_multiple");
  record.packs = lines.take_count("packs");
  record.documents = lines.take_count("documents");
  record.tokens = lines.take_count("tokens");
  record.trained = lines.take_count("trained");
  lines.end();
  if (record.seq_length < 1 || record.seq_length > std::numeric_limits<std::int32_t>::max()) {
    lines.refuse("seq_length 1 to 2147483647", std::to_string(record.seq_length));
  }
  if (record.pad_multiple < 1 || record.seq_length % record.pad_multiple != 0) {
    lines.refuse(fmt::format("a pad_multiple that divides {}", record.seq_length), std::to_string(record.pad_multiple));
  }
  if (record.packs > record.documents || record.documents > record.tokens || record.trained > record.tokens) {
    lines.refuse("packs <= documents <= tokens and trained <= tokens", "other numbers");
  }
  return record;
}

std::optional<PackRecord> read_pack_record(const std::string& prefix) {
  const std::string path = pack_record_path(prefix);
  const std::optional<std::string> text = read_record(path);
  return text ? std::optional(parse_pack_record(*text, path)) : std::nullopt;
}

std::string mask_prefix(const std::string& prefix) { return prefix + "_mask"; }

}  // namespace megalith
