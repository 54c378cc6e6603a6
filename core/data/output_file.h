// A file that appears under its name only when it is complete: written as PATH.tmp-PID, synced, then renamed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace megalith {

// Every failure is an Error kFileIo with the system's reason. Without commit() nothing is left behind.
class OutputFile {
 public:
  explicit OutputFile(std::string path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  const std::string& path() const { return path_; }
  void write(std::span<const std::byte> bytes);  // appends, buffered
  void sync();                                   // all bytes so far are on the disk
  void commit();                                 // sync, rename to path(), sync the directory

 private:
  void flush();
  [[noreturn]] void fail_call(const char* call) const;

  std::string path_;
  std::string temporary_path_;
  int descriptor_ = -1;
  std::vector<std::byte> buffer_;
};

// Removes `path` durably; it need not exist.
void remove_file(const std::string& path);

}  // namespace megalith
