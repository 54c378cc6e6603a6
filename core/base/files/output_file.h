// Atomic output file: written as PATH.tmp-HEX (locked, unpredictable name), synced, then renamed to PATH.
// Leftovers of killed programs for the same PATH are removed when the next one opens it.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/files/file.h"

namespace megalith {

// Type and owner of a name; for a symbolic link, of the link itself.
struct NameInfo {
  EntryType type;
  std::string kind;  // for messages: "a directory", ...
  bool is_own;       // owned by the user who runs the program
};
std::optional<NameInfo> look_at_name(const std::string& path);  // none: no such name

// Failures are Errors of kind kFileIo with the system's reason. No file remains without commit().
// A device, link, pipe or directory at `path` is an error, both at the start and at commit().
class OutputFile {
 public:
  // `scope` is the FaultScope of its operations (fault.h) and must be a literal.
  // The observer sees the operations under the temporary file's path.
  OutputFile(std::string path, const char* scope, const FileObserver* observer = nullptr);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  const std::string& path() const { return path_; }
  void write(std::span<const std::byte> bytes);  // appends, buffered
  void write(std::string_view text);
  void sync();    // makes all bytes so far durable
  void commit();  // syncs, renames to path(), syncs the directory

 private:
  bool is_held() const;
  void flush();

  const char* scope_;
  std::string path_;
  std::string temporary_path_;
  const FileObserver* observer_;
  File file_;
  bool committed_ = false;
  std::vector<std::byte> buffer_;
};

// Removes `path` durably if it exists. Anything but a regular file is an Error kFileIo and stays.
void remove_file(const std::string& path, const FileObserver* observer = nullptr);

// Error kUsage if both paths are one file, by name or by link, since `output` would overwrite the other.
struct PathOfFlag {
  std::string flag, path;  // an empty path: none
};
void require_other_file(const PathOfFlag& output, const PathOfFlag& other);

}  // namespace megalith
