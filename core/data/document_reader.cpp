#include "core/data/document_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/base/files/fault.h"
#include "core/base/files/file.h"
#include "core/data/document_source.h"

namespace megalith {

namespace {

constexpr std::size_t kChunkBytes = std::size_t{32} << 10;

bool is_stream(const std::string& path) {  // it can be read only once
  const std::optional<PathInfo> info = look_at(path);
  return info && info->type == EntryType::kOther;
}

}  // namespace

void BadLines::add(const Error& error) {
  if (skipped_ < most_) {
    if (skipped_++ == 0) first_ = error.what();
    return;
  }
  if (most_ == 0) throw error;
  throw Error(error.code(),
              fmt::format("{}; --max-bad-lines {} were skipped before, the first: {}", error.what(), most_, first_));
}

bool holds_json_lines(const std::string& path) {
  std::string_view name = path;
  for (const std::string_view ending : {".gz", ".zst", ".zstd"}) {
    if (!name.ends_with(ending)) continue;
    name.remove_suffix(ending.size());
    break;
  }
  return name.ends_with(".jsonl") || name.ends_with(".json");
}

void check_document_file(const std::string& path) {
  const FaultScope scope("prepare.input");
  const DocumentOptions options;
  if (holds_json_lines(path) && is_stream(path)) {
    check_is_text(path, {});
  } else {
    open_documents(path, options);
  }
}

DocumentReader::DocumentReader(std::vector<std::string> inputs, DocumentOptions options)
    : inputs_(std::move(inputs)), options_(std::move(options)) {
  for (const std::string& input : inputs_) {
    const std::optional<PathInfo> info = look_at(input);
    if (info && info->type == EntryType::kFile) {
      all_bytes_ += info->size;
    } else {
      all_bytes_ = 0;
      break;
    }
  }
}

DocumentReader::~DocumentReader() = default;

std::uint64_t DocumentReader::bytes_read() const { return bytes_before_ + (source_ ? source_->bytes_read() : 0); }

std::vector<DocumentChunk> DocumentReader::read(std::size_t bytes) {
  const FaultScope scope("prepare.input");
  std::vector<DocumentChunk> chunks;
  std::size_t read = 0;
  while (read < bytes && !failed_ && (source_ || next_ < inputs_.size())) {
    DocumentChunk chunk = read_chunk();
    for (const DocumentChunk::Document& document : chunk.documents) read += document.bytes;
    failed_ = chunk.error.has_value();
    if (chunk.ends_in_long_line()) read = bytes;
    if (!chunk.documents.empty() || failed_) chunks.push_back(std::move(chunk));
  }
  return chunks;
}

// Reads documents of the current or the next file, which is closed at its end.
DocumentChunk DocumentReader::read_chunk() {
  DocumentChunk chunk;
  try {
    if (!source_) source_ = open_documents(inputs_[next_++], options_);
    chunk.path = inputs_[next_ - 1];
    chunk.holds_json = holds_json_lines(chunk.path);
    std::size_t bytes = 0;
    while (bytes < kChunkBytes && !chunk.ends_in_long_line()) {
      const std::size_t count = chunk.documents.size();
      if (!source_->add_next(chunk)) {
        bytes_before_ += source_->bytes_read();
        source_.reset();
        break;
      }
      if (chunk.documents.size() > count) bytes += chunk.documents.back().bytes;
    }
  } catch (const Error& error) {
    chunk.error = error;
  }
  return chunk;
}

void for_each_document(const std::string& path, const DocumentOptions& options,
                       const std::function<void(std::string_view)>& visit, BadLines* bad) {
  constexpr std::size_t kBytes = std::size_t{1} << 20;
  DocumentReader reader({path}, options);
  BadLines none;
  BadLines& lines = bad == nullptr ? none : *bad;
  for (std::vector<DocumentChunk> chunks = reader.read(kBytes); !chunks.empty(); chunks = reader.read(kBytes)) {
    for (const DocumentChunk& chunk : chunks) {
      visit_documents(chunk, options, visit, [&](const Error& error) { lines.add(error); });
      if (chunk.error) throw *chunk.error;
    }
  }
}

}  // namespace megalith
