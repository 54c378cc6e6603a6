#include "parallel/checkpoint/retention.h"

#include <fmt/format.h>

#include <random>
#include <vector>

#include "core/base/fault.h"
#include "parallel/checkpoint/attempt.h"
#include "parallel/checkpoint/manifest.h"
#include "parallel/checkpoint/verify.h"

namespace megalith {
namespace {

bool is_verified(const Directory& root, const std::string& name, std::set<std::string>& verified) {
  const std::string problem = attempt([&] {
    const Directory checkpoint = root.open_directory(name);
    const Manifest manifest = read_manifest(checkpoint);
    verify_sizes(checkpoint, manifest);
    if (verified.contains(name)) return;
    verify_files(checkpoint, manifest, 0, 1);
    read_state_text(checkpoint, manifest);
  });
  if (problem.empty()) {
    verified.insert(name);
  } else {
    verified.erase(name);
  }
  return problem.empty();
}

}  // namespace

std::string new_temporary_name(const std::string& checkpoint) {
  std::random_device device;
  return fmt::format("{}.tmp-{:04x}", checkpoint, device() & 0xffffu);
}

std::string remove_stale_temporaries(const Directory& root) {
  const FaultScope scope("save.stale");
  std::string problems;
  for (const DirectoryEntry& entry : root.list()) {
    if (entry.type != EntryType::kDirectory || !is_temporary_name(entry.name)) continue;
    add_problem(problems, attempt([&] {
                  const Directory stale = root.open_directory(entry.name);
                  if (stale.try_lock()) root.remove_tree(entry.name);
                }));
  }
  return problems;
}

void remove_checkpoint(const Directory& root, const std::string& name) {
  std::string temporary = new_temporary_name(name);
  while (root.contains(temporary)) temporary = new_temporary_name(name);
  root.rename(name, temporary);
  root.remove_tree(temporary);
}

std::string prune_checkpoints(const Directory& root, const PruneRequest& request) {
  if (request.keep_last <= 0) return {};
  std::set<std::string> folders;  // a link is the user's own
  for (const DirectoryEntry& entry : root.list()) {
    if (entry.type == EntryType::kDirectory) folders.insert(entry.name);
  }
  int kept = 0;
  std::vector<std::string> old;
  for (const std::string& name : request.names) {
    if (!folders.contains(name)) continue;
    const bool just_saved = name == request.just_saved;
    if (!just_saved && kept >= request.keep_last) {
      old.push_back(name);
    } else if (just_saved || is_verified(root, name, request.verified)) {
      ++kept;
    }
  }
  std::string problems;
  for (auto name = old.rbegin(); name != old.rend(); ++name) {
    add_problem(problems, attempt([&] { remove_checkpoint(root, *name); }));
    request.verified.erase(*name);
  }
  return problems;
}

}  // namespace megalith
