// Access to the file system; only mapped_file and output_file also call it. Failures are Errors of kind kFileIo with
// the operation, path, bytes and reason. Every call can be made to fail (fault.h). An observer sees all operations in a
// directory, so a test can simulate a power loss. A Directory never follows links in it; File::open follows links.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/files/handle.h"

namespace megalith {

// File system operation that an observer sees before it happens. The observer may throw to make the operation fail.
struct FileOperation {
  std::string_view name;  // open, create, read, write, sync, rename, exchange, remove, mkdir, list, space, lock
  std::string_view path;
  std::uint64_t bytes = 0;
  std::string_view target = {};          // rename and exchange: the other path
  std::span<const std::byte> data = {};  // write: the appended bytes
};
using FileObserver = std::function<void(const FileOperation&)>;

// Identity and version of a file. The stamp changes if the file is written to or replaced.
struct FileStamp {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::uint64_t size = 0;
  std::int64_t written_ns = 0;  // since 1970
  bool operator==(const FileStamp&) const = default;
};
std::optional<FileStamp> stamp_of(const std::string& path);  // follows links; none: no such file

void close_descriptor(int fd);
using Descriptor = Handle<int, close_descriptor, -1>;

// Result of a lock. kUnsupported: the file system or its mount options do not support locks.
enum class LockState { kTaken, kHeld, kUnsupported };

// Identity of a file or folder, regardless of its name.
struct FileId {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  bool operator==(const FileId&) const = default;
};

class File {
 public:
  File() = default;  // no file

  static File open(const std::string& path);         // for reading; only a regular file
  static File open_stream(const std::string& path);  // for reading in sequence; pipes and devices too
  static File create(const std::string& path);       // for writing; created or truncated
  // Opens for writing under a free name. `shown` is the name in messages. The observer sees the file as `path`.
  static File create_temporary(const std::string& path, const std::string& shown, const FileObserver* observer);
  static File append(const std::string& path);  // for appending; created if missing

  const std::string& path() const { return path_; }
  std::uint64_t size() const { return size_; }                 // bytes when opened, or written so far; 0 for a stream
  bool is_regular() const { return kind_ == Kind::kRegular; }  // for files opened for reading
  bool is_open() const { return static_cast<bool>(fd_); }
  FileStamp stamp() const;  // current state

  // Reads exactly out.size() bytes from `offset`; an earlier end of file is an error.
  void read_at(std::uint64_t offset, std::span<std::byte> out) const;
  // Reads the bytes after those of the last call; returns fewer than out.size() only at the end.
  // The call waits for a pipe's writer; a pipe that never had one is an Error.
  std::size_t read_next(std::span<std::byte> out);
  // Reads all bytes. More than `max_bytes` is an Error kFormat. A regular file's size is checked before reading.
  // Reading of a growing file, a pipe or a device stops after `max_bytes`.
  std::string read_all(std::uint64_t max_bytes);
  void write(std::span<const std::byte> bytes);  // appends
  void write(std::string_view text);
  void sync();
  void close();  // reports errors that a destructor would hide
  // Locks until this object or its process ends. kHeld: another process has the lock.
  LockState try_lock() const;
  Descriptor duplicate() const;  // keeps the lock after the file is closed
  FileId identity() const;
  // Maps the full file as read-only memory, to be released by munmap. The file must not be empty.
  std::span<const std::byte> map() const;

 private:
  friend class Directory;
  enum class Kind { kWritten, kRegular, kPipe, kDevice };
  File(Descriptor fd, std::string path);
  void observe(std::string_view operation, std::uint64_t bytes, std::span<const std::byte> data = {}) const;
  void check_regular();

  Descriptor fd_;
  std::string path_;
  std::uint64_t size_ = 0;
  std::uint64_t next_ = 0;  // offset of the next read_next
  Kind kind_ = Kind::kWritten;
  const FileObserver* observer_ = nullptr;
  std::string place_;  // path for the observer; empty: path_
};

// Reads a full small file by File::read_all. read_file_or_pipe also reads pipes, such as <(COMMAND) or /dev/stdin.
// read_file_below fails with kFileIo unless the resolved path is in one of the folders `roots`.
// line_reader.h reads long files.
std::string read_whole_file(const std::string& path, std::uint64_t max_bytes);
std::string read_file_or_pipe(const std::string& path, std::uint64_t max_bytes);
std::string read_file_below(const std::string& path, std::span<const std::string> roots, std::uint64_t max_bytes);
std::string real_path(const std::string& path);                    // absolute, links resolved; "": no such file
void rename_file(const std::string& from, const std::string& to);  // replaces a file; not yet durable

enum class EntryType { kFile, kDirectory, kOther };  // kOther includes symbolic links in a directory
struct PathInfo {
  EntryType type;
  std::uint64_t size;  // bytes of a file
};
std::optional<PathInfo> look_at(const std::string& path);  // follows links; none: no such file
void make_directories(const std::string& path);            // with parents; not yet durable

struct DirectoryEntry {
  std::string name;
  EntryType type;
};

class Directory {
 public:
  // Opens a path of the user; links in `path` are followed.
  static Directory open(const std::string& path, const FileObserver* observer = nullptr);
  // Creates the directory and its parents durably.
  static Directory create(const std::string& path, const FileObserver* observer = nullptr);
  static bool exists(const std::string& path);  // true for files too

  bool is_open() const { return static_cast<bool>(fd_); }
  const std::string& path() const { return path_; }

  // Names in a directory are single path components; any other name is an error.
  Directory open_directory(const std::string& name) const;
  bool make_directory(const std::string& name) const;  // false if the name exists
  File open_file(const std::string& name) const;       // for reading; only a regular file
  File create_file(const std::string& name) const;     // for writing; the name must be free
  File open_to_lock(const std::string& name) const;    // for try_lock only; created if missing
  std::string read_text(const std::string& name, std::uint64_t max_bytes) const;
  std::vector<DirectoryEntry> list() const;  // sorted by name, without . and ..
  bool contains(const std::string& name) const { return identity_of(name).has_value(); }
  std::optional<FileId> identity_of(const std::string& name) const;  // of a link itself; none: no such name
  FileId identity() const;
  void rename(const std::string& from, const std::string& to) const;  // replaces a file
  void exchange(const std::string& a, const std::string& b) const;    // atomic if the file system supports it
  void remove_file(const std::string& name) const;
  // Removes links without following them. Keeps what it cannot remove and reports the first such error.
  void remove_tree(const std::string& name) const;
  void sync() const;  // makes names durable
  std::uint64_t free_bytes() const;
  void check_writable() const;  // fails if the user cannot create names here
  bool try_lock() const;        // until this object dies; false if locked or unsupported

 private:
  void observe(std::string_view operation, const std::string& path, const std::string& target = {}) const;
  std::string path_of(const std::string& name) const;
  std::string begin(std::string_view operation, const std::string& name) const;  // checks, observes; returns path
  // Opens a name as a File or Directory; a link is not followed. Observers and faults see `operation`.
  template <class Entry>
  Entry open_below(std::string_view operation, std::string_view what, const std::string& name, int flags) const;

  Descriptor fd_;
  std::string path_;
  const FileObserver* observer_ = nullptr;
};

}  // namespace megalith
