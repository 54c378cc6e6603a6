#include "core/checkpoint/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "core/base/error.h"

namespace megalith {
namespace {

[[noreturn]] void fail_file(const std::string& what, int error, const std::string& remedy = {}) {
  const char* reason = strerrordesc_np(error);
  const char* name = strerrorname_np(error);
  fail({.code = ExitCode::kFileIo,
        .subject = fmt::format("cannot {}: {} ({})", what, reason == nullptr ? "unknown error" : reason,
                               name == nullptr ? "?" : name),
        .remedy = remedy,
        .show_place = false});
}

template <class Call>
auto retry_interrupted(Call&& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

void check_component(const std::string& name) {
  require(!name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
              name.find('\0') == std::string::npos,
          "a file name in a checkpoint must be a single path component");
}

void sync_descriptor(int fd, const std::string& path) {
  if (retry_interrupted([&] { return ::fsync(fd); }) == 0) return;
  if (errno == EINVAL || errno == ENOTSUP) return;  // a file system without fsync for this kind of file
  fail_file("sync " + path, errno);
}

EntryType type_at(int directory, const char* name) {
  struct stat info {};
  if (::fstatat(directory, name, &info, AT_SYMLINK_NOFOLLOW) != 0) return EntryType::kOther;
  if (S_ISREG(info.st_mode)) return EntryType::kFile;
  return S_ISDIR(info.st_mode) ? EntryType::kDirectory : EntryType::kOther;
}

}  // namespace

void close_descriptor(int fd) { ::close(fd); }

void File::read_at(std::uint64_t offset, std::span<std::byte> out) const {
  if (observer_ != nullptr) (*observer_)({.name = "read", .path = path_, .bytes = out.size()});
  std::size_t done = 0;
  while (done < out.size()) {
    const ssize_t got = retry_interrupted(
        [&] { return ::pread(fd_.get(), out.data() + done, out.size() - done, static_cast<off_t>(offset + done)); });
    if (got < 0) fail_file(fmt::format("read {} bytes at {} of {}", out.size(), offset, path_), errno);
    if (got == 0) {
      fail({.code = ExitCode::kFileIo,
            .subject = fmt::format("cannot read {} bytes at {} of {}: it ends after {} of them", out.size(), offset,
                                   path_, done),
            .show_place = false});
    }
    done += static_cast<std::size_t>(got);
  }
}

void File::write(std::span<const std::byte> bytes) {
  if (observer_ != nullptr) (*observer_)({.name = "write", .path = path_, .bytes = bytes.size()});
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t put = retry_interrupted([&] { return ::write(fd_.get(), bytes.data() + done, bytes.size() - done); });
    if (put < 0) {
      const int error = errno;
      const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
      fail_file(fmt::format("write {} bytes at {} of {}", bytes.size() - done, size_, path_), error,
                full ? "free space or lift the limit" : "");
    }
    done += static_cast<std::size_t>(put);
    size_ += static_cast<std::uint64_t>(put);
  }
}

void File::write(std::string_view text) { write(std::as_bytes(std::span(text.data(), text.size()))); }

void File::sync() {
  if (observer_ != nullptr) (*observer_)({.name = "sync", .path = path_, .bytes = size_});
  sync_descriptor(fd_.get(), path_);
}

void File::close() {
  // The descriptor is gone even when close reports an error, EINTR included: never closed twice.
  if (::close(fd_.release()) != 0 && errno != EINTR) fail_file("close " + path_, errno);
}

std::string Directory::path_of(const std::string& name) const {
  return !path_.empty() && path_.back() == '/' ? path_ + name : path_ + "/" + name;
}

void Directory::observe(std::string_view operation, const std::string& path, std::uint64_t bytes) const {
  if (observer_ != nullptr) (*observer_)({.name = operation, .path = path, .bytes = bytes});
}

bool Directory::exists(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0) return true;
  if (errno == ENOENT || errno == ENOTDIR) return false;
  fail_file("look at " + path, errno);
}

