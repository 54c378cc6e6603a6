// How calls of the file system are made and fail. For file.cpp and directory.cpp only.
#pragma once

#include <cerrno>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/fault.h"
#include "core/base/file.h"

namespace megalith {

// An Error (kFileIo): "cannot WHAT: the reason of `error`", with the remedy of that error unless one is given.
[[noreturn]] void fail_file(const std::string& what, int error, const std::string& remedy = {});

// A path as the system takes it; an Error where it holds a NUL, at which the system would end it.
const char* system_path(const std::string& path);

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
  if (fault == FaultKind::kEio || fault == FaultKind::kEnospc || fault == FaultKind::kEnolck) {
    errno = fault == FaultKind::kEio ? EIO : fault == FaultKind::kEnospc ? ENOSPC : ENOLCK;
    return -1;
  }
  bool interrupted = fault == FaultKind::kEintr;
  return retry_interrupted([&]() -> decltype(call()) {
    if (!std::exchange(interrupted, false)) return call();
    errno = EINTR;
    return -1;
  });
}

// fsync and flock of a file or directory.
void sync_descriptor(int fd, const std::string& what);
LockState lock_descriptor(int fd, const std::string& what);

FileId identity_of_descriptor(int fd, const std::string& what);

}  // namespace megalith
