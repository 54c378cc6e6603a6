#include "parallel/checkpoint/folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "core/base/files/fault.h"
#include "core/base/log.h"
#include "core/checkpoint/strict_json.h"
#include "parallel/checkpoint/verify.h"

namespace megalith {

namespace {

Kin read_kin(const Directory& root, const std::string& name) {
  Kin kin{.id = {.step = step_of_name(name).value(), .hash = {}}, .lineage = {}, .problem = {}};
  kin.problem = attempt([&] {
    const Directory folder = root.open_directory(name);
    const std::string manifest(kManifestName);
    kin.lineage = lineage_from_text(folder.read_text(manifest, kMaxJsonBytes), kin.id, folder.path() + "/" + manifest);
  });
  return kin;
}

std::int64_t serial_of(const Kin& kin) { return kin.lineage ? kin.lineage->serial : 0; }

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

// Removes a checkpoint atomically, by a rename to a temporary name first.
void remove_checkpoint(const Directory& root, const std::string& name) {
  std::string temporary = new_temporary_name(name);
  while (root.contains(temporary)) temporary = new_temporary_name(name);
  root.rename(name, temporary);
  root.remove_tree(temporary);
}

}  // namespace

void CheckpointHistory::meet(const std::string& path, const FileId& id) {
  if (directory == path && folder == id) return;
  held = Directory::open(path);
  directory = path;
  folder = id;
  verified.clear();
  known.clear();
}

void CheckpointHistory::add(const CheckpointId& id) {
  own.push_back(id);
  parent = id;
  parent_folder = folder;
}

void CheckpointHistory::find_parent(const std::vector<Kin>& all) {
  if (!parent || find_kin(all, *parent) != nullptr || parent_folder == folder) return;
  const auto here = std::find_if(own.rbegin(), own.rend(), [&](const CheckpointId& id) { return find_kin(all, id); });
  parent = here == own.rend() ? std::nullopt : std::optional(*here);
}

std::vector<std::string> checkpoint_names(const Directory& root) {
  std::vector<std::string> names;
  for (const DirectoryEntry& entry : root.list()) {
    // Links are listed, so that the reason for their rejection is printed.
    if (entry.type != EntryType::kFile && step_of_name(entry.name)) names.push_back(entry.name);
  }
  std::sort(names.begin(), names.end(),
            [](const auto& a, const auto& b) { return step_of_name(a).value() > step_of_name(b).value(); });
  return names;
}

std::vector<Kin> list_checkpoints(const Directory& root, CheckpointHistory& history) {
  std::vector<Kin> all;
  for (const std::string& name : checkpoint_names(root)) {
    const auto known = history.known.find(name);
    all.push_back(known == history.known.end() ? read_kin(root, name) : known->second);
    if (all.back().problem.empty()) history.known.emplace(name, all.back());
  }
  return all;
}

const Kin* saved_last(const std::vector<Kin>& all) {
  const Kin* last = nullptr;
  for (const Kin& kin : all) {
    if (kin.problem.empty() && (last == nullptr || serial_of(kin) > serial_of(*last))) last = &kin;
  }
  return last;
}

const Kin* find_kin(const std::vector<Kin>& all, const CheckpointId& id) {
  const auto found = std::find_if(all.begin(), all.end(), [&](const Kin& kin) { return kin.is(id); });
  return found == all.end() ? nullptr : &*found;
}

Branch branch_of(const std::vector<Kin>& all, const Kin& head) {
  Branch branch;
  const Kin* at = &head;
  bool known = true;  // the rest of the branch is known
  for (const Kin& kin : all) {
    const std::optional<Lineage>& lineage = at->lineage;
    const std::int64_t step = kin.id.step;
    bool live = true;
    if (step >= head.id.step) {
      live = &kin == &head;
    } else if (!known || !lineage) {
      known = false;
    } else if (!lineage->parent || step > lineage->parent->step) {
      live = false;
    } else if (kin.is(*lineage->parent)) {
      at = &kin;
    } else {  // its parent is missing or unreadable
      known = false;
      live = step < lineage->parent->step || !kin.problem.empty();
    }
    (live ? branch.live : branch.left).push_back(checkpoint_name(step));
  }
  return branch;
}

std::string name_aside(const Directory& root, const std::string& checkpoint) {
  for (int n = 1;; ++n) {
    std::string name = fmt::format("{}.abandoned-{}", checkpoint, n);
    if (!root.contains(name)) return name;
  }
}

bool is_name_aside(std::string_view name, std::string_view checkpoint) {
  if (!name.starts_with(checkpoint)) return false;
  name.remove_prefix(checkpoint.size());
  constexpr std::string_view kMark = ".abandoned-";
  return name.starts_with(kMark) && name.size() > kMark.size() &&
         name.find_first_not_of("0123456789", kMark.size()) == name.npos;
}

void report_moved(const Directory& root, const std::string& name, const std::string& aside, const std::string& head) {
  log_warning(fmt::format("{}/{} does not lead to {}: renamed to {}, which no run loads or removes", root.path(), name,
                          head, aside));
}

std::string move_aside(const Directory& root, const std::vector<std::string>& names, const std::string& head) {
  std::string problems;
  for (const std::string& name : names) {
    const std::string problem = attempt([&] {
      const std::string aside = name_aside(root, name);
      root.rename(name, aside);
      report_moved(root, name, aside, head);
    });
    add_problem(problems, problem);
  }
  if (!names.empty()) add_problem(problems, attempt([&] { root.sync(); }));
  return problems;
}

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

std::string prune_checkpoints(const Directory& root, const PruneRequest& request) {
  if (request.keep_last <= 0) return {};
  std::set<std::string> folders;  // links belong to the user
  for (const DirectoryEntry& entry : root.list()) {
    if (entry.type == EntryType::kDirectory) folders.insert(entry.name);
  }
  int kept = 0;
  std::vector<std::string> old;
  for (const std::string& name : request.names) {
    if (!folders.contains(name)) continue;
    const bool just_saved = name == request.just_saved;
    if (!just_saved && kept >= request.keep_last) {
      const std::int64_t step = step_of_name(name).value_or(0);
      if (request.retain_interval == 0 || step % request.retain_interval != 0) old.push_back(name);
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
