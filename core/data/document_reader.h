// Reader of the documents in a user's files, in chunks that several threads can process.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/data/document_chunk.h"

namespace megalith {

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

// Fails with kFormat for an archive or a table, by its first bytes, also after unpacking, or its name; kFileIo as
// below. Reads nothing from a pipe.
void check_document_file(const std::string& path);

// Returns whether the name is that of JSON lines, one document per line: .jsonl or .json, and then perhaps .gz, .zst or
// .zstd.
bool holds_json_lines(const std::string& path);

// Documents of one file in order; the classes are in document_source.h.
class DocumentSource;

// Reads files in order. JSON lines come from a file or a pipe; empty ones are skipped. Other files are regular text
// files: one document, or several by the options, of at most 2 GiB each. Blank documents are skipped. Contents that are
// gzip or Zstandard data are unpacked, under any name.
class DocumentReader {
 public:
  DocumentReader(std::vector<std::string> inputs, DocumentOptions options);
  ~DocumentReader();
  DocumentReader(const DocumentReader&) = delete;
  DocumentReader& operator=(const DocumentReader&) = delete;

  // Returns chunks of about 32 KiB, and of about `bytes` together; nothing at the end. A line that is too long is the
  // last one: its end, which an endless file lacks, is sought by the next call. The last chunk may have the
  // Error that ends the reading: kFileIo for unreadable files; kFormat for files that check_document_file rejects, for
  // damaged compressed data and for longer documents.
  std::vector<DocumentChunk> read(std::size_t bytes);

  std::uint64_t bytes_read() const;                            // of the files as they are stored
  std::uint64_t bytes_of_files() const { return all_bytes_; }  // 0: unknown, since one is a pipe

 private:
  DocumentChunk read_chunk();

  std::vector<std::string> inputs_;
  DocumentOptions options_;
  std::size_t next_ = 0;
  std::unique_ptr<DocumentSource> source_;
  std::uint64_t bytes_before_ = 0;  // in files read to their end
  std::uint64_t all_bytes_ = 0;
  bool failed_ = false;
};

// Calls `visit` with each document of a file on this thread; see DocumentReader and visit_documents. `bad` counts
// invalid JSON lines; without it the first is an Error.
void for_each_document(const std::string& path, const DocumentOptions& options,
                       const std::function<void(std::string_view)>& visit, BadLines* bad = nullptr);

}  // namespace megalith
