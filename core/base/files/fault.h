// Fault injection for tests: files, memory or the process fail on request, such as the third save.shard.write with
// ENOSPC.
// A site is SCOPE.OPERATION. A FaultScope sets the scope of its thread; the file layer (file.h) adds the operation.
// Some sites are points in the program without an operation. While no fault is armed, a site costs one atomic load.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace megalith {

enum class FaultKind {
  kNone,
  kEio,         // the call fails: input/output error
  kEnospc,      // the call fails: no space left
  kEnolck,      // the call fails: no locks available
  kEintr,       // the call is interrupted and must be repeated
  kShort,       // a read or write moves only a part of its bytes
  kKill,        // SIGKILL; in a write, after half of its bytes
  kAbortAlloc,  // an allocation fails: std::bad_alloc
};
std::string_view name_of(FaultKind kind);  // "eio", ..., "abort-alloc"

std::vector<std::string> fault_sites();  // every SCOPE.OPERATION
std::string fault_list();                // text of --fault list: each site, its kinds and its meaning

struct FaultRequest {
  std::string site;
  std::int64_t at = 1;  // call that fails, counted from 1
  FaultKind kind = FaultKind::kEio;
  bool lasts = false;  // strikes at every call from `at` on
};

// Parses "SITE:N[:kind]", or "SITE:N+[:kind]" for a fault that lasts. The default kind is eio, or kill at points.
// Error kUsage for an unknown site or kind, N outside 1 to 10^12, or a kind that cannot happen at the site.
FaultRequest parse_fault(std::string_view text);

// Arms faults in the process and replaces earlier ones. No other thread may be in a file operation during the call.
// `reached`, if given, receives the name of every site that is passed. `reached` must outlive the arming.
void arm_faults(std::vector<FaultRequest> requests, std::set<std::string>* reached = nullptr);
void disarm_faults();
std::int64_t faults_fired();  // since arm_faults

// Scope of this thread during the object's lifetime. `name` must be a literal.
class FaultScope {
 public:
  explicit FaultScope(const char* name);
  ~FaultScope();
  FaultScope(const FaultScope&) = delete;
  FaultScope& operator=(const FaultScope&) = delete;

 private:
  const char* before_;
};

// Returns the fault that the file layer must simulate in this operation of the current scope. Throws for kAbortAlloc.
// Kills the process for kKill, except in a write, where the caller does so.
FaultKind fault_here(std::string_view operation);
[[noreturn]] void kill_process();

// Strikes at the point `site`, regardless of the scope. Supports only kill and abort-alloc.
void fault_point(std::string_view site);
// Returns true if this allocation must fail, for allocators that return null. Does not allocate.
bool fault_allocation(std::string_view site) noexcept;

}  // namespace megalith
