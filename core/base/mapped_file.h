// A whole file as read-only memory. Ranks of one node share its pages.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "core/base/file.h"

namespace megalith {

// A page of a mapping that cannot be read, since the file became shorter or its disk failed, raises SIGBUS: from here
// on it ends the process with one line that names the file, and exit code 3.
void end_on_lost_mappings();

class MappedFile {
 public:
  // `path` must name a regular file that can be read, else Error kFileIo with the system's reason.
  static MappedFile open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return bytes_; }
  const FileStamp& stamp() const { return stamp_; }  // as it was when it was opened
  std::string_view text() const { return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()}; }

 private:
  MappedFile() = default;
  std::string path_;
  FileStamp stamp_;
  std::span<const std::byte> bytes_;  // of the mapping; empty for an empty file, which cannot be mapped
};

}  // namespace megalith
