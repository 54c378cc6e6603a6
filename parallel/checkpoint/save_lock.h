// Lock of a --save folder. It rejects a second run, which would overwrite and prune this run's checkpoints.
#pragma once

#include <string>

#include "core/base/files/file.h"

namespace megalith {

// Holds the folder until this object or its process ends for any reason. So killed runs block nobody; the next run
// waits a short time for their processes to end. One rank of a run holds it. Error kFileIo if another run holds it; a
// warning if the file system has no locks.
class SaveLock {
 public:
  explicit SaveLock(const std::string& folder);  // must exist

  // Called before a save. If the folder's name now refers to another folder, or the lock file was replaced, locks the
  // new one with a warning.
  void hold(const Directory& folder);

 private:
  void take(const Directory& folder, bool waits);

  File file_;
};

}  // namespace megalith
