#include "core/data/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "core/base/error.h"
#include "core/base/handle.h"

namespace megalith {

namespace {

[[noreturn]] void fail_open(const std::string& path, const std::string& reason) {
  fail({.code = ExitCode::kFileIo,
        .subject = path,
        .expected = "a readable file",
        .got = reason,
        .remedy = "check the path and its permissions",
        .show_place = false});
}

std::string system_reason() { return std::generic_category().message(errno); }

}  // namespace

MappedFile MappedFile::open(const std::string& path) {
  const Handle<int, [](int descriptor) { ::close(descriptor); }, -1> file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) fail_open(path, system_reason());
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) fail_open(path, system_reason());
  if (!S_ISREG(status.st_mode)) fail_open(path, S_ISDIR(status.st_mode) ? "a directory" : "not a regular file");

  MappedFile mapped;
  mapped.path_ = path;
  if (status.st_size > 0) {
    const auto size = static_cast<std::size_t>(status.st_size);
    void* address = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.get(), 0);
    if (address == MAP_FAILED) fail_open(path, system_reason());
    mapped.bytes_ = {static_cast<const std::byte*>(address), size};
  }
  return mapped;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace megalith
