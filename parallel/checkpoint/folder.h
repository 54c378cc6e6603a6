// Folder of checkpoints: branches, leftovers of killed saves, and pruning. A run that resumes from an older checkpoint
// starts a branch. The folder then follows the branch that was saved last. Each checkpoint records its parent and a
// serial number. So the branch is known at any time, even before abandoned checkpoints are renamed.
#pragma once

#include <exception>
#include <functional>
#include <new>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/checkpoint/checkpoint.h"
#include "parallel/comm/on_all_ranks.h"

namespace megalith {

// Returns the error of `work`, or "". Exhausted memory is thrown instead, to end the program on all ranks; it says
// nothing about the files.
inline std::string attempt(const std::function<void()>& work) {
  try {
    work();
    return {};
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    return *error.what() == '\0' ? "unknown error" : error.what();
  }
}

// Collective. Returns "" if `work` succeeded on every rank, else one text on all ranks that lists the failures.
inline std::string attempt_on_all_ranks(Communicator& ranks, const std::function<void()>& work) {
  const auto fails_as_error = [&] {
    const std::string problem = attempt(work);
    if (!problem.empty()) throw Error(ExitCode::kFileIo, problem);
  };
  return to_string(failures_on_all_ranks(ranks, fails_as_error), ranks);
}

// Appends an error to earlier errors.
inline void add_problem(std::string& problems, const std::string& problem) {
  if (!problem.empty()) problems += (problems.empty() ? "" : "; ") + problem;
}

// Checkpoints of a folder, the latest step first. Reads only manifests, except those that `history` knows.
std::vector<std::string> checkpoint_names(const Directory& root);
std::vector<Kin> list_checkpoints(const Directory& root, CheckpointHistory& history);

// Checkpoint that was saved last. Checkpoints of older programs have no serial number and are ordered by step. Null if
// none is readable.
const Kin* saved_last(const std::vector<Kin>& all);
// Checkpoint with this identity, or null.
const Kin* find_kin(const std::vector<Kin>& all, const CheckpointId& id);

// Checkpoints that lead to `head`, and the others, both with the latest step first. If a parent is unknown (older
// program, or removed), all older checkpoints count as live.
struct Branch {
  std::vector<std::string> live;  // from `head` on
  std::vector<std::string> left;
};
Branch branch_of(const std::vector<Kin>& all, const Kin& head);

// Unused name that loading ignores: "step_0000030.abandoned-1".
std::string name_aside(const Directory& root, const std::string& checkpoint);
bool is_name_aside(std::string_view name, std::string_view checkpoint);

// Renames checkpoints to such names and logs this. Returns the errors, or "".
std::string move_aside(const Directory& root, const std::vector<std::string>& names, const std::string& head);
void report_moved(const Directory& root, const std::string& name, const std::string& aside, const std::string& head);

// Both functions continue after a failed removal, and return what was not removed and why, or "".

// Removes directories of killed saves. A living process holds a lock on its save, so its directory stays.
std::string remove_stale_temporaries(const Directory& root);

// Removes the checkpoints of `names`, the latest step first, after the first `keep_last` verified ones; 0 keeps all.
// Steps that are multiples of `retain_interval` stay; 0: none.
// `just_saved` stays and counts as verified. Others count if their sizes match, and their name is in `verified` or all
// hashes match. Damaged checkpoints newer than these stay for inspection.
struct PruneRequest {
  std::vector<std::string> names;
  int keep_last = 0;
  std::int64_t retain_interval = 0;
  std::string just_saved = {};
  std::set<std::string>& verified;
};
std::string prune_checkpoints(const Directory& root, const PruneRequest& request);

// "step_0000100.tmp-3f9a": a random name.
std::string new_temporary_name(const std::string& checkpoint);

}  // namespace megalith
