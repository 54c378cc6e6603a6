#include "core/data/data_record.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/base/files/fault.h"
#include "core/base/files/file.h"
#include "core/base/take_part.h"
#include "core/base/text/parse_number.h"

namespace megalith {

namespace {

constexpr std::uint64_t kMaxRecordBytes = 1024;

}  // namespace

std::string tokenizer_record_path(const std::string& prefix) { return prefix + ".tokenizer"; }

std::string pack_record_path(const std::string& prefix) { return prefix + ".packs"; }

std::optional<std::string> read_record(const std::string& path) {
  const FaultScope scope("data.tokens");
  const std::optional<PathInfo> info = look_at(path);
  if (!info) return std::nullopt;
  if (info->type != EntryType::kFile) RecordLines({}, path).refuse("a regular file", "something else");
  return read_whole_file(path, kMaxRecordBytes);
}

void RecordLines::refuse(const std::string& expected, const std::string& got) const {
  refuse_format(subject_, expected, got, "prepare the data again, or remove the file if another program made the data");
}

std::string_view RecordLines::take(std::string_view key) {
  const bool ends = rest_.find('\n') != std::string_view::npos;
  std::string_view line = take_part(rest_, '\n');
  const bool fits = ends && line.size() > key.size() && line.starts_with(key) && line[key.size()] == ' ';
  if (!fits) refuse(fmt::format("a line '{} ...'", key), "another");
  line.remove_prefix(key.size() + 1);
  if (!std::ranges::all_of(line, [](char c) { return c > ' ' && c <= '~'; })) {
    refuse(fmt::format("printable ASCII after '{}'", key), "other characters");
  }
  return line;
}

std::int64_t RecordLines::take_count(std::string_view key) {
  const std::string_view line = take(key);
  const std::optional<std::int64_t> count = parse_number<std::int64_t>(line);
  if (!count || *count < 0) refuse(fmt::format("a number after '{}'", key), std::string(line));
  return *count;
}

void RecordLines::end() const {
  if (!rest_.empty()) refuse("the end of the record", "more lines");
}

}  // namespace megalith
