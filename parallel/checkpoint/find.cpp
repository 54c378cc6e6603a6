#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/files/fault.h"
#include "core/base/log.h"
#include "parallel/checkpoint/folder.h"
#include "parallel/checkpoint/verify.h"
#include "parallel/comm/on_all_ranks.h"
#include "parallel/comm/single_communicator.h"

namespace megalith {
namespace {

// Checkpoint that rank 0 makes the others verify next.
struct Candidate {
  std::string name;  // empty: there is no checkpoint
  std::string manifest;
};

// Rank 0's list of checkpoints, newest first, and why earlier entries were skipped.
class Candidates {
 public:
  Candidates(const LoadRequest& request, CheckpointHistory& history) : request_(request), history_(history) {}

  // Throws Error if checkpoints exist but none is left.
  Candidate next() {
    if (!listed_) list();
    while (at_ < names_.size()) {
      const std::string& name = names_[at_++];
      std::string manifest;
      const auto known = problems_.find(name);
      const std::string problem = known != problems_.end() ? known->second : attempt([&] { manifest = open(name); });
      if (problem.empty()) return {.name = name, .manifest = std::move(manifest)};
      reject(problem);
    }
    if (names_.empty() && !request_.step) return {};
    throw Error(ExitCode::kNoCheckpoint, none_left());
  }

  void reject(const std::string& problem) {
    const std::string& name = names_[at_ - 1];
    tried_ += fmt::format("{}{}: {}", tried_.empty() ? "" : "; ", name, problem);
    const bool more = at_ < names_.size();
    log_warning(
        fmt::format("checkpoint {} is not valid{}: {}", name, more ? ", trying the next older one" : "", problem));
  }

 private:
  void list() {
    listed_ = true;
    if (!Directory::exists(request_.directory)) return;
    const FaultScope scope("load.root");
    const Directory root = Directory::open(request_.directory, request_.observer);
    history_.meet(request_.directory, root.identity());
    const FaultScope manifest_scope("load.manifest");
    const std::vector<Kin> all = list_checkpoints(root, history_);
    if (!request_.step) return choose(all);
    const std::string wanted = checkpoint_name(*request_.step);
    for (const Kin& kin : all) {
      if (kin.id.step == *request_.step) names_.push_back(wanted);
    }
    for (const DirectoryEntry& entry : root.list()) {
      if (is_name_aside(entry.name, wanted)) aside_ += (aside_.empty() ? "" : ", ") + entry.name;
    }
  }

  // Unreadable checkpoints may be newer than the newest readable one. They are tried first, so that they are reported.
  void choose(const std::vector<Kin>& all) {
    const Kin* head = saved_last(all);
    for (const Kin& kin : all) {
      if (kin.problem.empty()) continue;
      problems_.emplace(kin.name(), kin.problem);
      if (head == nullptr || kin.id.step > head->id.step) {
        names_.push_back(kin.name());
      } else {
        log_warning(
            fmt::format("checkpoint {} is passed over in finding what was saved last: {}", kin.name(), kin.problem));
      }
    }
    if (head == nullptr) return;
    const Branch branch = branch_of(all, *head);
    names_.insert(names_.end(), branch.live.begin(), branch.live.end());
    for (const std::string& name : branch.left) {
      if (!problems_.contains(name)) left_ += (left_.empty() ? "" : ", ") + name;
    }
    if (!left_.empty())
      log_warning(
          fmt::format("{}: passed over, since they do not lead to {}, which was saved last: {}; --ckpt-step loads them",
                      request_.directory, head->name(), left_));
  }

  std::string open(const std::string& name) const {
    const FaultScope scope("load.manifest");
    const Directory folder = Directory::open(request_.directory, request_.observer).open_directory(name);
    std::string text;
    const Manifest manifest = read_manifest(folder, &text);
    if (manifest.step != step_of_name(name)) {
      refuse_format(folder.path() + ": step in its manifest", "that of its name", std::to_string(manifest.step));
    }
    return text;
  }

  std::string none_left() const {
    std::string text = "no valid checkpoint in " + request_.directory;
    if (request_.step) text += fmt::format(" for step {}", *request_.step);
    text += tried_.empty() ? "; there is none of that step: leave --ckpt-step out for the newest" : "; tried " + tried_;
    if (names_.empty() && !aside_.empty())
      text +=
          fmt::format("; moved aside are {}: to load one, rename it to {}", aside_, checkpoint_name(*request_.step));
    if (!left_.empty()) text += "; of another branch, for --ckpt-step: " + left_;
    if (!tried_.empty()) {
      text += request_.step ? "; leave --ckpt-step out for the newest that is valid, or restore a copy of it"
                            : "; restore a copy of one, or start again without --load and with another --save";
    }
    return text;
  }

  const LoadRequest& request_;
  CheckpointHistory& history_;
  bool listed_ = false;
  std::vector<std::string> names_;
  std::size_t at_ = 0;
  std::string tried_;
  std::map<std::string, std::string> problems_;  // from listing; key: name
  std::string left_;                             // of other branches
  std::string aside_;                            // for the requested step
};

}  // namespace

std::optional<LoadedCheckpoint> find_checkpoint(const LoadRequest& request) {
  SingleCommunicator alone("checkpoint");
  Communicator& ranks = request.ranks == nullptr ? alone : *request.ranks;
  const bool first = ranks.rank() == 0;
  fault_point("load.begin");
  CheckpointHistory own;
  CheckpointHistory& history = request.history == nullptr ? own : *request.history;
  Candidates candidates(request, history);
  while (true) {
    Candidate next;
    on_all_ranks(ranks, [&] {
      if (first) next = candidates.next();
    });
    const std::string name = ranks.host_broadcast(next.name, 0);
    if (name.empty()) return std::nullopt;
    const std::string manifest = ranks.host_broadcast(next.manifest, 0);
    std::optional<LoadedCheckpoint> found;
    CheckpointId id;
    const std::string problem = attempt_on_all_ranks(ranks, [&] {
      const FaultScope scope("load.state");
      Directory folder = Directory::open(request.directory, request.observer).open_directory(name);
      Manifest read = manifest_from_text(manifest, folder.path() + "/" + std::string(kManifestName));
      const std::string state_path = folder.path() + "/" + std::string(kStateName);
      TrainState state = train_state_from_json(read_state_text(folder, read), state_path);
      if (state.step != read.step) {
        refuse_format(state_path + ": step", fmt::format("{} as in manifest.json", read.step),
                      std::to_string(state.step));
      }
      const FaultScope verify_scope("load.verify");
      verify_files(folder, read, ranks.rank(), ranks.size());
      id = {.step = read.step, .hash = read.hash};
      found.emplace(std::move(folder), std::move(read), std::move(state));
    });
    if (problem.empty()) {
      history.verified.insert(name);
      history.add(id);
      return found;
    }
    if (first) candidates.reject(problem);
  }
}

}  // namespace megalith
