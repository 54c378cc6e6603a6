// Wrappers of file system calls for file.cpp, directory.cpp and output_file.cpp only.
#pragma once

#include <sys/stat.h>

#include <cerrno>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/files/fault.h"
#include "core/base/files/file.h"

namespace megalith {

// Throws an Error (kFileIo): "cannot WHAT: reason of `error`". An empty `remedy` selects the default for `error`.
[[noreturn]] void fail_file(const std::string& what, int error, const std::string& remedy = {});

// Returns the path for a system call. A path with a NUL byte is an Error.
const char* system_path(const std::string& path);

template <class Call>
auto retry_interrupted(Call&& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

// Returns whether `fault` makes an operation fail; sets errno if so.
inline bool fails(FaultKind fault) {
  const int error = fault == FaultKind::kEio      ? EIO
                    : fault == FaultKind::kEnospc ? ENOSPC
                    : fault == FaultKind::kEnolck ? ENOLCK
                                                  : 0;
  if (error != 0) errno = error;
  return error != 0;
}

// Runs a call that fails, or is interrupted once, if a fault requires it.
template <class Call>
auto faulty(std::string_view operation, Call&& call) -> decltype(call()) {
  const FaultKind fault = fault_here(operation);
  if (fails(fault)) return -1;
  bool interrupted = fault == FaultKind::kEintr;
  return retry_interrupted([&]() -> decltype(call()) {
    if (!std::exchange(interrupted, false)) return call();
    errno = EINTR;
    return -1;
  });
}

// Calls fsync or flock on a file or directory.
void sync_descriptor(int fd, const std::string& what);
LockState lock_descriptor(int fd, const std::string& what);

inline FileId id_in(const struct stat& info) { return {.device = info.st_dev, .inode = info.st_ino}; }

// Returns the result of fstat or stat; none if the path does not exist.
struct stat status_of(int fd, const std::string& what);
std::optional<struct stat> status_of_path(const std::string& path);

}  // namespace megalith
