#include "core/base/files/scratch_folder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <utility>

#include "core/base/error.h"
#include "core/base/files/fault.h"

namespace megalith {

namespace {

void remove_dead(const Directory& parent, const std::string& prefix) {
  for (const DirectoryEntry& entry : parent.list()) {
    if (entry.type != EntryType::kDirectory || !entry.name.starts_with(prefix)) continue;
    try {
      if (const Directory folder = parent.open_directory(entry.name); folder.try_lock()) parent.remove_tree(entry.name);
    } catch (const Error&) {  // another process was faster or another user owns it: not fatal
    }
  }
}

// Locks a new folder. Returns none if another process removed the folder as a leftover before the lock.
std::optional<Directory> locked(const Directory& parent, const std::string& name) {
  try {
    Directory folder = parent.open_directory(name);
    if (folder.try_lock() && parent.contains(name)) return folder;
    parent.remove_tree(name);
  } catch (const Error&) {
  }
  return {};
}

}  // namespace

ScratchFolder::ScratchFolder(Directory parent, Directory folder, std::string name)
    : parent_(std::move(parent)), folder_(std::move(folder)), name_(std::move(name)) {}

std::optional<ScratchFolder> ScratchFolder::make(const std::string& parent_path, const std::string& name) {
  constexpr int kTries = 16;
  const FaultScope scope("scratch");
  try {
    Directory parent = Directory::open(parent_path);
    const std::string prefix = fmt::format("{}-{}-", name, getuid());
    remove_dead(parent, prefix);
    for (int i = 0; i < kTries; ++i) {
      const std::string own = fmt::format("{}{}-{}", prefix, getpid(), i);
      if (!parent.make_directory(own)) continue;
      if (std::optional<Directory> folder = locked(parent, own))
        return ScratchFolder(std::move(parent), std::move(*folder), own);
    }
  } catch (const Error&) {
  }
  return {};
}

void ScratchFolder::remove() noexcept {
  if (!folder_.is_open()) return;
  try {
    const FaultScope scope("scratch");
    const Directory locked = std::move(folder_);  // holds the lock until the removal
    parent_.remove_tree(name_);
  } catch (...) {  // the next start tries again
  }
}

}  // namespace megalith
