#include "core/data/document_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "core/base/files/line_reader.h"
#include "core/base/take_part.h"
#include "core/data/document_reader.h"
#include "core/data/unpacked_file.h"

namespace megalith {

namespace {

constexpr std::size_t kMaxLineBytes = std::size_t{64} << 20;
constexpr std::size_t kMaxDocumentBytes = std::size_t{2} << 30;  // 2^31 byte tokens exceed a sequence
constexpr std::string_view kWhiteSpace = " \t\r\n\f\v";

bool is_blank(std::string_view text) { return text.find_first_not_of(kWhiteSpace) == std::string_view::npos; }

// File format that may hold text but that prepare does not read.
struct Container {
  std::string_view name;
  std::string_view ending;  // of file names
  std::string_view magic;   // the first bytes; ? is any; empty: by the name alone
  std::string_view remedy;  // {} is the file
};

constexpr std::string_view kTable =
    "write its text as JSON lines first, as pandas.read_parquet or pyarrow and to_json(OUT, orient='records', "
    "lines=True) do";
constexpr std::string_view kTar = "unpack it first: tar -xf {}";
constexpr Container kContainers[] = {
    {"xz data", ".xz", "\xfd\x37zXZ", "unpack it first: xz -dk {}"},
    {"bzip2 data", ".bz2", "BZh?1AY&SY", "unpack it first: bzip2 -dk {}"},
    {"LZ4 data", ".lz4", "\x04\x22\x4d\x18", "unpack it first: lz4 -dk {}"},
    {"a tar archive", ".tar", "", kTar},
    {"a tar archive", ".tgz", "", kTar},
    {"a tar archive", ".tar.gz", "", kTar},
    {"a tar archive", ".tar.zst", "", kTar},
    {"a ZIP archive", ".zip", "PK\x03\x04", "unpack it first: unzip {}"},
    {"a Parquet table", ".parquet", "PAR1", kTable},
    {"an Arrow table", ".arrow", "ARROW1", kTable},
};

constexpr std::size_t kMagicBytes = 16;  // at least as many as the longest magic

// Rejects data that was packed twice, in addition to archives and tables.
void check_unpacked(const UnpackedFile& file, std::string_view beginning) {
  check_is_text(file.path(), beginning);
  if (compression_of(beginning) == Compression::kNone) return;
  refuse_format(file.path(), "text or JSON lines that are packed once", "data that is packed twice",
                "unpack it once first");
}

[[noreturn]] void refuse_long(const std::string& path, const std::string& bytes, std::uint64_t at) {
  refuse_format(path, fmt::format("documents of at most {} bytes", kMaxDocumentBytes),
                fmt::format("one of {} bytes at byte {}", bytes, at),
                "cut the text into documents: --document-start or --document-separator");
}

LineReader lines_of(UnpackedFile& file, std::size_t line_bytes) {
  return {file.path(), [&file](std::span<std::byte> out) { return file.read(out); }, {.line_bytes = line_bytes}};
}

class JsonLines : public DocumentSource {
 public:
  explicit JsonLines(const std::string& path) : file_(path), lines_(lines_of(file_, kMaxLineBytes)) {
    check_unpacked(file_, lines_.beginning(kMagicBytes));
  }

  bool add_next(DocumentChunk& chunk) override {
    const std::optional<LineReader::Line> line = lines_.next();
    if (!line) return false;
    if (!line->is_too_long && is_blank(line->text)) return true;
    const std::string_view text = line->is_too_long ? std::string_view() : line->text;
    chunk.documents.push_back({.begin = chunk.text.size(),
                               .bytes = text.size(),
                               .number = lines_.number(),
                               .is_too_long = line->is_too_long});
    chunk.text += text;
    return true;
  }
  std::uint64_t bytes_read() const override { return file_.bytes_read(); }

 private:
  UnpackedFile file_;
  LineReader lines_;
};

enum class Border { kNone, kStart, kSeparator };

// `line` is without the newline.
Border border_at(std::string_view line, const DocumentOptions& options) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  if (options.document_separator && line == *options.document_separator) return Border::kSeparator;
  const auto begins = [&](const std::string& start) { return line.starts_with(start); };
  return std::ranges::any_of(options.document_start, begins) ? Border::kStart : Border::kNone;
}

bool is_split(const DocumentOptions& options) { return options.document_separator || !options.document_start.empty(); }

// Text in a mapping, which the chunks share.
class MappedText : public DocumentSource {
 public:
  MappedText(std::shared_ptr<const MappedFile> file, const DocumentOptions& options)
      : file_(std::move(file)), options_(options), next_line_(is_split(options) ? 0 : file_->text().size()) {}

