#include "core/base/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "core/base/error.h"
#include "core/base/fault.h"

namespace megalith {
namespace {

constexpr const char* kFreeSpace = "free space or lift the limit";

const char* remedy_for(int error) {
  switch (error) {
    case ENOENT: return "check the path";
    case EACCES:
    case EPERM:
    case EROFS: return "check its permissions";
    case ENOTDIR: return "a part of the path is a file where a folder is wanted";
    case EISDIR: return "name a file, not a folder";
    case ENOSPC:
    case EDQUOT:
    case EFBIG: return kFreeSpace;
    case EMFILE:
    case ENFILE: return "raise the limit of open files (ulimit -n)";
    case EIO: return "the disk or its connection fails: see the kernel's log";
    default: return "";
  }
}

[[noreturn]] void fail_file(const std::string& what, int error, const std::string& remedy = {}) {
  const char* reason = strerrordesc_np(error);
  const char* name = strerrorname_np(error);
  fail({.code = ExitCode::kFileIo,
        .subject = fmt::format("cannot {}: {} ({})", what, reason == nullptr ? "unknown error" : reason,
                               name == nullptr ? "?" : name),
        .remedy = remedy.empty() ? remedy_for(error) : remedy,
        .show_place = false});
}

template <class Call>
auto retry_interrupted(Call&& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

// A call that fails, or is interrupted once, where this was asked for.
template <class Call>
auto faulty(std::string_view operation, Call&& call) -> decltype(call()) {
  const FaultKind fault = fault_here(operation);
  if (fault == FaultKind::kEio || fault == FaultKind::kEnospc) {
    errno = fault == FaultKind::kEio ? EIO : ENOSPC;
    return -1;
  }
  bool interrupted = fault == FaultKind::kEintr;
  return retry_interrupted([&]() -> decltype(call()) {
    if (!std::exchange(interrupted, false)) return call();
    errno = EINTR;
    return -1;
  });
}

// Moves bytes until all are done or the end is reached: step(done, count) is one call of the system. Returns the number
// of bytes moved, or -1 after a failure, with the number in `done`.
template <class Step>
ssize_t move_bytes(std::string_view operation, std::size_t bytes, std::size_t& done, Step&& step) {
  const FaultKind fault = fault_here(operation);
  const bool halves = fault == FaultKind::kShort || fault == FaultKind::kKill;
  bool interrupted = fault == FaultKind::kEintr;
  std::size_t most = halves ? (bytes + 1) / 2 : bytes;
  done = 0;
  if (fault == FaultKind::kEio || fault == FaultKind::kEnospc) {
    errno = fault == FaultKind::kEio ? EIO : ENOSPC;
    return -1;
  }
  while (done < bytes) {
    const ssize_t moved = retry_interrupted([&]() -> ssize_t {
      if (!std::exchange(interrupted, false)) return step(done, std::min(most, bytes - done));
      errno = EINTR;
      return -1;
    });
    if (moved < 0) return -1;
    if (moved == 0) break;
    done += static_cast<std::size_t>(moved);
    most = bytes;
    if (fault == FaultKind::kKill) kill_process();
  }
  return static_cast<ssize_t>(done);
}

void check_component(const std::string& name) {
  require(!name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
              name.find('\0') == std::string::npos,
          "the name of a file in a directory must be a single path component");
}

void sync_descriptor(int fd, const std::string& what) {
  if (faulty("sync", [&] { return ::fsync(fd); }) == 0) return;
  if (errno == EINVAL || errno == ENOTSUP) return;  // a file system without fsync for this kind of file
  fail_file("sync " + what, errno);
}

// Where a plain path of the user's is opened: links are followed.
Descriptor open_path(std::string_view operation, const std::string& path, int flags, const std::string& shown) {
  Descriptor fd(faulty(operation, [&] { return ::open(path.c_str(), flags | O_CLOEXEC, 0666); }));
  if (!fd) {
    const int error = errno;
    const bool absent = error == ENOENT || error == ENOTDIR || error == EACCES || error == EISDIR;
    fail_file(fmt::format("{} {}", operation, shown), error, absent ? "check the path and its permissions" : "");
  }
  return fd;
}

// Where a single name below a directory is opened: a link is not followed.
Descriptor open_below(int directory, std::string_view operation, const std::string& what, const std::string& name,
                      int flags) {
  Descriptor fd(
      faulty(operation, [&] { return ::openat(directory, name.c_str(), flags | O_NOFOLLOW | O_CLOEXEC, 0666); }));
  if (!fd) {
    const int error = errno;
    const bool is_link = error == ELOOP || error == ENOTDIR;
    fail_file(what, error, is_link ? "symbolic links are not followed inside a checkpoint directory" : "");
  }
  return fd;
}

EntryType type_at(int directory, const char* name) {
  struct stat info {};
  if (::fstatat(directory, name, &info, AT_SYMLINK_NOFOLLOW) != 0) return EntryType::kOther;
  if (S_ISREG(info.st_mode)) return EntryType::kFile;
  return S_ISDIR(info.st_mode) ? EntryType::kDirectory : EntryType::kOther;
}

}  // namespace

void close_descriptor(int fd) { ::close(fd); }

File::File(Descriptor fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}

void File::check_regular() {
  struct stat info {};
  if (::fstat(fd_.get(), &info) != 0) fail_file("look at " + path_, errno);
  if (!S_ISREG(info.st_mode)) {
    fail({.code = ExitCode::kFileIo,
          .subject = fmt::format("cannot read {}: {}", path_,
                                 S_ISDIR(info.st_mode) ? "a directory, not a regular file" : "not a regular file"),
          .remedy = "check the path",
          .show_place = false});
  }
  size_ = static_cast<std::uint64_t>(info.st_size);
}

File File::open(const std::string& path) {
  // O_NONBLOCK: opening a named pipe must not hang; it has no effect on the regular files that pass the check below.
  File file(open_path("open", path, O_RDONLY | O_NONBLOCK, path), path);
  file.check_regular();
  return file;
}

File File::create(const std::string& path, const std::string& shown) {
  const bool temporary = !shown.empty();
  const std::string& name = temporary ? shown : path;
  return {open_path("create", path, O_WRONLY | O_CREAT | O_TRUNC | (temporary ? O_NOFOLLOW : 0), name), name};
}

File File::append(const std::string& path) {
  return {open_path("open", path, O_WRONLY | O_CREAT | O_APPEND, path), path};
}

std::span<const std::byte> File::map() const {
  const auto size = static_cast<std::size_t>(size_);
  const void* address = MAP_FAILED;
  faulty("map", [&] {
    address = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd_.get(), 0);
    return address == MAP_FAILED ? -1 : 0;
  });
  if (address == MAP_FAILED) fail_file(fmt::format("map {} bytes of {}", size, path_), errno);
  return {static_cast<const std::byte*>(address), size};
}

void File::read_at(std::uint64_t offset, std::span<std::byte> out) const {
  if (observer_ != nullptr) (*observer_)({.name = "read", .path = path_, .bytes = out.size()});
  std::size_t done = 0;
  const ssize_t got = move_bytes("read", out.size(), done, [&](std::size_t from, std::size_t count) {
    return ::pread(fd_.get(), out.data() + from, count, static_cast<off_t>(offset + from));
  });
  if (got < 0) fail_file(fmt::format("read {} bytes at {} of {}", out.size(), offset, path_), errno);
  if (done < out.size()) {
    fail({.code = ExitCode::kFileIo,
          .subject = fmt::format("cannot read {} bytes at {} of {}: it ends after {} of them", out.size(), offset,
                                 path_, done),
          .remedy = "something else shortens it, or it was cut off when it was copied",
          .show_place = false});
  }
}

void File::write(std::span<const std::byte> bytes) {
  if (observer_ != nullptr) (*observer_)({.name = "write", .path = path_, .bytes = bytes.size(), .data = bytes});
  std::size_t done = 0;
  const ssize_t put = move_bytes("write", bytes.size(), done, [&](std::size_t from, std::size_t count) {
    return ::write(fd_.get(), bytes.data() + from, count);
  });
  const int error = errno;
  const std::uint64_t at = size_;
  size_ += done;
  if (put >= 0 && done == bytes.size()) return;
  fail_file(fmt::format("write {} bytes at {} of {}", bytes.size() - done, at + done, path_), put < 0 ? error : ENOSPC);
}

void File::write(std::string_view text) { write(std::as_bytes(std::span(text.data(), text.size()))); }

void File::sync() {
  if (observer_ != nullptr) (*observer_)({.name = "sync", .path = path_, .bytes = size_});
  sync_descriptor(fd_.get(), fmt::format("{} bytes of {}", size_, path_));
}

void File::close() {
  // The descriptor is gone even when close reports an error, EINTR included: never closed twice.
  const int fd = fd_.release();
  const FaultKind fault = fault_here("close");
  const bool failed = ::close(fd) != 0 && errno != EINTR;
  const bool asked = fault == FaultKind::kEio || fault == FaultKind::kEnospc;
  if (asked) errno = fault == FaultKind::kEio ? EIO : ENOSPC;
  if (failed || asked) fail_file(fmt::format("close {} after {} bytes", path_, size_), errno);
}

std::string read_whole_file(const std::string& path, std::uint64_t max_bytes) {
  constexpr std::size_t kBlock = std::size_t{1} << 16;
  const Descriptor fd = open_path("open", path, O_RDONLY, path);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) fail_file("look at " + path, errno);
  std::string text;
  std::size_t used = 0;
  const auto known = S_ISREG(info.st_mode) ? static_cast<std::uint64_t>(info.st_size) + 1 : kBlock;
  for (std::size_t block = static_cast<std::size_t>(std::min(known, max_bytes + 1));; block = kBlock) {
    text.resize(used + block);
    std::size_t done = 0;
    const ssize_t got = move_bytes("read", block, done, [&](std::size_t from, std::size_t count) {
      return ::read(fd.get(), text.data() + used + from, count);
    });
    if (got < 0) fail_file(fmt::format("read {} bytes at {} of {}", block, used, path), errno);
    used += done;
    if (used > max_bytes) {
      refuse_format(path, fmt::format("at most {} bytes", max_bytes), "more");
    }
    if (done < block) break;
  }
  text.resize(used);
  return text;
}

