// Documents of one file, from JSON lines or text, compressed or not.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/data/document_chunk.h"

namespace megalith {

class DocumentSource {
 public:
  virtual ~DocumentSource() = default;
  // Adds the next document to `chunk`, or nothing for a blank one. Returns false at the end of the file.
  virtual bool add_next(DocumentChunk& chunk) = 0;
  virtual std::uint64_t bytes_read() const = 0;  // of the file as it is stored
};

// Opens a file and checks its first bytes; see check_document_file. `options` must outlive the source.
std::unique_ptr<DocumentSource> open_documents(const std::string& path, const DocumentOptions& options);

// Fails with kFormat for the name or first bytes of an archive or a table.
void check_is_text(const std::string& path, std::string_view beginning);

}  // namespace megalith
