#include "core/data/output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "core/base/error.h"

namespace megalith {

namespace {

constexpr std::size_t kBufferBytes = std::size_t{1} << 20;

[[noreturn]] void fail_on(const std::string& path, const char* call) {
  fail({.code = ExitCode::kFileIo,
        .subject = path,
        .expected = fmt::format("to {} it", call),
        .got = std::generic_category().message(errno),
        .remedy = "check the directory, its permissions and the free space",
        .show_place = false});
}

// Makes the names in the directory of `path` durable.
void sync_directory_of(const std::string& path) {
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  const std::string directory = parent.empty() ? "." : parent.string();
  const int descriptor = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) fail_on(directory, "open");
  const int result = ::fsync(descriptor);
  const int reason = errno;
  ::close(descriptor);
  errno = reason;
  // Some file systems cannot sync a directory and say EINVAL; their renames are as durable as they get.
  if (result != 0 && reason != EINVAL) fail_on(directory, "sync");
}

}  // namespace

OutputFile::OutputFile(std::string path)
    : path_(std::move(path)), temporary_path_(fmt::format("{}.tmp-{}", path_, ::getpid())) {
  descriptor_ = ::open(temporary_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (descriptor_ < 0) fail_call("create");
  buffer_.reserve(kBufferBytes);
}

OutputFile::~OutputFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(temporary_path_.c_str());
}

void OutputFile::fail_call(const char* call) const { fail_on(path_, call); }

void OutputFile::write(std::span<const std::byte> bytes) {
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  if (buffer_.size() >= kBufferBytes) flush();
}

void OutputFile::flush() {
  std::span<const std::byte> rest = buffer_;
  while (!rest.empty()) {
    const ssize_t written = ::write(descriptor_, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail_call("write");
    rest = rest.subspan(static_cast<std::size_t>(written));
  }
  buffer_.clear();
}

void OutputFile::sync() {
  flush();
  if (::fsync(descriptor_) != 0) fail_call("sync");
}

void OutputFile::commit() {
  require(descriptor_ >= 0, "OutputFile: committed twice");
  sync();
  if (::rename(temporary_path_.c_str(), path_.c_str()) != 0) fail_call("rename");
  ::close(std::exchange(descriptor_, -1));  // its bytes are on the disk since sync()
  sync_directory_of(path_);
}

void remove_file(const std::string& path) {
  if (::unlink(path.c_str()) == 0) {
    sync_directory_of(path);
  } else if (errno != ENOENT) {
    fail_on(path, "replace");
  }
}

}  // namespace megalith
