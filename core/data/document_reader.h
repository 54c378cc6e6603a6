// Reader of the documents in a user's files.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"

namespace megalith {

struct DocumentOptions {
  std::string json_key = "text";                  // key of the text in a JSON line
  std::vector<std::string> document_start;        // text: a line that begins with one of these starts a document
  std::optional<std::string> document_separator;  // text: a line equal to it ends a document and is dropped
};

// Count of skipped invalid JSON lines, over all files that share this object.
class BadLines {
 public:
  explicit BadLines(std::int64_t most = 0) : most_(most) {}

  void add(const Error& error);  // throws `error` once `most` lines were skipped
  std::int64_t skipped() const { return skipped_; }
  const std::string& first() const { return first_; }  // error of the first skipped line

 private:
  std::int64_t most_;
  std::int64_t skipped_ = 0;
  std::string first_;
};

// Fails with kFormat for a compressed file or a table, by its first bytes or its name; kFileIo as below. Reads nothing
// from a pipe.
void check_document_file(const std::string& path);

// Returns whether the name is that of JSON lines, one document per line.
bool holds_json_lines(const std::string& path);

// Calls `visit` with each document of a file, in order. Names in .jsonl or .json are JSON lines, from a file or a pipe:
// each line is an object with a string under json_key. Empty lines and empty strings are skipped. Other files are
// regular text files: one document, or several by the options, of at most 2 GiB each. Blank documents are skipped.
// Errors: kFileIo for unreadable files; kFormat for files that check_document_file rejects. Invalid lines, lines above
// 64 MiB or 32 levels, and texts that `visit` rejects by kFormat are kFormat with FILE:LINE, counted by `bad` if given.
void for_each_document(const std::string& path, const DocumentOptions& options,
                       const std::function<void(std::string_view)>& visit, BadLines* bad = nullptr);

}  // namespace megalith
