#include "core/data/document_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/files/fault.h"
#include "core/base/files/line_reader.h"
#include "core/base/files/mapped_file.h"
#include "core/base/take_part.h"

namespace megalith {

namespace {

constexpr std::size_t kMaxLineBytes = std::size_t{64} << 20;
constexpr std::size_t kMaxDocumentBytes = std::size_t{2} << 30;  // 2^31 byte tokens exceed a sequence
constexpr int kMaxDepth = 32;
constexpr std::string_view kWhiteSpace = " \t\r\n\f\v";

bool is_blank(std::string_view text) { return text.find_first_not_of(kWhiteSpace) == std::string_view::npos; }

// SAX handler that reads one member of the outermost object, so that no tree is built. The names of the functions are
// those of nlohmann::json.
class TextMember {
 public:
  explicit TextMember(const std::string& key) : key_(key) {}

  std::optional<std::string> text;
  std::string problem;

  bool null() { return other("null"); }
  bool boolean(bool) { return other("a boolean"); }
  bool number_integer(std::int64_t) { return other("a number"); }
  bool number_unsigned(std::uint64_t) { return other("a number"); }
  bool number_float(double, const std::string&) { return other("a number"); }
  bool binary(nlohmann::json::binary_t&) { return other("binary"); }
  bool string(std::string& value) {
    if (depth_ == 0) return other("a string");
    if (at_key_) text = std::move(value);
    at_key_ = false;
    return true;
  }
  bool key(std::string& name) {
    at_key_ = depth_ == 1 && name == key_;
    return true;
  }
  bool start_object(std::size_t) { return (depth_ == 0 || other("an object")) && enter(); }
  bool start_array(std::size_t) { return other("an array") && enter(); }
  bool end_object() { return leave(); }
  bool end_array() { return leave(); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception& error) {
    const std::string_view what = error.what();
    const std::size_t detail = what.rfind(" - ");
    problem = fmt::format("byte {}: {}", position, detail == std::string_view::npos ? what : what.substr(detail + 3));
    return false;
  }

 private:
  // Handles a value that is neither the outermost object nor a string; invalid only as the document or the text.
  bool other(std::string_view what) {
    if (depth_ == 0 || at_key_) problem = depth_ == 0 ? std::string(what) : fmt::format("{} under '{}'", what, key_);
    return problem.empty();
  }
  bool enter() {
    if (++depth_ > kMaxDepth) problem = "deeper nesting";
    return problem.empty();
  }
  bool leave() {
    --depth_;
    return true;
  }

