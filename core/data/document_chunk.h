// Consecutive documents of a user's file, as read and not yet parsed, so that another thread can parse them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/base/files/mapped_file.h"

namespace megalith {

struct DocumentOptions {
  std::string json_key = "text";                  // key of the text in a JSON line
  std::vector<std::string> document_start;        // text: a line that begins with one of these starts a document
  std::optional<std::string> document_separator;  // text: a line equal to it ends a document and is dropped
};

struct DocumentChunk {
  struct Document {
    std::size_t begin, bytes;  // in all()
    std::int64_t number;       // from 1: of the line, or of the document in a text file
    bool is_too_long = false;  // a JSON line; it has no bytes here
  };

  std::string path;
  bool holds_json = false;
  std::shared_ptr<const MappedFile> file;  // has the text; else `text` has it
  std::string text;
  std::vector<Document> documents;
  std::optional<Error> error;  // that ended the reading after these documents

  std::string_view all() const { return file ? file->text() : std::string_view(text); }
  std::string_view text_of(const Document& document) const { return all().substr(document.begin, document.bytes); }
  bool ends_in_long_line() const { return !documents.empty() && documents.back().is_too_long; }
  std::string place_of(const Document& document) const;  // FILE:LINE, or "FILE: document 3"
};

// Calls `visit` with each text, parsed from JSON lines; empty ones are skipped. `bad` accepts an Error kFormat for each
// line that is invalid, above 64 MiB or 32 levels, or whose text `visit` rejects by kFormat. The text of a text file
// that `visit` rejects is an Error kFormat. All have the place.
void visit_documents(const DocumentChunk& chunk, const DocumentOptions& options,
                     const std::function<void(std::string_view)>& visit, const std::function<void(const Error&)>& bad);

}  // namespace megalith
