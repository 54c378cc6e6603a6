// Folder of one process inside a shared one, such as /dev/shm. The process removes it at its end.
// After a kill, the next start of a program that makes such a folder removes it.
#pragma once

#include <optional>
#include <string>

#include "core/base/files/file.h"

namespace megalith {

class ScratchFolder {
 public:
  // Makes PARENT/NAME-USER-PID-N and removes folders of ended processes of the same name and user.
  // A lock identifies them: it ends with its process and works across containers, which may reuse process ids.
  // None if the parent does not exist, is not writable or does not support locks.
  static std::optional<ScratchFolder> make(const std::string& parent, const std::string& name);
  ~ScratchFolder() { remove(); }
  ScratchFolder(ScratchFolder&&) noexcept = default;
  ScratchFolder& operator=(ScratchFolder&&) = delete;

  const std::string& path() const { return folder_.path(); }
  void remove() noexcept;

 private:
  ScratchFolder(Directory parent, Directory folder, std::string name);

  Directory parent_;
  Directory folder_;  // locked; none after remove()
  std::string name_;
};

}  // namespace megalith