void rename_file(const std::string& from, const std::string& to) {
  if (faulty("rename", [&] { return ::rename(from.c_str(), to.c_str()); }) != 0) {
    fail_file(fmt::format("rename {} to {}", from, to), errno);
  }
}

std::string Directory::path_of(const std::string& name) const {
  return !path_.empty() && path_.back() == '/' ? path_ + name : path_ + "/" + name;
}

void Directory::observe(std::string_view operation, const std::string& path, std::uint64_t bytes) const {
  if (observer_ != nullptr) (*observer_)({.name = operation, .path = path, .bytes = bytes});
}

void Directory::observe_two(std::string_view operation, const std::string& from, const std::string& to) const {
  const std::string path = path_of(from), target = path_of(to);
  if (observer_ != nullptr) (*observer_)({.name = operation, .path = path, .target = target});
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
  directory.fd_ = Descriptor(faulty("open", [&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
  if (!directory.fd_) fail_file("open directory " + path, errno);
  return directory;
}

Directory Directory::create(const std::string& path, const FileObserver* observer) {
  for (std::size_t end = 0; end != std::string::npos;) {
    end = path.find('/', end + 1);
    const std::string prefix = path.substr(0, end);
    if (exists(prefix)) continue;
    if (observer != nullptr) (*observer)({.name = "mkdir", .path = prefix});
    if (faulty("mkdir", [&] { return ::mkdir(prefix.c_str(), 0777); }) != 0 && errno != EEXIST)
      fail_file("create directory " + prefix, errno);
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
  directory.fd_ = open_below(fd_.get(), "open", "open directory " + directory.path_, name, O_RDONLY | O_DIRECTORY);
  return directory;
}

bool Directory::make_directory(const std::string& name) const {
  check_component(name);
  observe("mkdir", path_of(name));
  if (faulty("mkdir", [&] { return ::mkdirat(fd_.get(), name.c_str(), 0777); }) == 0) return true;
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
  file.fd_ = open_below(fd_.get(), "open", "open " + file.path_, name, O_RDONLY | O_NONBLOCK);
  file.check_regular();
  return file;
}

File Directory::create_file(const std::string& name) const {
  check_component(name);
  File file;
  file.path_ = path_of(name);
  file.observer_ = observer_;
  observe("create", file.path_);
  file.fd_ = open_below(fd_.get(), "create", "create " + file.path_, name, O_WRONLY | O_CREAT | O_EXCL);
  return file;
}

std::string Directory::read_text(const std::string& name, std::uint64_t max_bytes) const {
  const File file = open_file(name);
  if (file.size() > max_bytes) {
    refuse_format(file.path(), fmt::format("at most {} bytes", max_bytes), std::to_string(file.size()));
  }
  std::string text(file.size(), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(text)));
  return text;
}

std::vector<DirectoryEntry> Directory::list() const {
  observe("list", path_);
  // A descriptor of its own: reading a directory moves the offset of the one it is given.
  Descriptor own(faulty("list", [&] { return ::openat(fd_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
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
  observe_two("rename", from, to);
  if (faulty("rename", [&] { return ::renameat(fd_.get(), from.c_str(), fd_.get(), to.c_str()); }) != 0) {
    fail_file("rename " + path_of(from) + " to " + to, errno);
  }
}

void Directory::exchange(const std::string& a, const std::string& b) const {
  check_component(a);
  check_component(b);
  observe_two("exchange", a, b);
  if (faulty("rename", [&] { return ::renameat2(fd_.get(), a.c_str(), fd_.get(), b.c_str(), RENAME_EXCHANGE); }) == 0) {
    return;
  }
  if (errno != EINVAL && errno != ENOSYS) fail_file("exchange " + path_of(a) + " and " + b, errno);
  const std::string aside = a + "x";
  rename(b, aside);
  rename(a, b);
  rename(aside, a);
}

void Directory::remove_file(const std::string& name) const {
  check_component(name);
  observe("remove", path_of(name));
  if (faulty("remove", [&] { return ::unlinkat(fd_.get(), name.c_str(), 0); }) != 0) {
    fail_file("remove " + path_of(name), errno);
  }
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
  if (faulty("remove", [&] { return ::unlinkat(fd_.get(), name.c_str(), AT_REMOVEDIR); }) != 0) {
    fail_file("remove directory " + path_of(name), errno);
  }
}

void Directory::sync() const {
  observe("sync", path_);
  sync_descriptor(fd_.get(), "directory " + path_);
}

std::uint64_t Directory::free_bytes() const {
  observe("space", path_);
  struct statvfs info {};
  if (faulty("space", [&] { return ::fstatvfs(fd_.get(), &info); }) != 0) {
    fail_file("ask for the free space of " + path_, errno);
  }
  return static_cast<std::uint64_t>(info.f_bavail) * info.f_frsize;
}

bool Directory::try_lock() const {
  observe("lock", path_);
  if (faulty("lock", [&] { return ::flock(fd_.get(), LOCK_EX | LOCK_NB); }) == 0) return true;
  if (errno == EWOULDBLOCK) return false;
  fail_file("lock " + path_, errno);
}

}  // namespace megalith
