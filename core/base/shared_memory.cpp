#include "core/base/shared_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

namespace megalith {

SharedMemory::SharedMemory(int file, std::size_t bytes) : file_(file) {
  void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (data == MAP_FAILED) return;
  data_ = data;
  bytes_ = bytes;
}

SharedMemory SharedMemory::create(std::size_t bytes) {
  const int file = memfd_create("megalith", MFD_CLOEXEC);
  if (file < 0) return {};
  if (ftruncate(file, static_cast<off_t>(bytes)) != 0) {
    close(file);
    return {};
  }
  return {file, bytes};
}

SharedMemory SharedMemory::open(const std::string& ticket, std::size_t bytes) {
  const int file = ::open(ticket.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return {};
  struct stat facts {};
  if (fstat(file, &facts) != 0 || static_cast<std::size_t>(facts.st_size) != bytes) {  // beyond its end lies SIGBUS
    close(file);
    return {};
  }
  return {file, bytes};
}

SharedMemory::~SharedMemory() {
  if (data_ != nullptr) munmap(data_, bytes_);
  if (file_ >= 0) close(file_);
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : file_(std::exchange(other.file_, -1)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  std::swap(file_, other.file_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

std::string SharedMemory::ticket() const { return fmt::format("/proc/{}/fd/{}", getpid(), file_); }

}  // namespace megalith
