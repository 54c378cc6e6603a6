// A file that appears under its name only when it is complete: written as PATH.tmp-HEX, locked and under a name that
// nobody can foresee, synced, then renamed. What killed programs left of the same PATH goes when the next one begins.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/files/file.h"

namespace megalith {

// What has a name; a symbolic link itself.
struct NameInfo {
  EntryType type;
  std::string kind;  // for messages: "a directory", ...
  bool is_own;       // of the user who runs the program
};
std::optional<NameInfo> look_at_name(const std::string& path);  // none: there is nothing

// Every failure is an Error kFileIo with the system's reason. Without commit() nothing is left behind. Only a regular
// file is replaced: a device, link, pipe or directory under the name is an error, at the start and at commit().
class OutputFile {
 public:
  // `scope` names the fault sites of its operations (fault.h); a literal. The observer sees them under the temporary
  // file's path.
  OutputFile(std::string path, const char* scope, const FileObserver* observer = nullptr);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  const std::string& path() const { return path_; }
  void write(std::span<const std::byte> bytes);  // appends, buffered
  void write(std::string_view text);
  void sync();    // all bytes so far are on the disk
  void commit();  // sync, rename to path(), sync the directory

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

// Removes `path` durably; it need not exist. Anything but a regular file is an Error kFileIo and stays.
void remove_file(const std::string& path, const FileObserver* observer = nullptr);

// Error kUsage where both are one file, by name or by link: what is written to `output` would take the other's place.
struct PathOfFlag {
  std::string flag, path;  // an empty path is none
};
void require_other_file(const PathOfFlag& output, const PathOfFlag& other);

}  // namespace megalith
