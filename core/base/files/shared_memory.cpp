#include "core/base/files/shared_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace megalith {

void SharedMemory::Unmap::operator()(void* data) const { ::munmap(data, bytes); }

SharedMemory::SharedMemory(Descriptor file, std::size_t bytes) : file_(std::move(file)) {
  void* const data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
  if (data != MAP_FAILED) memory_ = {data, Unmap{bytes}};
}

SharedMemory SharedMemory::create(std::size_t bytes) {
  Descriptor file(::memfd_create("megalith", MFD_CLOEXEC));
  if (!file || ::ftruncate(file.get(), static_cast<off_t>(bytes)) != 0) return {};
  return {std::move(file), bytes};
}

SharedMemory SharedMemory::open(const std::string& ticket, std::size_t bytes) {
  Descriptor file(::open(ticket.c_str(), O_RDWR | O_CLOEXEC));
  struct stat facts {};
  if (!file || ::fstat(file.get(), &facts) != 0) return {};
  if (static_cast<std::size_t>(facts.st_size) != bytes) return {};  // a larger mapping would raise SIGBUS
  return {std::move(file), bytes};
}

std::string SharedMemory::ticket() const { return fmt::format("/proc/{}/fd/{}", ::getpid(), file_.get()); }

}  // namespace megalith
