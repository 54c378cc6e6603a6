// A whole file as read-only memory. Ranks of one node share its pages.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "core/base/files/file.h"

namespace megalith {

// A page of a mapping that cannot be read, since the file became shorter or its disk failed, raises SIGBUS: from here
// on it ends the process with one line that names the file, and exit code 3.
void end_on_lost_mappings();

class MappedFile {
 public:
  // `path` must name a regular file that can be read, else Error kFileIo with the system's reason.
  static MappedFile open(const std::string& path);

  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return {memory_.get(), memory_ ? memory_.get_deleter().bytes : 0}; }
  const FileStamp& stamp() const { return stamp_; }  // as it was when it was opened
  std::string_view text() const { return {reinterpret_cast<const char*>(memory_.get()), bytes().size()}; }

 private:
  struct Unmap {
    std::size_t bytes;
    void operator()(const std::byte* begin) const;
  };
  MappedFile() = default;

  std::string path_;
  FileStamp stamp_;
  std::unique_ptr<const std::byte, Unmap> memory_;  // null for an empty file, which cannot be mapped
};

}  // namespace megalith
