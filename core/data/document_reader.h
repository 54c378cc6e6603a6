// Documents out of the files that a user wants to train on.
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
  std::string json_key = "text";                  // where the text of a JSON line is
  std::vector<std::string> document_start;        // text: a line that begins with one of them starts a document
  std::optional<std::string> document_separator;  // text: a line that equals it ends a document and is left out
};

// JSON lines that are no documents and are skipped, of all files that are read with it.
class BadLines {
 public:
  explicit BadLines(std::int64_t most = 0) : most_(most) {}

  void add(const Error& error);  // throws it where `most` lines were skipped before
  std::int64_t skipped() const { return skipped_; }
  const std::string& first() const { return first_; }  // the error of the first of them

 private:
  std::int64_t most_;
  std::int64_t skipped_ = 0;
  std::string first_;
};

// Error kFormat for a file that is packed or holds tables, by its first bytes or its name; kFileIo as below. Of a pipe
// nothing is read.
void check_document_file(const std::string& path);

// By its name: JSON lines, each a document.
bool holds_json_lines(const std::string& path);

// Calls `visit` with each document of a file, in order. A name that ends in .jsonl or .json is read as JSON lines: each
// line an object with a string under json_key; empty lines and empty strings are skipped; it may be a pipe. Any other
// is a regular file of text: one document, or several as the options say, of at most 2 GiB; documents of white space
// alone are skipped. Errors: kFileIo for a file that cannot be read; kFormat with FILE:LINE for a line that is no such
// object, is longer than 64 MiB or nested deeper than 32, and for what check_document_file refuses. A JSON line whose
// text `visit` refuses by kFormat is such a line too, and `bad`, if given, takes both.
void for_each_document(const std::string& path, const DocumentOptions& options,
                       const std::function<void(std::string_view)>& visit, BadLines* bad = nullptr);

}  // namespace megalith
