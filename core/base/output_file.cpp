#include "core/base/output_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <utility>

#include "core/base/error.h"
#include "core/base/fault.h"

namespace megalith {

namespace {

constexpr std::size_t kBufferBytes = std::size_t{1} << 20;

Directory directory_of(const std::string& path, const FileObserver* observer) {
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  return Directory::open(parent.empty() ? "." : parent.string(), observer);
}

}  // namespace

OutputFile::OutputFile(std::string path, const char* scope, const FileObserver* observer)
    : scope_(scope),
      path_(std::move(path)),
      temporary_path_(fmt::format("{}.tmp-{}", path_, ::getpid())),
      observer_(observer) {
  const FaultScope here(scope_);
  buffer_.reserve(kBufferBytes);
  if (observer_ != nullptr) (*observer_)({.name = "create", .path = temporary_path_});
  file_ = File::create(temporary_path_, path_);
  file_.observe(observer_, temporary_path_);
}

OutputFile::~OutputFile() {
  if (!committed_) ::unlink(temporary_path_.c_str());
}

void OutputFile::write(std::span<const std::byte> bytes) {
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  if (buffer_.size() >= kBufferBytes) flush();
}

void OutputFile::write(std::string_view text) { write(std::as_bytes(std::span(text.data(), text.size()))); }

void OutputFile::flush() {
  const FaultScope here(scope_);
  file_.write(buffer_);
  buffer_.clear();
}

void OutputFile::sync() {
  flush();
  const FaultScope here(scope_);
  file_.sync();
}

void OutputFile::commit() {
  require(!committed_, "OutputFile: committed twice");
  sync();
  const FaultScope here(scope_);
  file_.close();
  if (observer_ != nullptr) (*observer_)({.name = "rename", .path = temporary_path_, .target = path_});
  rename_file(temporary_path_, path_);
  committed_ = true;
  directory_of(path_, observer_).sync();
}

void remove_file(const std::string& path, const FileObserver* observer) {
  const Directory directory = directory_of(path, observer);
  const std::string name = std::filesystem::path(path).filename().string();
  if (!directory.contains(name)) return;
  directory.remove_file(name);
  directory.sync();
}

}  // namespace megalith
