#include "core/base/memory_limit.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>

namespace megalith {

namespace {

// Returns "" if the file cannot be read.
std::string_view own_status(char (&text)[8192]) {
  const int file = ::open("/proc/self/status", O_RDONLY | O_CLOEXEC);
  if (file < 0) return {};
  const ssize_t size = ::read(file, text, sizeof(text));
  ::close(file);
  return {text, static_cast<std::size_t>(std::max<ssize_t>(size, 0))};
}

// Parses a line such as "VmPeak:    123 kB".
std::size_t bytes_after(std::string_view key, std::string_view status) {
  const std::size_t at = status.find(key);
  if (at == std::string_view::npos) return 0;
  const std::size_t digits = std::min(status.find_first_of("0123456789", at), status.size());
  std::size_t kib = 0;
  std::from_chars(status.data() + digits, status.data() + status.size(), kib);
  return kib * 1024;
}

}  // namespace

std::optional<MemoryLimit> met_limit(std::size_t wanted, MemoryKind kind) {
  char text[8192];
  const std::string_view status = own_status(text);
  const std::size_t peak = bytes_after("VmPeak:", status), now = bytes_after("VmSize:", status);
  // Bytes freed since the failure. If `wanted` is known, nothing was freed since the failure.
  const std::size_t freed = wanted == kUnknownBytes ? peak - std::min(peak, now) : 0;
  struct Known {
    decltype(RLIMIT_AS) resource;
    MemoryLimit limit;
  };
  const Known known[] = {
      {RLIMIT_AS, {.flag = "-v", .what = "addresses", .bytes = 0, .used = peak}},
      {RLIMIT_DATA, {.flag = "-d", .what = "data", .bytes = 0, .used = bytes_after("VmData:", status) + freed}},
      {RLIMIT_MEMLOCK, {.flag = "-l", .what = "locked memory", .bytes = 0, .used = bytes_after("VmLck:", status)}}};
  std::optional<MemoryLimit> least;
  for (const Known& each : known) {
    rlimit allowed{};
    if (each.resource == RLIMIT_MEMLOCK && kind != MemoryKind::kLocked) continue;
    if (::getrlimit(each.resource, &allowed) != 0 || allowed.rlim_cur == RLIM_INFINITY) continue;
    MemoryLimit limit = each.limit;
    limit.bytes = allowed.rlim_cur;
    limit.used = std::min(limit.used, limit.bytes);
    const auto room = [](const MemoryLimit& of) { return of.bytes - std::min(of.bytes, of.used); };
    if (!limit.leaves(wanted) && (!least || room(limit) < room(*least))) least = limit;
  }
  return least;
}

std::optional<MemoryLimit> met_limit_of_thread() {
  pthread_attr_t attributes;
  std::size_t stack = std::size_t{8} << 20;
  if (::pthread_getattr_default_np(&attributes) == 0) {
    ::pthread_attr_getstacksize(&attributes, &stack);
    ::pthread_attr_destroy(&attributes);
  }
  return met_limit(stack);
}

LimitText::LimitText(const MemoryLimit& limit)
    : size_(std::min(
          fmt::format_to_n(text_, sizeof(text_),
                           "ulimit {} allows this process {} KiB of {}, of which it took up to {}; raise that limit",
                           limit.flag, limit.bytes / 1024, limit.what, limit.used / 1024)
              .size,
          sizeof(text_))) {}

}  // namespace megalith
