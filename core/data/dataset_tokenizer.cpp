#include "core/data/dataset_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/file.h"
#include "core/base/output_file.h"
#include "core/base/parse_number.h"
#include "core/base/take_part.h"
#include "core/data/indexed_dataset.h"

namespace megalith {

namespace {

constexpr std::uint64_t kMaxBytes = 1024;

[[noreturn]] void refuse(const std::string& subject, const std::string& expected, const std::string& got) {
  refuse_format(subject, expected, got, "prepare the data again, or remove the file if another program made the data");
}

// The rest of the next line of `text`, which begins with `key` and a blank.
std::string_view take_line(std::string_view& text, std::string_view key, const std::string& subject) {
  const bool ends = text.find('\n') != std::string_view::npos;
  std::string_view line = take_part(text, '\n');
  const bool fits = ends && line.size() > key.size() && line.starts_with(key) && line[key.size()] == ' ';
  if (!fits) refuse(subject, fmt::format("a line '{} ...'", key), "another");
  line.remove_prefix(key.size() + 1);
  if (!std::ranges::all_of(line, [](char c) { return c > ' ' && c <= '~'; })) {
    refuse(subject, fmt::format("printable ASCII after '{}'", key), "other characters");
  }
  return line;
}

std::int64_t take_count(std::string_view& text, std::string_view key, const std::string& subject) {
  const std::string_view line = take_line(text, key, subject);
  const std::optional<std::int64_t> count = parse_number<std::int64_t>(line);
  if (!count || *count < 0) refuse(subject, fmt::format("a number after '{}'", key), std::string(line));
  return *count;
}

}  // namespace

std::string dataset_tokenizer_path(const std::string& prefix) { return prefix + ".tokenizer"; }

void write_dataset_tokenizer(const std::string& prefix, const DatasetTokenizer& record) {
  OutputFile file(dataset_tokenizer_path(prefix), "prepare.output");
  file.write(fmt::format("tokenizer {}\ndocuments {}\ntokens {}\n", record.identity, record.documents, record.tokens));
  file.commit();
}

DatasetTokenizer parse_dataset_tokenizer(std::string_view text, const std::string& subject) {
  DatasetTokenizer record;
  record.identity = take_line(text, "tokenizer", subject);
  if (record.identity.empty()) refuse(subject, "an identity after 'tokenizer'", "none");
  record.documents = take_count(text, "documents", subject);
  record.tokens = take_count(text, "tokens", subject);
  if (!text.empty()) refuse(subject, "three lines", "more");
  return record;
}

std::optional<std::string> recorded_tokenizer(const IndexedDataset& dataset) {
  const std::string path = dataset_tokenizer_path(dataset.prefix());
  const FaultScope scope("data.tokens");
  const std::optional<PathInfo> info = look_at(path);
  if (!info) return std::nullopt;
  if (info->type != EntryType::kFile) refuse(path, "a regular file", "something else");
  DatasetTokenizer record = parse_dataset_tokenizer(read_whole_file(path, kMaxBytes), path);
  if (record.documents != dataset.num_documents() || record.tokens != dataset.num_tokens()) {
    refuse(path,
           fmt::format("{} documents and {} tokens, as {}.idx has", dataset.num_documents(), dataset.num_tokens(),
                       dataset.prefix()),
           fmt::format("{} and {}", record.documents, record.tokens));
  }
  return record.identity;
}

}  // namespace megalith
