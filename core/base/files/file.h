// The only place, with mapped_file and output_file, where the program touches the file system. A failure is an Error
// (kFileIo) that names operation, path, bytes and the system's reason. Every call can be made to fail (fault.h), and an
// observer sees all operations below a directory, from which a test can build what a power loss leaves. Below a
// Directory symbolic links are never followed; File::open and its siblings take a path as the user wrote it.
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

// Called before each operation on the file system; may throw to make the operation fail.
struct FileOperation {
  std::string_view name;  // open, create, read, write, sync, rename, exchange, remove, mkdir, list, space, lock
  std::string_view path;
  std::uint64_t bytes = 0;
  std::string_view target = {};          // rename and exchange: the other path
  std::span<const std::byte> data = {};  // write: what is appended
};
using FileObserver = std::function<void(const FileOperation&)>;

// What changes when something else is written into a file or put in its place.
struct FileStamp {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::uint64_t size = 0;
  std::int64_t written_ns = 0;  // since 1970
  bool operator==(const FileStamp&) const = default;
};
std::optional<FileStamp> stamp_of(const std::string& path);  // links are followed; none: there is nothing

void close_descriptor(int fd);
using Descriptor = Handle<int, close_descriptor, -1>;

// kUnsupported: the file system, or how it is mounted, knows no locks.
enum class LockState { kTaken, kHeld, kUnsupported };

// Which file or folder it is, whatever its name.
struct FileId {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  bool operator==(const FileId&) const = default;
};

class File {
 public:
  File() = default;  // none

  static File open(const std::string& path);         // to read; a regular file or an error
  static File open_stream(const std::string& path);  // to read from its start to its end; pipes and devices too
  static File create(const std::string& path);       // to write; made if missing, emptied if not
  // To write, under a name that must be free; `shown`: the name for messages. The observer sees it as `path`.
  static File create_temporary(const std::string& path, const std::string& shown, const FileObserver* observer);
  static File append(const std::string& path);  // to write at its end; made if missing

  const std::string& path() const { return path_; }
  std::uint64_t size() const { return size_; }  // as it was when opened, or bytes written so far; 0 of a stream
  bool is_regular() const { return kind_ == Kind::kRegular; }  // of a file that was opened to read
  bool is_open() const { return static_cast<bool>(fd_); }
  FileStamp stamp() const;  // as it is now

  // Exactly out.size() bytes from `offset`; an earlier end of file is an error.
  void read_at(std::uint64_t offset, std::span<std::byte> out) const;
  // The bytes that follow those of the last call; fewer than out.size() at the end alone. It waits for a pipe's writer;
  // a pipe that had none is an Error.
  std::size_t read_next(std::span<std::byte> out);
  // All bytes. More than `max_bytes` is an Error kFormat: a regular file's size is looked at before it is read, and of
  // a file that grows, a pipe or a device no more is read.
  std::string read_all(std::uint64_t max_bytes);
  void write(std::span<const std::byte> bytes);  // appends
  void write(std::string_view text);
  void sync();
  void close();  // reports what a destructor would have to swallow
  // Until this object or its process ends, however it ends; kHeld: by another.
  LockState try_lock() const;
  Descriptor duplicate() const;  // holds the lock also when the file is closed
  FileId identity() const;
  // The whole of an opened file as read-only memory, for munmap; not for an empty one.
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
  std::uint64_t next_ = 0;  // where read_next reads
  Kind kind_ = Kind::kWritten;
  const FileObserver* observer_ = nullptr;
  std::string place_;  // for the observer; empty: path_
};

// Small files of a user, whole, by File::read_all: a regular file; one that may also be a pipe such as <(COMMAND) or
// /dev/stdin; a regular file that lies below one of the folders `roots` once links are followed, else Error kFileIo.
// Long ones are read by line_reader.h.
std::string read_whole_file(const std::string& path, std::uint64_t max_bytes);
std::string read_file_or_pipe(const std::string& path, std::uint64_t max_bytes);
std::string read_file_below(const std::string& path, std::span<const std::string> roots, std::uint64_t max_bytes);
std::string real_path(const std::string& path);                    // absolute and without links; "": there is nothing
void rename_file(const std::string& from, const std::string& to);  // replaces a file; not yet durable

enum class EntryType { kFile, kDirectory, kOther };  // kOther includes symbolic links, in a directory
struct PathInfo {
  EntryType type;
  std::uint64_t size;  // bytes, of a file
};
std::optional<PathInfo> look_at(const std::string& path);  // links are followed; none: there is nothing
void make_directories(const std::string& path);            // with its parents; not yet durable

struct DirectoryEntry {
  std::string name;
  EntryType type;
};

class Directory {
 public:
  // `path` is the user's own, links in it are followed.
  static Directory open(const std::string& path, const FileObserver* observer = nullptr);
  // With its parents, durable.
  static Directory create(const std::string& path, const FileObserver* observer = nullptr);
  static bool exists(const std::string& path);  // as a file too

  bool is_open() const { return static_cast<bool>(fd_); }
  const std::string& path() const { return path_; }

  // Names below are single path components; anything else is an error.
  Directory open_directory(const std::string& name) const;
  bool make_directory(const std::string& name) const;  // false when the name is taken
  File open_file(const std::string& name) const;       // to read; a regular file or an error
  File create_file(const std::string& name) const;     // to write; the name must be free
  File open_to_lock(const std::string& name) const;    // made if missing; for try_lock alone
  std::string read_text(const std::string& name, std::uint64_t max_bytes) const;
  std::vector<DirectoryEntry> list() const;  // sorted by name, without . and ..
  bool contains(const std::string& name) const { return identity_of(name).has_value(); }
  std::optional<FileId> identity_of(const std::string& name) const;  // of a link itself; none: no such name
  FileId identity() const;
  void rename(const std::string& from, const std::string& to) const;  // replaces a file
  void exchange(const std::string& a, const std::string& b) const;    // at once, where the file system can
  void remove_file(const std::string& name) const;
  // Links are removed, not followed. What cannot be removed stays, with an error that names the first of it.
  void remove_tree(const std::string& name) const;
  void sync() const;  // makes names durable
  std::uint64_t free_bytes() const;
  void check_writable() const;  // an error where the user may not make names here
  bool try_lock() const;        // until this object dies; false when another holds it or there are no locks

 private:
  void observe(std::string_view operation, const std::string& path, const std::string& target = {}) const;
  std::string path_of(const std::string& name) const;
  std::string begin(std::string_view operation, const std::string& name) const;  // on a name below; its path
  // Opens a name below as a File or Directory; a link is not followed. `operation` is what observers and faults know.
  template <class Entry>
  Entry open_below(std::string_view operation, std::string_view what, const std::string& name, int flags) const;

  Descriptor fd_;
  std::string path_;
  const FileObserver* observer_ = nullptr;
};

}  // namespace megalith
