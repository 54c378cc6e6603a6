#include "core/base/files/fault.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <csignal>
#include <deque>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

#include "core/base/error.h"
#include "core/base/take_part.h"

namespace megalith {
namespace {

struct FaultSite {
  std::string_view scope;
  std::string_view operations;  // separated by blanks
  std::string_view meaning;
};

// Scopes of the program's steps. "point" is a place in the program without a call of the file system.
constexpr FaultSite kSites[] = {
    {"save.begin", "point", "a checkpoint is due, nothing was done"},
    {"save.planned", "point", "all ranks know what each of them writes"},
    {"save.root", "open mkdir sync space", "the folder of checkpoints: made, its free space read"},
    {"save.stale", "open list lock remove", "folders of killed saves are removed"},
    {"save.branch", "open list read", "which checkpoints came before this one, from their manifests"},
    {"save.temporary", "open mkdir lock", "the folder that the checkpoint is written to"},
    {"save.prepared", "point", "the folder is there, no rank has written"},
    {"save.shard", "open create write sync close", "a rank's tensors"},
    {"save.shards_written", "point", "all ranks have written and synced their tensors"},
    {"save.state", "create write sync close", "state.json and the tokenizer's files"},
    {"save.manifest", "create write sync close rename", "manifest.json, written as manifest.json.tmp"},
    {"save.folder", "sync", "the names in the temporary folder"},
    {"save.commit", "rename", "the temporary folder gets its name"},
    {"save.parent", "sync", "the checkpoint's final name"},
    {"save.committed", "point", "the checkpoint is safe"},
    {"save.aside", "rename sync", "checkpoints of other branches are moved aside"},
    {"save.latest", "create write sync close rename remove", "LATEST, written as LATEST.tmp"},
    {"save.latest_parent", "sync", "the name LATEST"},
    {"save.prune", "open list read rename remove", "checkpoints beyond --keep-last are read and removed"},
    {"save.cleanup", "open list remove", "what a failed save wrote is removed"},
    {"save.end", "point", "the save is over"},
    {"async_save.copied", "point", "with --async-save: the copy is in host memory, its writer begins"},
    {"load.begin", "point", "a checkpoint is looked for"},
    {"load.root", "open", "the folder of checkpoints"},
    {"load.manifest", "open list read", "manifest.json of each checkpoint"},
    {"load.state", "open read", "state.json of a candidate"},
    {"load.verify", "open read", "every hash of a candidate's tensors"},
    {"load.tensor", "open read", "tensors are read into the model, and the tokenizer's files"},
    {"load.end", "point", "the checkpoint is loaded"},
    {"save_lock", "open lock", "--save is locked against other runs"},
    {"leftovers", "open list lock remove", "temporary files of killed programs are removed"},
    {"stop_file", "open remove sync", "the file of --stop-file is removed"},
    {"step.begin", "point", "a training step is about to be enqueued"},
    {"step.end", "point", "the result of a training step was read"},
    {"data.index", "open map", "PREFIX.idx of a dataset"},
    {"data.tokens", "open read", "PREFIX.bin of a dataset"},
    {"prepare.input", "open map read", "the text that prepare reads"},
    {"prepare.output", "open mkdir create write sync close rename remove",
     "PREFIX.bin and PREFIX.idx as prepare writes them"},
    {"generate.input", "open read", "prompts and questions that generate reads"},
    {"generate.output", "open create write sync close rename", "the file of --results"},
    {"metrics", "open create read write sync close rename", "the file of --metrics-jsonl"},
    {"tensorboard", "open mkdir sync create write", "the event file of --tensorboard-dir"},
    {"wandb", "open mkdir sync create write", "the run file of --wandb-project"},
    {"trace", "open create write sync close rename", "the file of --trace"},
    {"comm_dump", "open mkdir create write close rename remove", "the last collectives, in --comm-dump"},
    {"scratch", "open list mkdir lock remove", "the folder of a rank's shared memory, in /dev/shm"},
    {"report.input", "open read", "metrics that report reads"},
    {"report.output", "open create write sync close rename", "the page that report writes"},
    {"config", "open read", "a file of --config"},
    {"convert.input", "open map read", "config.json and tensors of a Hugging Face folder"},
    {"convert.output", "open list mkdir space create write sync close rename remove", "the folder that is written"},
    {"gemm_cache", "open create read write sync close rename mkdir", "the measured GEMM algorithms"},
    {"host_memory", "open read", "the machine's memory is read"},
    {"memory.pool", "allocation", "memory of the device, taken from the system"},
    {"memory.new", "allocation", "operator new, in programs built to fail there"},
};

constexpr std::array kKindNames = {"none", "eio", "enospc", "enolck", "eintr", "short", "kill", "abort-alloc"};

struct Armed {
  FaultRequest request;
  std::atomic<std::int64_t> seen = 0;
};

struct Plan {
  std::deque<Armed> armed;  // a deque, because an atomic cannot move
  std::set<std::string>* reached = nullptr;
  std::mutex mutex;  // guards `reached`
  std::atomic<std::int64_t> fired = 0;
};

constinit std::atomic<Plan*> current_plan = nullptr;
constinit thread_local const char* current_scope = "file";

bool is_place(const FaultSite& site) { return site.operations == "point" || site.operations == "allocation"; }

std::string full_name(const FaultSite& site, std::string_view operation) {
  return is_place(site) ? std::string(site.scope) : fmt::format("{}.{}", site.scope, operation);
}

// Returns whether `site` is the name of `operation` in `scope`, or of `scope` if `operation` is empty.
bool is_called(std::string_view site, std::string_view scope, std::string_view operation) {
  if (operation.empty()) return site == scope;
  return site.size() == scope.size() + 1 + operation.size() && site.starts_with(scope) && site[scope.size()] == '.' &&
         site.ends_with(operation);
}

FaultKind hit(Plan& plan, std::string_view scope, std::string_view operation) {
  FaultKind kind = FaultKind::kNone;
  for (Armed& armed : plan.armed) {  // every match counts its call, even if another match strikes
    const FaultRequest& request = armed.request;
    if (!is_called(request.site, scope, operation)) continue;
    const std::int64_t seen = ++armed.seen;
    if (request.lasts ? seen < request.at : seen != request.at) continue;
    ++plan.fired;
    kind = request.kind;
  }
  return kind;
}

void note(Plan& plan, std::string_view scope, std::string_view operation) {
  if (plan.reached == nullptr) return;
  const std::string name = operation.empty() ? std::string(scope) : fmt::format("{}.{}", scope, operation);
  const std::vector<std::string> known = fault_sites();
  require(scope == "file" || std::find(known.begin(), known.end(), name) != known.end(),
          "fault site " + name + " is not in the table of core/base/files/fault.cpp");
  const std::lock_guard lock(plan.mutex);
  plan.reached->insert(name);
}

// Returns the fault to simulate at `operation` in `scope`; kills or throws here if the fault requires it.
FaultKind strike(std::string_view scope, std::string_view operation) {
  Plan* plan = current_plan.load(std::memory_order_acquire);
  if (plan == nullptr) return FaultKind::kNone;
  note(*plan, scope, operation);
  const FaultKind kind = hit(*plan, scope, operation);
  if (kind == FaultKind::kKill && operation != "write") kill_process();
  if (kind == FaultKind::kAbortAlloc) throw std::bad_alloc();
  return kind;
}

bool can_happen(std::string_view operation, FaultKind kind) {
  if (operation == "allocation") return kind == FaultKind::kAbortAlloc || kind == FaultKind::kKill;
  if (kind == FaultKind::kKill || kind == FaultKind::kAbortAlloc) return true;
  if (operation == "point") return false;
  if (kind == FaultKind::kEnolck) return operation == "lock";
  return kind != FaultKind::kShort || operation == "read" || operation == "write";
}

std::string kinds_at(std::string_view operation) {
  std::string kinds;
  for (std::size_t kind = 1; kind < kKindNames.size(); ++kind) {
    if (can_happen(operation, static_cast<FaultKind>(kind)))
      kinds += fmt::format("{}{}", kinds.empty() ? "" : ", ", kKindNames[kind]);
  }
  return kinds;
}

template <class Visit>
void for_each_site(Visit&& visit) {
  for (const FaultSite& site : kSites) {
    std::string_view rest = site.operations;
    while (!rest.empty()) visit(site, take_part(rest, ' '));
  }
}

[[noreturn]] void refuse(std::string_view text, const std::string& expected, std::string_view got) {
  refuse_usage(fmt::format("--fault {}", text.substr(0, 100)),
               {.expected = expected, .got = std::string(got.substr(0, 60)), .remedy = "--fault list shows the sites"});
}

}  // namespace

std::string_view name_of(FaultKind kind) { return kKindNames[static_cast<std::size_t>(kind)]; }

std::vector<std::string> fault_sites() {
  std::vector<std::string> names;
  for_each_site(
      [&](const FaultSite& site, std::string_view operation) { names.push_back(full_name(site, operation)); });
  return names;
}

std::string fault_list() {
  std::string text;
  for_each_site([&](const FaultSite& site, std::string_view operation) {
    text += fmt::format("{:<24} {:<46} {}\n", full_name(site, operation), kinds_at(operation), site.meaning);
  });
  return text;
}

FaultRequest parse_fault(std::string_view text) {
  std::string_view kind = text;
  const std::string_view name = take_part(kind, ':');
  std::string_view number = take_part(kind, ':');
  std::string operation;
  for_each_site([&](const FaultSite& site, std::string_view one) {
    if (full_name(site, one) == name) operation = one;
  });
  if (operation.empty()) refuse(text, "SITE:N[:kind]", "an unknown site");
  FaultRequest request{.site = std::string(name), .lasts = number.ends_with('+')};
  if (request.lasts) number.remove_suffix(1);
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), request.at);
  if (error != std::errc() || end != number.data() + number.size() || request.at < 1 ||
      request.at > 1'000'000'000'000) {
    refuse(text, "SITE:N[:kind] with N from 1 to 10^12", number);
  }
  if (operation == "point") request.kind = FaultKind::kKill;
  if (operation == "allocation") request.kind = FaultKind::kAbortAlloc;
  if (kind.empty() && !text.ends_with(':')) return request;
  for (std::size_t k = 1; k < kKindNames.size(); ++k) {
    if (kind != kKindNames[k]) continue;
    request.kind = static_cast<FaultKind>(k);
    if (can_happen(operation, request.kind)) return request;
  }
  refuse(text, "a kind of " + kinds_at(operation), kind);
}

void arm_faults(std::vector<FaultRequest> requests, std::set<std::string>* reached) {
  auto plan = std::make_unique<Plan>();
  for (FaultRequest& request : requests) plan->armed.emplace_back().request = std::move(request);
  plan->reached = reached;
  disarm_faults();
  current_plan = plan.release();
}

void disarm_faults() { delete current_plan.exchange(nullptr); }

std::int64_t faults_fired() {
  const Plan* plan = current_plan;
  return plan == nullptr ? 0 : plan->fired.load();
}

FaultScope::FaultScope(const char* name) : before_(std::exchange(current_scope, name)) {}
FaultScope::~FaultScope() { current_scope = before_; }

FaultKind fault_here(std::string_view operation) { return strike(current_scope, operation); }

void fault_point(std::string_view site) { strike(site, ""); }

void kill_process() {
  std::raise(SIGKILL);
  std::abort();  // not reached
}

bool fault_allocation(std::string_view site) noexcept {
  Plan* plan = current_plan.load(std::memory_order_acquire);
  if (plan == nullptr) return false;
  const FaultKind kind = hit(*plan, site, "");
  if (kind == FaultKind::kKill) kill_process();
  return kind == FaultKind::kAbortAlloc;
}

}  // namespace megalith
