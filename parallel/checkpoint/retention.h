// Which checkpoints stay.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "core/base/file.h"

namespace megalith {

// Both go on where something cannot be removed, and return what stayed and why, or "".

// Removes the directories of saves that died. A save holds a lock on its own, so that one of a living process stays.
std::string remove_stale_temporaries(const Directory& root);

// Of `names`, the latest step first, removes those after the `keep_last` first verified ones; 0 keeps all. `just_saved`
// stays and counts as verified; another counts when its sizes are right and either `verified` holds its name or all its
// hashes are read and right. Damaged ones newer than these stay for the user to look at.
struct PruneRequest {
  std::vector<std::string> names;
  int keep_last = 0;
  std::string just_saved = {};
  std::set<std::string>& verified;
};
std::string prune_checkpoints(const Directory& root, const PruneRequest& request);

// Makes it disappear at once, under a temporary name, then removes it.
void remove_checkpoint(const Directory& root, const std::string& name);

// "step_0000100.tmp-3f9a": a name that nobody else has thought of.
std::string new_temporary_name(const std::string& checkpoint);

}  // namespace megalith
