// A folder of checkpoints: its branches, what killed saves left there, and which checkpoints stay. A run that went back
// to an older checkpoint leaves those after it behind; the folder then holds two branches, of which the one that was
// saved to last goes on. Each checkpoint names its parent and counts the saves of its folder, so that the branch is
// known at any moment, also when what is left behind still has its name.
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

// Steps that may fail: what went wrong in `work`, or "". Not for memory that ran out: that is thrown on, for the
// program to end on all ranks; it says nothing about the files.
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

// Collective. "" when `work` succeeded on every rank, else one text on all ranks that names the ranks and their errors.
inline std::string attempt_on_all_ranks(Communicator& ranks, const std::function<void()>& work) {
  const auto fails_as_error = [&] {
    const std::string problem = attempt(work);
    if (!problem.empty()) throw Error(ExitCode::kFileIo, problem);
  };
  return to_string(failures_on_all_ranks(ranks, fails_as_error), ranks);
}

// Adds what went wrong to what did before.
inline void add_problem(std::string& problems, const std::string& problem) {
  if (!problem.empty()) problems += (problems.empty() ? "" : "; ") + problem;
}

// All checkpoints of a folder, the latest step first. Only manifests are read, and not those that `history` knows.
std::vector<std::string> checkpoint_names(const Directory& root);
std::vector<Kin> list_checkpoints(const Directory& root, CheckpointHistory& history);

// The one that was saved last; older programs did not count, and theirs go by their step. Null: none can be read.
const Kin* saved_last(const std::vector<Kin>& all);
// The one with this identity, or null.
const Kin* find_kin(const std::vector<Kin>& all, const CheckpointId& id);

// What a run that has saved `head` goes on from, and what it does not. Both with the latest step first. Where a
// parent's record ends (an older program's, or one that was removed) all that is older counts as live.
struct Branch {
  std::vector<std::string> live;  // from `head` on
  std::vector<std::string> left;
};
Branch branch_of(const std::vector<Kin>& all, const Kin& head);

// A free name that loading ignores: "step_0000030.abandoned-1".
std::string name_aside(const Directory& root, const std::string& checkpoint);
bool is_name_aside(std::string_view name, std::string_view checkpoint);

// Gives checkpoints such names and tells them. Returns what went wrong, or "".
std::string move_aside(const Directory& root, const std::vector<std::string>& names, const std::string& head);
void tell_moved(const Directory& root, const std::string& name, const std::string& aside, const std::string& head);

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

// "step_0000100.tmp-3f9a": a name that nobody else has thought of.
std::string new_temporary_name(const std::string& checkpoint);

}  // namespace megalith
