// Faults on request, to test what the program does when files, memory or the process itself fail: "at the third call of
// save.shard.write fail as a full disk does". A site is SCOPE.OPERATION: a FaultScope says what its thread is doing,
// the file layer (core/base/files/file.h) adds the operation; some sites are mere points in the program. Costs one load
// of an atomic where nothing is armed.
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
  kEnolck,      // the call fails: no locks here
  kEintr,       // the call is interrupted and must be repeated
  kShort,       // a read or write takes only a part of its bytes
  kKill,        // SIGKILL; in a write after half of its bytes
  kAbortAlloc,  // an allocation fails: std::bad_alloc
};
std::string_view name_of(FaultKind kind);  // "eio", ..., "abort-alloc"

std::vector<std::string> fault_sites();  // every SCOPE.OPERATION
std::string fault_list();                // for people: each site, its kinds and what happens there

struct FaultRequest {
  std::string site;
  std::int64_t at = 1;  // the first time is 1
  FaultKind kind = FaultKind::kEio;
  bool lasts = false;  // strikes from then on, not only then
};

// "SITE:N[:kind]", or "SITE:N+[:kind]" for one that lasts; kind eio when left out (kill at sites without a call that
// could fail). Error kUsage for an unknown site or kind, an N that is not from 1 to 10^12, and a kind that cannot
// happen at that site.
FaultRequest parse_fault(std::string_view text);

// For the whole process; replaces what was armed before. No other thread may be inside a file operation meanwhile.
// `reached`, if given, gets the name of every site that is passed, and must outlive the arming.
void arm_faults(std::vector<FaultRequest> requests, std::set<std::string>* reached = nullptr);
void disarm_faults();
std::int64_t faults_fired();  // since they were armed

// What this thread is doing, until the object dies. `name` must be a literal.
class FaultScope {
 public:
  explicit FaultScope(const char* name);
  ~FaultScope();
  FaultScope(const FaultScope&) = delete;
  FaultScope& operator=(const FaultScope&) = delete;

 private:
  const char* before_;
};

// For the file layer: the fault to simulate in this operation of the current scope. kAbortAlloc is thrown, and kKill
// carried out, except for a write, which does it itself.
FaultKind fault_here(std::string_view operation);
[[noreturn]] void kill_process();

// A point in the program: SITE as it is, no scope. kill and abort-alloc only.
void fault_point(std::string_view site);
// The same for allocators, which return null: true when this allocation is to fail. Allocates nothing.
bool fault_allocation(std::string_view site) noexcept;

}  // namespace megalith
