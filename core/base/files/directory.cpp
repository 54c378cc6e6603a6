// Implementation of Directory (file.h).
#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "core/base/error.h"
#include "core/base/files/file.h"
#include "core/base/files/file_calls.h"

namespace megalith {
namespace {

void check_component(const std::string& name) {
  require(!name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
              name.find('\0') == std::string::npos,
          "the name of a file in a directory must be a single path component");
}

EntryType type_of(const struct stat& info) {
  if (S_ISREG(info.st_mode)) return EntryType::kFile;
  return S_ISDIR(info.st_mode) ? EntryType::kDirectory : EntryType::kOther;
}

EntryType type_at(int directory, const char* name) {
  struct stat info {};
  return ::fstatat(directory, name, &info, AT_SYMLINK_NOFOLLOW) == 0 ? type_of(info) : EntryType::kOther;
}

// Makes each missing part of `path` and calls made(part) after each.
template <class Made>
void make_each(const std::string& path, const FileObserver* observer, Made&& made) {
  for (std::size_t end = 0; end != std::string::npos;) {
    end = path.find('/', end + 1);
    const std::string part = path.substr(0, end);
    if (look_at(part)) continue;
    if (observer != nullptr) (*observer)({.name = "mkdir", .path = part});
    if (faulty("mkdir", [&] { return ::mkdir(part.c_str(), 0777); }) != 0 && errno != EEXIST)
      fail_file("create directory " + part, errno);
    made(part);
  }
}

}  // namespace

std::optional<PathInfo> look_at(const std::string& path) {
  const std::optional<struct stat> info = status_of_path(path);
  if (!info) return {};
  return PathInfo{.type = type_of(*info), .size = static_cast<std::uint64_t>(info->st_size)};
}

std::string Directory::path_of(const std::string& name) const {
  return !path_.empty() && path_.back() == '/' ? path_ + name : path_ + "/" + name;
}

void Directory::observe(std::string_view operation, const std::string& path, const std::string& target) const {
  if (observer_ != nullptr) (*observer_)({.name = operation, .path = path, .target = target});
}

std::string Directory::begin(std::string_view operation, const std::string& name) const {
  check_component(name);
  std::string path = path_of(name);
  observe(operation, path);
  return path;
}

bool Directory::exists(const std::string& path) { return look_at(path).has_value(); }

Directory Directory::open(const std::string& path, const FileObserver* observer) {
  Directory directory;
  directory.path_ = path;
  directory.observer_ = observer;
  directory.observe("open", path);
  directory.fd_ =
      Descriptor(faulty("open", [&] { return ::open(system_path(path), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
  if (!directory.fd_) fail_file("open directory " + path, errno);
  return directory;
}

Directory Directory::create(const std::string& path, const FileObserver* observer) {
  make_each(path, observer, [&](const std::string& made) {
    const std::size_t slash = made.find_last_of('/');
    const std::string parent = slash == std::string::npos ? "." : slash == 0 ? "/" : made.substr(0, slash);
    Directory::open(parent, observer).sync();
  });
  return open(path, observer);
}

void make_directories(const std::string& path) {
  make_each(path, nullptr, [](const std::string&) {});
}

template <class Entry>
Entry Directory::open_below(std::string_view operation, std::string_view what, const std::string& name,
                            int flags) const {
  Entry entry;
  entry.path_ = begin(operation, name);
  entry.observer_ = observer_;
  entry.fd_ = Descriptor(
      faulty(operation, [&] { return ::openat(fd_.get(), name.c_str(), flags | O_NOFOLLOW | O_CLOEXEC, 0666); }));
  if (!entry.fd_) {
    const int error = errno;
    const bool is_link = error == ELOOP || error == ENOTDIR;
    fail_file(fmt::format("{} {}", what, entry.path_), error,
              is_link ? "symbolic links are not followed inside a checkpoint directory" : "");
  }
  return entry;
}

Directory Directory::open_directory(const std::string& name) const {
  return open_below<Directory>("open", "open directory", name, O_RDONLY | O_DIRECTORY);
}

bool Directory::make_directory(const std::string& name) const {
  const std::string path = begin("mkdir", name);
  if (faulty("mkdir", [&] { return ::mkdirat(fd_.get(), name.c_str(), 0777); }) == 0) return true;
  if (errno == EEXIST) return false;
  fail_file("create directory " + path, errno);
}

File Directory::open_file(const std::string& name) const {
  // O_NONBLOCK: opening a named pipe must not hang. The flag has no effect on the regular files that pass the check.
  File file = open_below<File>("open", "open", name, O_RDONLY | O_NONBLOCK);
  file.check_regular();
  return file;
}

File Directory::create_file(const std::string& name) const {
  return open_below<File>("create", "create", name, O_WRONLY | O_CREAT | O_EXCL);
}

File Directory::open_to_lock(const std::string& name) const {
  // O_RDWR because networked file systems lock only files that are open for writing.
  return open_below<File>("open", "open", name, O_RDWR | O_CREAT | O_NONBLOCK);
}

std::string Directory::read_text(const std::string& name, std::uint64_t max_bytes) const {
  return open_file(name).read_all(max_bytes);
}

std::vector<DirectoryEntry> Directory::list() const {
  observe("list", path_);
  // A separate descriptor, because reading a directory moves the descriptor's offset.
  Descriptor own(faulty("list", [&] { return ::openat(fd_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
  if (!own) fail_file("list " + path_, errno);
  Handle<DIR*, ::closedir, nullptr> stream(::fdopendir(own.get()));
  if (!stream) fail_file("list " + path_, errno);
  own.release();
  std::vector<DirectoryEntry> entries;
  errno = 0;
  while (const dirent* entry = ::readdir(stream.get())) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") entries.push_back({name, type_at(fd_.get(), entry->d_name)});
    errno = 0;
  }
  if (errno != 0) fail_file("list " + path_, errno);
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return entries;
}

std::optional<FileId> Directory::identity_of(const std::string& name) const {
  check_component(name);
  struct stat info {};
  if (::fstatat(fd_.get(), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0) return id_in(info);
  if (errno == ENOENT) return {};
  fail_file("look at " + path_of(name), errno);
}

FileId Directory::identity() const { return id_in(status_of(fd_.get(), path_)); }

void Directory::rename(const std::string& from, const std::string& to) const {
  check_component(from);
  check_component(to);
  observe("rename", path_of(from), path_of(to));
  if (faulty("rename", [&] { return ::renameat(fd_.get(), from.c_str(), fd_.get(), to.c_str()); }) != 0) {
    fail_file("rename " + path_of(from) + " to " + to, errno);
  }
}

void Directory::exchange(const std::string& a, const std::string& b) const {
  check_component(a);
  check_component(b);
  observe("exchange", path_of(a), path_of(b));
  if (faulty("rename", [&] { return ::renameat2(fd_.get(), a.c_str(), fd_.get(), b.c_str(), RENAME_EXCHANGE); }) == 0) {
    return;
  }
  if (errno != EINVAL && errno != ENOSYS) fail_file("exchange " + path_of(a) + " and " + b, errno);
  const std::string aside = a + "x";
  rename(b, aside);
  rename(a, b);
  rename(aside, a);
}

void Directory::remove_file(const std::string& name) const {
  const std::string path = begin("remove", name);
  if (faulty("remove", [&] { return ::unlinkat(fd_.get(), name.c_str(), 0); }) != 0) fail_file("remove " + path, errno);
}

void Directory::remove_tree(const std::string& name) const {
  std::optional<Error> first;
  {
    const Directory directory = open_directory(name);
    for (const DirectoryEntry& entry : directory.list()) {
      try {
        if (entry.type == EntryType::kDirectory) {
          directory.remove_tree(entry.name);
        } else {
          directory.remove_file(entry.name);
        }
      } catch (const Error& error) {
        if (!first) first = error;
      }
    }
  }
  if (first) throw Error(*first);
  const std::string path = begin("remove", name);
  if (faulty("remove", [&] { return ::unlinkat(fd_.get(), name.c_str(), AT_REMOVEDIR); }) != 0)
    fail_file("remove directory " + path, errno);
}

void Directory::sync() const {
  observe("sync", path_);
  sync_descriptor(fd_.get(), "directory " + path_);
}

std::uint64_t Directory::free_bytes() const {
  observe("space", path_);
  struct statvfs info {};
  if (faulty("space", [&] { return ::fstatvfs(fd_.get(), &info); }) != 0) {
    if (errno == ENOSPC) return 0;  // a full disk simulated by a fault
    fail_file("ask for the free space of " + path_, errno);
  }
  return static_cast<std::uint64_t>(info.f_bavail) * info.f_frsize;
}

void Directory::check_writable() const {
  if (::faccessat(fd_.get(), ".", W_OK | X_OK, 0) != 0) fail_file("write to directory " + path_, errno);
}

bool Directory::try_lock() const {
  observe("lock", path_);
  return lock_descriptor(fd_.get(), path_) == LockState::kTaken;
}

}  // namespace megalith
