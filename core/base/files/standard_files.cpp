#include "core/base/files/standard_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>

#include "core/base/error.h"

namespace megalith {

void guard_standard_files() {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  for (int file = STDIN_FILENO; file <= STDERR_FILENO; ++file) {
    if (::fcntl(file, F_GETFD) >= 0 || errno != EBADF) continue;
    static_cast<void>(::open("/dev/null", file == STDERR_FILENO ? O_WRONLY : O_RDONLY));  // gets the lowest number
  }
}

void check_standard_output() {
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) throw Error(ExitCode::kFileIo, kOutputLost);
}

}  // namespace megalith