Directory Directory::open(const std::string& path, const FileObserver* observer) {
  Directory directory;
  directory.path_ = path;
  directory.observer_ = observer;
  directory.observe("open", path);
  directory.fd_ =
      Descriptor(retry_interrupted([&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
  if (!directory.fd_) fail_file("open directory " + path, errno);
  return directory;
}

Directory Directory::create(const std::string& path, const FileObserver* observer) {
  for (std::size_t end = 0; end != std::string::npos;) {
    end = path.find('/', end + 1);
    const std::string prefix = path.substr(0, end);
    if (exists(prefix)) continue;
    if (observer != nullptr) (*observer)({.name = "mkdir", .path = prefix});
    if (::mkdir(prefix.c_str(), 0777) != 0 && errno != EEXIST) fail_file("create directory " + prefix, errno);
    const std::size_t slash = prefix.find_last_of('/');
    const std::string parent = slash == std::string::npos ? "." : slash == 0 ? "/" : prefix.substr(0, slash);
    Directory::open(parent, observer).sync();
  }
  return open(path, observer);
}

Directory Directory::open_directory(const std::string& name) const {
  check_component(name);
  Directory directory;
  directory.path_ = path_of(name);
  directory.observer_ = observer_;
  observe("open", directory.path_);
  directory.fd_ = Descriptor(retry_interrupted(
      [&] { return ::openat(fd_.get(), name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC); }));
  if (!directory.fd_) {
    fail_file(
        "open directory " + directory.path_, errno,
        errno == ELOOP || errno == ENOTDIR ? "symbolic links are not followed inside a checkpoint directory" : "");
  }
  return directory;
}

bool Directory::make_directory(const std::string& name) const {
  check_component(name);
  observe("mkdir", path_of(name));
  if (::mkdirat(fd_.get(), name.c_str(), 0777) == 0) return true;
  if (errno == EEXIST) return false;
  fail_file("create directory " + path_of(name), errno);
}

File Directory::open_file(const std::string& name) const {
  check_component(name);
  File file;
  file.path_ = path_of(name);
  file.observer_ = observer_;
  observe("open", file.path_);
  // O_NONBLOCK: opening a named pipe must not hang; it has no effect on the regular files that pass the check below.
  file.fd_ = Descriptor(retry_interrupted(
      [&] { return ::openat(fd_.get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC); }));
  if (!file.fd_) {
    const int error = errno;
    fail_file("open " + file.path_, error,
              error == ELOOP ? "symbolic links are not followed inside a checkpoint directory" : "");
  }
  struct stat info {};
  if (::fstat(file.fd_.get(), &info) != 0) fail_file("look at " + file.path_, errno);
  if (!S_ISREG(info.st_mode)) {
    fail({.code = ExitCode::kFileIo,
          .subject = "cannot read " + file.path_ + ": not a regular file",
          .show_place = false});
  }
  file.size_ = static_cast<std::uint64_t>(info.st_size);
  return file;
}

File Directory::create_file(const std::string& name) const {
  check_component(name);
  File file;
  file.path_ = path_of(name);
  file.observer_ = observer_;
  observe("create", file.path_);
  file.fd_ = Descriptor(retry_interrupted(
      [&] { return ::openat(fd_.get(), name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666); }));
  if (!file.fd_) fail_file("create " + file.path_, errno);
  return file;
}

std::string Directory::read_text(const std::string& name, std::uint64_t max_bytes) const {
  const File file = open_file(name);
  if (file.size() > max_bytes) {
    fail({.code = ExitCode::kFormat,
          .subject = file.path(),
          .expected = fmt::format("at most {} bytes", max_bytes),
          .got = std::to_string(file.size()),
          .show_place = false});
  }
  std::string text(file.size(), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(text)));
  return text;
}

std::vector<DirectoryEntry> Directory::list() const {
  observe("list", path_);
  // A descriptor of its own: reading a directory moves the offset of the one it is given.
  Descriptor own(::openat(fd_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!own) fail_file("list " + path_, errno);
  Handle<DIR*, ::closedir, nullptr> stream(::fdopendir(own.get()));
  if (!stream) fail_file("list " + path_, errno);
  own.release();
  std::vector<DirectoryEntry> entries;
  errno = 0;
  while (const dirent* entry = ::readdir(stream.get())) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") entries.push_back({name, type_at(fd_.get(), entry->d_name)});
    errno = 0;
  }
  if (errno != 0) fail_file("list " + path_, errno);
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return entries;
}

bool Directory::contains(const std::string& name) const {
  check_component(name);
  struct stat info {};
  if (::fstatat(fd_.get(), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0) return true;
  if (errno == ENOENT) return false;
  fail_file("look at " + path_of(name), errno);
}

void Directory::rename(const std::string& from, const std::string& to) const {
  check_component(from);
  check_component(to);
  observe("rename", path_of(from));
  if (::renameat(fd_.get(), from.c_str(), fd_.get(), to.c_str()) != 0) {
    fail_file("rename " + path_of(from) + " to " + to, errno);
  }
}

void Directory::exchange(const std::string& a, const std::string& b) const {
  check_component(a);
  check_component(b);
  observe("rename", path_of(a));
  if (::renameat2(fd_.get(), a.c_str(), fd_.get(), b.c_str(), RENAME_EXCHANGE) == 0) return;
  if (errno != EINVAL && errno != ENOSYS) fail_file("exchange " + path_of(a) + " and " + b, errno);
  const std::string aside = a + "x";
  rename(b, aside);
  rename(a, b);
  rename(aside, a);
}

void Directory::remove_file(const std::string& name) const {
  check_component(name);
  observe("remove", path_of(name));
  if (::unlinkat(fd_.get(), name.c_str(), 0) != 0) fail_file("remove " + path_of(name), errno);
}

void Directory::remove_tree(const std::string& name) const {
  check_component(name);
  {
    const Directory directory = open_directory(name);
    for (const DirectoryEntry& entry : directory.list()) {
      if (entry.type == EntryType::kDirectory) {
        directory.remove_tree(entry.name);
      } else {
        directory.remove_file(entry.name);
      }
    }
  }
  observe("remove", path_of(name));
  if (::unlinkat(fd_.get(), name.c_str(), AT_REMOVEDIR) != 0) fail_file("remove directory " + path_of(name), errno);
}

void Directory::sync() const {
  observe("sync", path_);
  sync_descriptor(fd_.get(), path_);
}

std::uint64_t Directory::free_bytes() const {
  observe("space", path_);
  struct statvfs info {};
  if (retry_interrupted([&] { return ::fstatvfs(fd_.get(), &info); }) != 0) {
    fail_file("ask for the free space of " + path_, errno);
  }
  return static_cast<std::uint64_t>(info.f_bavail) * info.f_frsize;
}

bool Directory::try_lock() const {
  observe("lock", path_);
  if (retry_interrupted([&] { return ::flock(fd_.get(), LOCK_EX | LOCK_NB); }) == 0) return true;
  if (errno == EWOULDBLOCK) return false;
  fail_file("lock " + path_, errno);
}

}  // namespace megalith
