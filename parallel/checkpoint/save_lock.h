// Two runs that save into one folder would overwrite and prune each other's checkpoints: the second is refused.
#pragma once

#include <string>

#include "core/base/files/file.h"

namespace megalith {

// Holds the folder until this object or its process ends, however that happens, so a run that was killed keeps nobody
// out; its processes may need a moment to end, for which the next one waits. One rank of a run holds it. Error kFileIo
// where another run does, and a warning where the file system knows no locks.
class SaveLock {
 public:
  explicit SaveLock(const std::string& folder);  // exists

  // Before a save into what is now under the folder's name: where that is another folder, or another lock is in it,
  // this one is held from now on, with a warning.
  void hold(const Directory& folder);

 private:
  void take(const Directory& folder, bool waits);

  File file_;
};

}  // namespace megalith