  bool add_next(DocumentChunk& chunk) override {
    if (has_ended_) return false;
    std::string_view rest = file_->text().substr(next_line_);
    while (!rest.empty()) {
      const std::size_t line = next_line_;
      const Border border = border_at(take_part(rest, '\n'), options_);
      next_line_ = file_->text().size() - rest.size();
      if (border == Border::kNone) continue;
      add(std::exchange(begin_, border == Border::kStart ? line : next_line_), line, chunk);
      return true;
    }
    add(begin_, file_->text().size(), chunk);
    has_ended_ = true;
    return true;
  }
  std::uint64_t bytes_read() const override { return next_line_; }

 private:
  void add(std::size_t begin, std::size_t end, DocumentChunk& chunk) {
    if (end - begin > kMaxDocumentBytes) refuse_long(file_->path(), fmt::format("{}", end - begin), begin);
    if (is_blank(file_->text().substr(begin, end - begin))) return;
    chunk.file = file_;
    chunk.documents.push_back({.begin = begin, .bytes = end - begin, .number = ++documents_});
  }

  std::shared_ptr<const MappedFile> file_;
  const DocumentOptions& options_;
  std::size_t next_line_;
  std::size_t begin_ = 0;  // of the document
  std::int64_t documents_ = 0;
  bool has_ended_ = false;
};

// Compressed text, of which memory holds a document.
class UnpackedText : public DocumentSource {
 public:
  UnpackedText(const std::string& path, const DocumentOptions& options)
      : file_(path), lines_(lines_of(file_, kMaxDocumentBytes)), options_(options) {
    check_unpacked(file_, lines_.beginning(kMagicBytes));
  }

  bool add_next(DocumentChunk& chunk) override {
    if (has_ended_) return false;
    while (const std::optional<LineReader::Line> line = lines_.next()) {
      if (line->is_too_long) refuse_long(file_.path(), "more", begin_);
      const Border border = border_at(line->text, options_);
      if (border != Border::kNone) add(chunk);
      if (border != Border::kSeparator) document_ += line->text;
      if (border != Border::kSeparator && lines_.has_end()) document_ += '\n';
      position_ += line->text.size() + 1;
      if (border == Border::kSeparator) begin_ = position_;
      if (document_.size() > kMaxDocumentBytes) refuse_long(file_.path(), "more", begin_);
      if (border != Border::kNone) return true;
    }
    add(chunk);
    has_ended_ = true;
    return true;
  }
  std::uint64_t bytes_read() const override { return file_.bytes_read(); }

 private:
  void add(DocumentChunk& chunk) {
    begin_ = position_;
    if (!is_blank(document_)) {
      chunk.documents.push_back({.begin = chunk.text.size(), .bytes = document_.size(), .number = ++documents_});
      chunk.text += document_;
    }
    document_.clear();
  }

  UnpackedFile file_;
  LineReader lines_;
  const DocumentOptions& options_;
  std::string document_;
  std::uint64_t position_ = 0, begin_ = 0;  // of the next line and of the document, in the unpacked text
  std::int64_t documents_ = 0;
  bool has_ended_ = false;
};

}  // namespace

void check_is_text(const std::string& path, std::string_view beginning) {
  for (const Container& container : kContainers) {
    const std::string_view begin = beginning.substr(0, container.magic.size());
    const auto is_same = [](char wanted, char got) { return wanted == '?' || wanted == got; };
    const bool holds = !container.magic.empty() && std::ranges::equal(container.magic, begin, is_same);
    if (!holds && !path.ends_with(container.ending)) continue;
    refuse_format(path, "text or JSON lines", fmt::format("{}{}", holds ? "" : "the name of ", container.name),
                  fmt::format(fmt::runtime(container.remedy), path));
  }
}

std::unique_ptr<DocumentSource> open_documents(const std::string& path, const DocumentOptions& options) {
  if (holds_json_lines(path)) return std::make_unique<JsonLines>(path);
  auto file = std::make_shared<const MappedFile>(MappedFile::open(path));
  const std::string_view beginning = file->text().substr(0, kMagicBytes);
  if (compression_of(beginning) != Compression::kNone) return std::make_unique<UnpackedText>(path, options);
  check_is_text(path, beginning);
  return std::make_unique<MappedText>(std::move(file), options);
}

}  // namespace megalith
