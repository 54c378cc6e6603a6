#include "core/base/files/output_file.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <random>
#include <utility>

#include "core/base/error.h"
#include "core/base/files/fault.h"
#include "core/base/files/file_calls.h"

namespace megalith {

namespace {

constexpr std::size_t kBufferBytes = std::size_t{1} << 20;

Directory directory_of(const std::string& path, const FileObserver* observer) {
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  return Directory::open(parent.empty() ? "." : parent.string(), observer);
}

std::string name_of(const std::string& path) { return std::filesystem::path(path).filename().string(); }

// "NAME.tmp-0123456789abcdef"
constexpr std::string_view kMark = ".tmp-";
constexpr std::size_t kDigits = 16;

std::string temporary_of(const std::string& path) {
  std::random_device device;
  return fmt::format("{}{}{:08x}{:08x}", path, kMark, device(), device());
}

bool is_temporary_of(std::string_view entry, std::string_view name) {
  if (entry.size() != name.size() + kMark.size() + kDigits || !entry.starts_with(name)) return false;
  const std::string_view rest = entry.substr(name.size());
  return rest.starts_with(kMark) &&
         rest.substr(kMark.size()).find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

// Removes temporary files of killed writers; a live writer holds its lock.
// Errors are ignored, since the next call tries again.
void remove_leftovers(const std::string& path) {
  const FaultScope here("leftovers");
  try {
    const Directory directory = directory_of(path, nullptr);
    const std::string name = name_of(path);
    for (const DirectoryEntry& entry : directory.list()) {
      if (entry.type != EntryType::kFile || !is_temporary_of(entry.name, name)) continue;
      const File left = directory.open_file(entry.name);
      if (left.try_lock() == LockState::kTaken) directory.remove_file(entry.name);
    }
  } catch (const Error&) {
  }
}

const char* kind_of(mode_t mode) {
  if (S_ISREG(mode)) return "a regular file";
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISLNK(mode)) return "a symbolic link";
  return S_ISFIFO(mode) ? "a pipe" : S_ISSOCK(mode) ? "a socket" : "a device";
}

// Rejects anything but a regular file, since a rename or removal would replace it, as root even a device.
void require_regular_or_nothing(const std::string& path, std::string_view operation) {
  const std::optional<NameInfo> there = look_at_name(path);
  if (!there || there->type == EntryType::kFile) return;
  fail({.code = ExitCode::kFileIo,
        .subject = fmt::format("cannot {} {}", operation, path),
        .expected = "a regular file or nothing under this name",
        .got = there->kind,
        .remedy = there->kind == kind_of(S_IFLNK) ? "name the file that the link leads to" : "name another file",
        .show_place = false});
}

// Returns whether both paths are one file. Errors of stat mean false; opening the files reports them.
bool is_same_file(const std::string& a, const std::string& b) {
  const auto plain = [](const std::string& path) { return std::filesystem::path(path).lexically_normal(); };
  if (plain(a) == plain(b)) return true;
  struct stat first {
  }, second{};
  return ::stat(a.c_str(), &first) == 0 && ::stat(b.c_str(), &second) == 0 && id_in(first) == id_in(second);
}

}  // namespace

std::optional<NameInfo> look_at_name(const std::string& path) {
  struct stat info {};
  if (::lstat(system_path(path), &info) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) return {};
    fail_file("look at " + path, errno);
  }
  const EntryType type = S_ISREG(info.st_mode)   ? EntryType::kFile
                         : S_ISDIR(info.st_mode) ? EntryType::kDirectory
                                                 : EntryType::kOther;
  return NameInfo{.type = type, .kind = kind_of(info.st_mode), .is_own = info.st_uid == ::geteuid()};
}

void require_other_file(const PathOfFlag& output, const PathOfFlag& other) {
  if (output.path.empty() || other.path.empty() || !is_same_file(output.path, other.path)) return;
  refuse_usage(fmt::format("{} and {}", output.flag, other.flag),
               {.expected = "two files",
                .got = output.path == other.path ? fmt::format("{} for both", output.path)
                                                 : fmt::format("{} and {}, which are one", output.path, other.path),
                .remedy = fmt::format("name another file for {}", output.flag)});
}

OutputFile::OutputFile(std::string path, const char* scope, const FileObserver* observer)
    : scope_(scope), path_(std::move(path)), observer_(observer) {
  require_regular_or_nothing(path_, "write");
  remove_leftovers(path_);
  const FaultScope here(scope_);
  buffer_.reserve(kBufferBytes);
  do {
    temporary_path_ = temporary_of(path_);
    file_ = File::create_temporary(temporary_path_, path_, observer_);
  } while (!is_held());
}

// Returns false if another program removed the file as a leftover before the lock was acquired.
bool OutputFile::is_held() const {
  const FaultScope here("leftovers");
  try {
    if (file_.try_lock() == LockState::kHeld) return false;
    return look_at(temporary_path_).has_value();
  } catch (const Error&) {
    return true;  // continues without a lock, as on a file system without locks
  }
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
  require_regular_or_nothing(path_, "write");
  sync();
  const FaultScope here(scope_);
  const Descriptor lock = file_.duplicate();  // the lock must last until the rename
  file_.close();
  if (observer_ != nullptr) (*observer_)({.name = "rename", .path = temporary_path_, .target = path_});
  rename_file(temporary_path_, path_);
  committed_ = true;
  directory_of(path_, observer_).sync();
}

void remove_file(const std::string& path, const FileObserver* observer) {
  const Directory directory = directory_of(path, observer);
  const std::string name = name_of(path);
  if (!directory.contains(name)) return;
  require_regular_or_nothing(path, "remove");
  directory.remove_file(name);
  directory.sync();
}

}  // namespace megalith