  const std::string& key_;
  int depth_ = 0;
  bool at_key_ = false;
};

std::string text_of(const LineReader::Line& line, const std::string& place, const DocumentOptions& options) {
  TextMember member(options.json_key);
  if (line.is_too_long) {
    member.problem = "a longer line";
  } else if (nlohmann::json::sax_parse(line.text, &member) && !member.text) {
    member.problem = fmt::format("an object without '{}'", options.json_key);
  }
  if (!member.problem.empty()) {
    refuse_format(
        place,
        fmt::format("a JSON object of at most 64 MiB and {} levels with a string under '{}'", kMaxDepth,
                    options.json_key),
        member.problem,
        "correct or remove the line, name its text with --json-keys, or skip such lines with --max-bad-lines");
  }
  return std::move(*member.text);
}

void visit_json_lines(LineReader& lines, const DocumentOptions& options,
                      const std::function<void(std::string_view)>& visit, BadLines& bad) {
  while (const std::optional<LineReader::Line> line = lines.next()) {
    if (is_blank(line->text) && !line->is_too_long) continue;
    const std::string place = fmt::format("{}:{}", lines.path(), lines.number());
    std::string text;
    try {
      text = text_of(*line, place, options);
    } catch (const Error& error) {
      bad.add(error);
    }
    if (text.empty()) continue;
    try {
      visit(text);
    } catch (const Error& error) {
      if (error.code() != ExitCode::kFormat) throw;
      bad.add(Error(error.code(), fmt::format("{}: {}", place, error.what())));
    }
  }
}

// File format that may hold text but that prepare does not read.
struct Container {
  std::string_view name;
  std::string_view ending;  // of file names
  std::string_view magic;   // the first bytes; ? is any
  std::string_view remedy;  // {} is the file
};

constexpr std::string_view kTable =
    "write its text as JSON lines first, as pandas.read_parquet or pyarrow and to_json(OUT, orient='records', "
    "lines=True) do";
constexpr Container kContainers[] = {
    {"gzip data", ".gz", "\x1f\x8b\x08", "unpack it first: gzip -dk {}"},
    {"gzip data", ".tgz", "\x1f\x8b\x08", "unpack it first: gzip -dk {}"},
    {"Zstandard data", ".zst", "\x28\xb5\x2f\xfd", "unpack it first: zstd -dk {}"},
    {"Zstandard data", ".zstd", "\x28\xb5\x2f\xfd", "unpack it first: zstd -dk {}"},
    {"xz data", ".xz", "\xfd\x37zXZ", "unpack it first: xz -dk {}"},
    {"bzip2 data", ".bz2", "BZh?1AY&SY", "unpack it first: bzip2 -dk {}"},
    {"LZ4 data", ".lz4", "\x04\x22\x4d\x18", "unpack it first: lz4 -dk {}"},
    {"a ZIP archive", ".zip", "PK\x03\x04", "unpack it first: unzip {}"},
    {"a Parquet table", ".parquet", "PAR1", kTable},
    {"an Arrow table", ".arrow", "ARROW1", kTable},
};

constexpr std::size_t kMagicBytes = 16;  // at least as many as the longest magic

// Rejects a container by its name or its first bytes. An empty file has no first bytes.
void check_is_text(const std::string& path, std::string_view beginning) {
  for (const Container& container : kContainers) {
    const std::string_view begin = beginning.substr(0, container.magic.size());
    const auto is_same = [](char wanted, char got) { return wanted == '?' || wanted == got; };
    const bool holds = std::ranges::equal(container.magic, begin, is_same);
    if (!holds && !path.ends_with(container.ending)) continue;
    refuse_format(path, "text or JSON lines", fmt::format("{}{}", holds ? "" : "the name of ", container.name),
                  fmt::format(fmt::runtime(container.remedy), path));
  }
}

MappedFile open_text(const std::string& path) {
  MappedFile file = MappedFile::open(path);
  check_is_text(path, file.text().substr(0, kMagicBytes));
  return file;
}

LineReader open_json_lines(const std::string& path) {
  LineReader lines(path, {.line_bytes = kMaxLineBytes});
  check_is_text(path, lines.beginning(kMagicBytes));
  return lines;
}

void visit_text(const MappedFile& file, const DocumentOptions& options,
                const std::function<void(std::string_view)>& visit) {
  const std::string_view text = file.text();
  const auto visit_part = [&](std::size_t begin, std::size_t end) {
    const std::string_view part = text.substr(begin, end - begin);
    if (part.size() > kMaxDocumentBytes) {
      refuse_format(file.path(), fmt::format("documents of at most {} bytes", kMaxDocumentBytes),
                    fmt::format("one of {} bytes at byte {}", part.size(), begin),
                    "cut the text into documents: --document-start or --document-separator");
    }
    if (!is_blank(part)) visit(part);
  };
  std::size_t begin = 0;
  if (options.document_separator || !options.document_start.empty()) {
    std::string_view rest = text;
    while (!rest.empty()) {
      const std::size_t line_begin = text.size() - rest.size();
      std::string_view line = take_part(rest, '\n');
      if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
      if (options.document_separator && line == *options.document_separator) {
        visit_part(begin, line_begin);
        begin = text.size() - rest.size();
      } else if (std::ranges::any_of(options.document_start,
                                     [&](const std::string& start) { return line.starts_with(start); })) {
        visit_part(begin, line_begin);
        begin = line_begin;
      }
    }
  }
  visit_part(begin, text.size());
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

void check_document_file(const std::string& path) {
  const FaultScope scope("prepare.input");
  const std::optional<PathInfo> info = look_at(path);
  const bool is_stream = info && info->type == EntryType::kOther;  // can be read only once
  if (!holds_json_lines(path)) {
    open_text(path);
  } else if (is_stream) {
    check_is_text(path, {});
  } else {
    open_json_lines(path);
  }
}

bool holds_json_lines(const std::string& path) { return path.ends_with(".jsonl") || path.ends_with(".json"); }

void for_each_document(const std::string& path, const DocumentOptions& options,
                       const std::function<void(std::string_view)>& visit, BadLines* bad) {
  const FaultScope scope("prepare.input");
  BadLines none;
  if (holds_json_lines(path)) {
    LineReader lines = open_json_lines(path);
    visit_json_lines(lines, options, visit, bad == nullptr ? none : *bad);
  } else {
    visit_text(open_text(path), options, visit);
  }
}

}  // namespace megalith
