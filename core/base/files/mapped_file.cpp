#include "core/base/files/mapped_file.h"

#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstring>

#include "core/base/error.h"
#include "core/base/exit_record.h"

namespace megalith {

namespace {

// Mappings that the handler of SIGBUS can report. Mappings beyond the table's capacity are not reported.
struct Mapping {
  std::atomic<const std::byte*> begin = nullptr;
  std::size_t size = 0;
  std::array<char, 512> path{};
};
constinit std::array<Mapping, 64> mappings;

void remember(const std::byte* begin, std::size_t size, const std::string& path) {
  static const std::byte kTaken{};
  for (Mapping& mapping : mappings) {
    const std::byte* free = nullptr;
    if (!mapping.begin.compare_exchange_strong(free, &kTaken)) continue;
    mapping.size = size;
    std::strncpy(mapping.path.data(), path.c_str(), mapping.path.size() - 1);
    mapping.begin = begin;
    return;
  }
}

void forget(const std::byte* begin) {
  for (Mapping& mapping : mappings) {
    const std::byte* expected = begin;
    if (mapping.begin.compare_exchange_strong(expected, nullptr)) return;
  }
}

void write_text(const char* text) {
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text, std::strlen(text));
}

void end_on_bus_error(int, siginfo_t* info, void*) {
  for (const Mapping& mapping : mappings) {
    const std::byte* begin = mapping.begin;
    const auto* address = static_cast<const std::byte*>(info->si_addr);
    if (begin == nullptr || address < begin || address >= begin + mapping.size) continue;
    write_text("error: cannot read ");
    write_text(mapping.path.data());
    write_text(": it became shorter while it was in use, or its disk failed (SIGBUS)\n");
    record_exit_code(static_cast<int>(ExitCode::kFileIo));
    ::_exit(static_cast<int>(ExitCode::kFileIo));
  }
  std::signal(SIGBUS, SIG_DFL);
  std::raise(SIGBUS);
}

}  // namespace

void end_on_lost_mappings() {
  struct sigaction action {};
  action.sa_sigaction = end_on_bus_error;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGBUS, &action, nullptr);
}

MappedFile MappedFile::open(const std::string& path) {
  const File file = File::open(path);
  MappedFile mapped;
  mapped.path_ = path;
  mapped.stamp_ = file.stamp();
  if (file.size() > 0) {
    const std::span<const std::byte> bytes = file.map();
    mapped.memory_ = {bytes.data(), Unmap{bytes.size()}};
    remember(bytes.data(), bytes.size(), path);
  }
  return mapped;
}

void MappedFile::Unmap::operator()(const std::byte* begin) const {
  forget(begin);
  ::munmap(const_cast<std::byte*>(begin), bytes);
}

}  // namespace megalith
