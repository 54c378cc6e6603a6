#include "core/base/exit_record.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>

namespace megalith {

namespace {

std::atomic<int> linked{-1}, recorded{-1};

}  // namespace

void record_exit_code_to(int descriptor) noexcept { linked = descriptor; }
int recorded_exit_code() noexcept { return recorded; }

void record_exit_code(int code) noexcept {
  int none = -1;
  recorded.compare_exchange_strong(none, code);
  const auto byte = static_cast<char>(code);
  if (const int descriptor = linked; descriptor >= 0) static_cast<void>(!::write(descriptor, &byte, 1));
  const char* const path = std::getenv("MEGALITH_EXIT_CODES");
  if (path == nullptr || *path == '\0') return;
  const int file = ::open(path, O_WRONLY | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (file < 0) return;
  const auto digit = [code](int unit) { return static_cast<char>('0' + code / unit % 10); };
  const std::array line = {digit(100), digit(10), digit(1), '\n'};
  static_cast<void>(!::write(file, line.data(), line.size()));
  ::close(file);
}

}  // namespace megalith
