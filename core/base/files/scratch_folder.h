// A folder of this process alone, inside one that programs share, such as /dev/shm. It goes with the process: when it
// ends in order at once, after a kill at the next start of a program that asks for one.
#pragma once

#include <optional>
#include <string>

#include "core/base/files/file.h"

namespace megalith {

class ScratchFolder {
 public:
  // PARENT/NAME-USER-PID-N, after removing those of the same name and user whose process is gone. A lock says which
  // that are: it ends with its process, and holds across containers, whose process ids say nothing. None where the
  // parent lacks, cannot be written or knows no locks.
  static std::optional<ScratchFolder> make(const std::string& parent, const std::string& name);
  ~ScratchFolder() { remove(); }
  ScratchFolder(ScratchFolder&&) noexcept = default;
  ScratchFolder& operator=(ScratchFolder&&) = delete;

  const std::string& path() const { return folder_.path(); }
  void remove() noexcept;

 private:
  ScratchFolder(Directory parent, Directory folder, std::string name);

  Directory parent_;
  Directory folder_;  // locked; none once it is removed
  std::string name_;
};

}  // namespace megalith
