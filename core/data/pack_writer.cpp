#include "core/data/pack_writer.h"

#include "core/base/error.h"
#include "core/data/data_record.h"
#include "core/data/packing.h"

namespace megalith {

namespace {

constexpr const char* kPackScope = "prepare.output";

}  // namespace

PackWriter::PackWriter(const std::string& prefix, const PackWriterConfig& config)
    : prefix_(prefix),
      record_{.seq_length = config.seq_length, .pad_multiple = config.pad_multiple},
      tokens_(prefix, config.token_type, config.tokenizer, config.observer),
      mask_(mask_prefix(prefix), TokenType::kU8, {}, config.observer),
      record_file_(pack_record_path(prefix), kPackScope, config.observer) {
  require(config.seq_length >= 1 && config.pad_multiple >= 1 && config.seq_length % config.pad_multiple == 0,
          "PackWriter: bad configuration");
}

void PackWriter::add_document(std::span<const std::int32_t> tokens, std::span<const std::uint8_t> trained) {
  require(!tokens.empty() && tokens.size() == trained.size(), "PackWriter: a mark per token");
  rows_ += padded_rows(static_cast<std::int64_t>(tokens.size()), record_.pad_multiple);
  require(rows_ <= record_.seq_length, "PackWriter: a pack above seq_length rows");
  marks_.assign(tokens.size(), 0);
  for (std::size_t i = 1; i < tokens.size(); ++i) {
    marks_[i] = trained[i] != 0 ? 1 : 0;
    record_.trained += marks_[i];
  }
  tokens_.add_sequence(tokens);
  mask_.add_sequence(marks_);
  ++record_.documents;
  record_.tokens += static_cast<std::int64_t>(tokens.size());
}

void PackWriter::end_pack() {
  require(rows_ > 0, "PackWriter: an empty pack");
  rows_ = 0;
  ++record_.packs;
  tokens_.end_document();
  mask_.end_document();
}

void PackWriter::commit() {
  require(rows_ == 0, "PackWriter: commit within a pack");
  tokens_.stage();
  mask_.stage();
  record_file_.write(to_text(record_));
  record_file_.sync();
  // The first commit removes the old record ahead of any other change. Each step is durable ahead of the next one.
  tokens_.commit();
  mask_.commit();
  record_file_.commit();
}

}  // namespace megalith
