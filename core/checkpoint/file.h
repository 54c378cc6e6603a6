// The only place where checkpoints touch the file system. Everything goes through a directory's descriptor and single
// names, and symbolic links below the directory that the user named are never followed. Each failure is one Error
// (kFileIo) that names operation, path, bytes and the system's reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/handle.h"

namespace megalith {

// Called before each operation on the file system; may throw to make the operation fail.
struct FileOperation {
  std::string_view name;  // open, create, read, write, sync, rename, remove, mkdir, list, space, lock
  std::string_view path;
  std::uint64_t bytes = 0;
};
using FileObserver = std::function<void(const FileOperation&)>;

void close_descriptor(int fd);
using Descriptor = Handle<int, close_descriptor, -1>;

class File {
 public:
  const std::string& path() const { return path_; }
  std::uint64_t size() const { return size_; }  // as it was when opened, or bytes written so far

  // Exactly out.size() bytes from `offset`; an earlier end of file is an error.
  void read_at(std::uint64_t offset, std::span<std::byte> out) const;
  void write(std::span<const std::byte> bytes);  // appends
  void write(std::string_view text);
  void sync();
  void close();  // reports what a destructor would have to swallow

 private:
  friend class Directory;
  Descriptor fd_;
  std::string path_;
  std::uint64_t size_ = 0;
  const FileObserver* observer_ = nullptr;
};

enum class EntryType { kFile, kDirectory, kOther };  // kOther includes symbolic links
struct DirectoryEntry {
  std::string name;
  EntryType type;
};

class Directory {
 public:
  // `path` is the user's own, links in it are followed.
  static Directory open(const std::string& path, const FileObserver* observer = nullptr);
  static Directory create(const std::string& path, const FileObserver* observer = nullptr);  // with its parents
  static bool exists(const std::string& path);

  const std::string& path() const { return path_; }

  // Names below are single path components; anything else is an error.
  Directory open_directory(const std::string& name) const;
  bool make_directory(const std::string& name) const;  // false when the name is taken
  File open_file(const std::string& name) const;       // to read; a regular file or an error
  File create_file(const std::string& name) const;     // to write; the name must be free
  std::string read_text(const std::string& name, std::uint64_t max_bytes) const;
  std::vector<DirectoryEntry> list() const;  // sorted by name, without . and ..
  bool contains(const std::string& name) const;
  void rename(const std::string& from, const std::string& to) const;  // replaces a file
  void exchange(const std::string& a, const std::string& b) const;    // at once, where the file system can
  void remove_file(const std::string& name) const;
  void remove_tree(const std::string& name) const;  // links are removed, not followed
  void sync() const;                                // makes names durable
  std::uint64_t free_bytes() const;
  bool try_lock() const;  // until this object dies; false when another process holds it

 private:
  void observe(std::string_view operation, const std::string& path, std::uint64_t bytes = 0) const;
  std::string path_of(const std::string& name) const;

  Descriptor fd_;
  std::string path_;
  const FileObserver* observer_ = nullptr;
};

}  // namespace megalith
