#include "core/base/files/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "core/base/error.h"
#include "core/base/files/fault.h"
#include "core/base/files/file_calls.h"
#include "core/base/memory_limit.h"

namespace megalith {
namespace {

constexpr std::size_t kReadBlock = std::size_t{1} << 16;  // used if the size is unknown

// Calls step(done, count), one system call each, until all bytes are moved or the end is reached.
// Returns the number of bytes moved, or -1 after a failure; `done` holds the number in both cases.
template <class Step>
ssize_t move_bytes(std::string_view operation, std::size_t bytes, std::size_t& done, Step&& step) {
  const FaultKind fault = fault_here(operation);
  const bool halves = fault == FaultKind::kShort || fault == FaultKind::kKill;
  bool interrupted = fault == FaultKind::kEintr;
  std::size_t most = halves ? (bytes + 1) / 2 : bytes;
  done = 0;
  if (fails(fault)) return -1;
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

// Opens a path of the user and follows links. O_NONBLOCK: a named pipe without its other end must not hang open().
// Later reads and writes may wait for the other end.
Descriptor open_path(std::string_view operation, const std::string& path, int flags, const std::string& shown) {
  const char* const name = system_path(path);
  Descriptor fd(faulty(operation, [&] { return ::open(name, flags | O_CLOEXEC | O_NONBLOCK, 0666); }));
  if (!fd) {
    const int error = errno;
    const bool absent = error == ENOENT || error == ENOTDIR || error == EACCES || error == EISDIR;
    const char* const remedy = absent           ? "check the path and its permissions"
                               : error == ENXIO ? "a pipe that nobody reads from, or a socket: check the path"
                                                : "";
    fail_file(fmt::format("{} {}", operation, shown), error, remedy);
  }
  if (!S_ISREG(status_of(fd.get(), shown).st_mode)) ::fcntl(fd.get(), F_SETFL, flags & O_APPEND);
  return fd;
}

void free_text(char* text) { std::free(text); }

void require_regular(mode_t mode, const std::string& path) {
  if (S_ISREG(mode)) return;
  const char* const kind = S_ISDIR(mode) ? "a directory" : S_ISFIFO(mode) ? "a pipe" : "a device or a socket";
  fail({.code = ExitCode::kFileIo,
        .subject = fmt::format("cannot read {}: {}, not a regular file", path, kind),
        .remedy = S_ISFIFO(mode) ? "write what comes from it to a file first" : "check the path",
        .show_place = false});
}

[[noreturn]] void refuse_size(const std::string& path, std::uint64_t max_bytes, const std::string& got) {
  refuse_format(path, fmt::format("at most {} bytes", max_bytes), got, "check the path: no such file is so large");
}

FileStamp stamp_in(const struct stat& info) {
  return {.device = info.st_dev,
          .inode = info.st_ino,
          .size = static_cast<std::uint64_t>(info.st_size),
          .written_ns = std::int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec};
}

}  // namespace

void close_descriptor(int fd) { ::close(fd); }

File::File(Descriptor fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}

void File::check_regular() {
  const struct stat info = status_of(fd_.get(), path_);
  require_regular(info.st_mode, path_);
  size_ = static_cast<std::uint64_t>(info.st_size);
  kind_ = Kind::kRegular;
}

File File::open(const std::string& path) {
  File file(open_path("open", path, O_RDONLY, path), path);
  file.check_regular();
  return file;
}

File File::open_stream(const std::string& path) {
  File file(open_path("open", path, O_RDONLY, path), path);
  const mode_t mode = status_of(file.fd_.get(), path).st_mode;
  file.kind_ = S_ISFIFO(mode) ? Kind::kPipe : Kind::kDevice;
  if (S_ISREG(mode) || S_ISDIR(mode)) file.check_regular();
  return file;
}

File File::create(const std::string& path) {
  return {open_path("create", path, O_WRONLY | O_CREAT | O_TRUNC, path), path};
}

File File::create_temporary(const std::string& path, const std::string& shown, const FileObserver* observer) {
  if (observer != nullptr) (*observer)({.name = "create", .path = path});
  File file(open_path("create", path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, shown), shown);
  file.observer_ = observer;
  file.place_ = path;
  return file;
}

File File::append(const std::string& path) {
  return {open_path("open", path, O_WRONLY | O_CREAT | O_APPEND, path), path};
}

void File::observe(std::string_view operation, std::uint64_t bytes, std::span<const std::byte> data) const {
  if (observer_ == nullptr) return;
  (*observer_)({.name = operation, .path = place_.empty() ? path_ : place_, .bytes = bytes, .data = data});
}

FileStamp File::stamp() const { return stamp_in(status_of(fd_.get(), path_)); }

std::optional<FileStamp> stamp_of(const std::string& path) {
  const std::optional<struct stat> info = status_of_path(path);
  return info ? std::optional(stamp_in(*info)) : std::nullopt;
}

std::span<const std::byte> File::map() const {
  const auto size = static_cast<std::size_t>(size_);
  const void* address = MAP_FAILED;
  faulty("map", [&] {
    address = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd_.get(), 0);
    return address == MAP_FAILED ? -1 : 0;
  });
  if (address == MAP_FAILED) {
    const int error = errno;
    const std::optional<MemoryLimit> limit = error == ENOMEM ? met_limit(size) : std::nullopt;
    fail_file(fmt::format("map {} bytes of {}", size, path_), error,
              limit ? std::string(LimitText(*limit).view()) : std::string());
  }
  return {static_cast<const std::byte*>(address), size};
}

void File::read_at(std::uint64_t offset, std::span<std::byte> out) const {
  observe("read", out.size());
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

std::size_t File::read_next(std::span<std::byte> out) {
  std::size_t done = 0;
  const ssize_t got = move_bytes("read", out.size(), done, [&](std::size_t from, std::size_t count) {
    return ::read(fd_.get(), out.data() + from, count);
  });
  if (got < 0) fail_file(fmt::format("read {} bytes at {} of {}", out.size(), next_, path_), errno);
  next_ += done;
  if (next_ > 0 || kind_ != Kind::kPipe || out.empty()) return done;
  fail({.code = ExitCode::kFileIo,
        .subject = fmt::format("cannot read {}: a pipe that nobody writes to", path_),
        .remedy = "start what writes to it first",
        .show_place = false});
}

std::string File::read_all(std::uint64_t max_bytes) {
  const std::uint64_t known = is_regular() ? size_ : kReadBlock;
  if (is_regular() && known > max_bytes) refuse_size(path_, max_bytes, std::to_string(known));
  observe("read", known);
  std::string text;
  std::uint64_t used = 0;
  for (std::uint64_t block = known + 1;; block = kReadBlock) {
    block = std::min(block, max_bytes + 1 - used);
    text.resize(used + block);
    const std::size_t done = read_next(std::as_writable_bytes(std::span(text)).subspan(used));
    used += done;
    if (used > max_bytes) refuse_size(path_, max_bytes, "more");
    if (done < block) break;
  }
  text.resize(used);
  return text;
}

void File::write(std::span<const std::byte> bytes) {
  observe("write", bytes.size(), bytes);
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
  observe("sync", size_);
  sync_descriptor(fd_.get(), fmt::format("{} bytes of {}", size_, path_));
}

void File::close() {
  // close() releases the descriptor even if it fails, also with EINTR, so the descriptor is closed only once.
  const int fd = fd_.release();
  const FaultKind fault = fault_here("close");
  const bool failed = ::close(fd) != 0 && errno != EINTR;
  if (fails(fault) || failed) fail_file(fmt::format("close {} after {} bytes", path_, size_), errno);
}

LockState File::try_lock() const { return lock_descriptor(fd_.get(), path_); }

Descriptor File::duplicate() const {
  Descriptor copy(::fcntl(fd_.get(), F_DUPFD_CLOEXEC, 0));
  if (!copy) fail_file("hold " + path_, errno);
  return copy;
}

FileId File::identity() const { return id_in(status_of(fd_.get(), path_)); }

std::string read_whole_file(const std::string& path, std::uint64_t max_bytes) {
  return File::open(path).read_all(max_bytes);
}

std::string read_file_or_pipe(const std::string& path, std::uint64_t max_bytes) {
  return File::open_stream(path).read_all(max_bytes);
}

std::string real_path(const std::string& path) {
  const Handle<char*, free_text, nullptr> real(::realpath(system_path(path), nullptr));
  return real ? real.get() : "";
}

std::string read_file_below(const std::string& path, std::span<const std::string> roots, std::uint64_t max_bytes) {
  File file = File::open(path);
  const std::string place = real_path(path);
  const bool is_below = std::ranges::any_of(roots, [&](const std::string& root) {
    const std::string real = real_path(root);
    return !real.empty() && place.starts_with(real.ends_with('/') ? real : real + '/');
  });
  // The opened file must be the one at the resolved path, even if another process changes links concurrently.
  const std::optional<struct stat> found = status_of_path(place);
  if (is_below && found && id_in(*found) == file.identity()) return file.read_all(max_bytes);
  fail({.code = ExitCode::kFileIo,
        .subject = fmt::format("cannot read {}: a link to {}, outside of its folder", path, place),
        .remedy = "put the file itself there if it belongs to the folder",
        .show_place = false});
}

void rename_file(const std::string& from, const std::string& to) {
  if (faulty("rename", [&] { return ::rename(system_path(from), system_path(to)); }) != 0) {
    fail_file(fmt::format("rename {} to {}", from, to), errno);
  }
}

}  // namespace megalith
