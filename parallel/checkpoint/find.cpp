#include <fmt/format.h>

#include <algorithm>
#include <new>

#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/log.h"
#include "core/checkpoint/strict_json.h"
#include "parallel/checkpoint/attempt.h"
#include "parallel/checkpoint/loaded.h"
#include "parallel/checkpoint/verify.h"

namespace megalith {
namespace {

// What rank 0 tells the others to do next, as one string: the first character says which.
constexpr char kTry = 'T';    // name, '\n', text of the manifest
constexpr char kNone = 'N';   // there is no checkpoint at all
constexpr char kError = 'E';  // exit code, '\n', message

// Rank 0's list of checkpoints, newest first, and why those before the current one were passed over.
class Candidates {
 public:
  explicit Candidates(const LoadRequest& request) : request_(request) {}

  std::string next() {
    try {
      if (!listed_) list();
      while (at_ < names_.size()) {
        const std::string& name = names_[at_++];
        std::string message;
        const std::string problem = attempt([&] { message = open(name); });
        if (problem.empty()) return message;
        reject(problem);
      }
      return names_.empty() && !request_.step ? std::string(1, kNone) : none_left();
    } catch (const Error& error) {
      return told_error(error.code(), error.what());
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception& error) {
      return told_error(ExitCode::kInternal, error.what());
    }
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
    for (const DirectoryEntry& entry : root.list()) {
      const auto step = step_of_name(entry.name);
      // Links count as candidates so that the reason why they are refused is shown.
      if (step && entry.type != EntryType::kFile && (!request_.step || *request_.step == *step)) {
        names_.push_back(entry.name);
      }
    }
    std::sort(names_.begin(), names_.end(),
              [](const auto& a, const auto& b) { return step_of_name(a).value() > step_of_name(b).value(); });
  }

  std::string open(const std::string& name) const {
    const FaultScope scope("load.manifest");
    const Directory folder = Directory::open(request_.directory, request_.observer).open_directory(name);
    const std::string text = folder.read_text(std::string(kManifestName), kMaxJsonBytes);
    const Manifest manifest = manifest_from_text(text, folder.path() + "/" + std::string(kManifestName));
    if (manifest.step != step_of_name(name)) {
      refuse_format(folder.path() + ": step in its manifest", "that of its name", std::to_string(manifest.step));
    }
    return fmt::format("{}{}\n{}", kTry, name, text);
  }

  static std::string told_error(ExitCode code, std::string_view message) {
    return fmt::format("{}{}\n{}", kError, static_cast<int>(code), message);
  }

  std::string none_left() const {
    std::string text = "no valid checkpoint in " + request_.directory;
    if (request_.step) text += fmt::format(" for step {}", *request_.step);
    text += tried_.empty() ? "; there is none of that step: leave --ckpt-step out for the newest"
                           : "; tried " + tried_ + "; bring back a copy of one, or start anew without --load";
    return told_error(ExitCode::kNoCheckpoint, text);
  }

  const LoadRequest& request_;
  bool listed_ = false;
  std::vector<std::string> names_;
  std::size_t at_ = 0;
  std::string tried_;
};

[[noreturn]] void throw_told(const std::string& told) {
  const std::size_t line = told.find('\n');
  throw Error(static_cast<ExitCode>(std::stoi(told.substr(1, line - 1))), told.substr(line + 1));
}

}  // namespace

std::optional<LoadedCheckpoint> find_checkpoint(const LoadRequest& request) {
  const RankSync& sync = request.sync;
  fault_point("load.begin");
  Candidates candidates(request);
  while (true) {
    const std::string told = sync.broadcast(sync.rank == 0 ? candidates.next() : "");
    if (told.front() == kNone) return std::nullopt;
    if (told.front() == kError) throw_told(told);
    const std::size_t line = told.find('\n');
    const std::string name = told.substr(1, line - 1);
    auto impl = std::make_unique<LoadedCheckpoint::Impl>();
    const std::string problem =
        agree(sync, attempt([&] {
                const FaultScope scope("load.state");
                impl->folder = Directory::open(request.directory, request.observer).open_directory(name);
                const std::string& path = impl->folder.path();
                impl->manifest = manifest_from_text(std::string_view(told).substr(line + 1),
                                                    path + "/" + std::string(kManifestName));
                impl->state = train_state_from_json(read_state_text(impl->folder, impl->manifest),
                                                    path + "/" + std::string(kStateName));
                if (impl->state.step != impl->manifest.step) {
                  refuse_format(path + "/state.json: step", fmt::format("{} as in manifest.json", impl->manifest.step),
                                std::to_string(impl->state.step));
                }
                const FaultScope verify_scope("load.verify");
                verify_rank_files(impl->folder, impl->manifest, sync.rank, sync.world);
                if (sync.rank == 0) verify_small_files(impl->folder, impl->manifest);
              }));
    if (problem.empty()) {
      if (request.verified != nullptr) request.verified->insert(name);
      return LoadedCheckpoint(std::move(impl));
    }
    if (sync.rank == 0) candidates.reject(problem);
  }
}

}  // namespace megalith
