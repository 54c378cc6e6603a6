#include "core/base/files/file_calls.h"

#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstring>

#include "core/base/error.h"

namespace megalith {
namespace {

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
    case EFBIG: return "free space or lift the limit";
    case EMFILE:
    case ENFILE: return "raise the limit of open files (ulimit -n)";
    case EIO: return "the disk or its connection fails: see the kernel's log";
    default: return "";
  }
}

}  // namespace

void fail_file(const std::string& what, int error, const std::string& remedy) {
  const char* reason = strerrordesc_np(error);
  const char* name = strerrorname_np(error);
  fail({.code = ExitCode::kFileIo,
        .subject = fmt::format("cannot {}: {} ({})", what, reason == nullptr ? "unknown error" : reason,
                               name == nullptr ? "?" : name),
        .remedy = remedy.empty() ? remedy_for(error) : remedy,
        .show_place = false});
}

const char* system_path(const std::string& path) {
  if (path.find('\0') == std::string::npos) return path.c_str();
  fail({.code = ExitCode::kFileIo,
        .subject = fmt::format("cannot look for a path with a NUL byte: {}", path),
        .remedy = "check the path",
        .show_place = false});
}

void sync_descriptor(int fd, const std::string& what) {
  if (faulty("sync", [&] { return ::fsync(fd); }) == 0) return;
  if (errno == EINVAL || errno == ENOTSUP) return;  // a file system without fsync for this kind of file
  fail_file("sync " + what, errno);
}

LockState lock_descriptor(int fd, const std::string& what) {
  if (faulty("lock", [&] { return ::flock(fd, LOCK_EX | LOCK_NB); }) == 0) return LockState::kTaken;
  switch (errno) {
    case EWOULDBLOCK: return LockState::kHeld;
    case ENOLCK:
    case ENOSYS:
    case EINVAL:
    case EOPNOTSUPP: return LockState::kUnsupported;
    default: fail_file("lock " + what, errno);
  }
}

struct stat status_of(int fd, const std::string& what) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) fail_file("look at " + what, errno);
  return info;
}

std::optional<struct stat> status_of_path(const std::string& path) {
  struct stat info {};
  if (::stat(system_path(path), &info) == 0) return info;
  if (errno == ENOENT || errno == ENOTDIR) return {};
  fail_file("look at " + path, errno);
}

}  // namespace megalith
