// Read-only memory map of a full file. Ranks of one node share its pages.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "core/base/files/file.h"

namespace megalith {

// Installs a handler of SIGBUS, which is raised if a mapped file shrinks or its disk fails.
// The handler prints one line with the file's path and ends the process with exit code 3.
void end_on_lost_mappings();

class MappedFile {
 public:
  // Maps a readable regular file. Any other `path` is an Error kFileIo with the system's reason.
  static MappedFile open(const std::string& path);

  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return {memory_.get(), memory_ ? memory_.get_deleter().bytes : 0}; }
  const FileStamp& stamp() const { return stamp_; }  // when opened
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
