// Memory of a step. The plan backend records allocations and accesses once. Interval coloring of the buffers'
// lifetimes, from first to last access, then gives the n-th allocation of a scope a fixed address. The address is the
// same for every microbatch of a column, which captured graphs need, or separate for each use. No buffer is freed
// explicitly.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/instruments/timeline.h"
#include "core/memory/memory_pool.h"

namespace megalith {

// The allocating context: a verb of a segment for one in-flight microbatch (its column). Segment -1 is the step loop.
struct ArenaScope {
  std::int32_t column = 0;
  std::int32_t segment = -1;
  std::int32_t verb = 0;
  auto operator<=>(const ArenaScope&) const = default;
};

struct ArenaKey {
  static constexpr std::int32_t kEveryUse = -1;
  ArenaScope scope;
  std::int32_t ordinal = 0;      // number of the allocation since begin_scope
  std::int32_t use = kEveryUse;  // number of the scope's use in a step, if the plan is by use
  auto operator<=>(const ArenaKey&) const = default;
};

struct ArenaPlan {
  struct Slot {
    std::size_t offset = 0;
    std::size_t bytes = 0;  // multiple of 256
    MemoryCategory category = MemoryCategory::kWorkspace;
    std::string owner;  // the tensor's name; for a stash slot its kind
  };
  std::map<ArenaKey, Slot> slots;
  bool by_use = false;                                  // uses of a scope in a step may have separate places
  std::size_t peak_bytes = 0;                           // bytes of the block
  std::size_t live_bytes = 0;                           // most bytes live at once: a lower bound for any layout
  CategoryBytes live_by_category{};                     // split at that moment by category
  std::map<std::string, std::size_t> live_activations;  // split at that moment by owner
};

// Returns a value that is equal for plans with the same addresses.
std::uint64_t digest_of(const ArenaPlan& plan);

class Arena {
 public:
  enum class Mode : std::uint8_t {
    kUnplanned,  // allocates from the pool until reset(): for tests and start-up; an error under capture, if the pool
                 // has a CaptureGuard
    kRecording,  // plan backend: addresses that are never reused
    kPlanned,
  };

  // First addresses of recording arenas: separated, and above the pool's addresses.
  static constexpr std::uintptr_t kOfDevice = std::uintptr_t{1} << 62, kOfHost = kOfDevice + (kOfDevice >> 1);
  Arena(MemoryPool& pool, Mode mode, std::uintptr_t first_address = kOfDevice);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  void begin_step();  // restarts the count of scope uses
  void begin_scope(const ArenaScope& scope);
  void* allocate(std::size_t bytes, MemoryCategory category, std::string_view owner);
  // Recording: marks a buffer that the current scope's verb keeps for backward; `address` may point into it. `bounded`:
  // only the device knows the number of used rows. `never_offload`: the buffer stays on the device.
  void classify(const void* address, MemoryCategory category, std::string_view owner, bool bounded = false,
                bool never_offload = false);
  // Recording: marks the buffer at `address` as left by the current verb for the next one of its column.
  void mark_passed(const void* address);

  // kPlanned: sets the plan to allocate by, which must outlive its use. The block grows to the largest plan, which must
  // be used before the first step, or before the first after give_back().
  void use(const ArenaPlan& plan);
  // kPlanned: frees the block between two steps and ends the plan's use. No address into the block may be kept.
  void give_back();
  // Allocation under a key: the latest one of kRecording, the plan's of kPlanned. A missing key is an error.
  struct Place {
    void* address = nullptr;
    std::size_t bytes = 0;
  };
  Place place_of(const ArenaKey& key) const;
  // kPlanned: owner to which the current scope gave the memory at `address`; empty if there is none.
  std::string owner_of(const void* address) const;
  // kUnplanned: returns all buffers to the pool.
  void reset();

  Mode mode() const { return mode_; }
  std::size_t block_bytes() const { return block_bytes_; }
  void* block() const { return block_; }  // kPlanned: scratch between two steps
  // kPlanned: highest byte allocated so far; equals plan.peak_bytes after a step.
  std::size_t touched_bytes() const { return touched_; }

  struct Kept {
    std::string owner;
    std::int32_t segment;
    bool bounded;
    bool never_offload = false;
    friend bool operator==(const Kept&, const Kept&) = default;
  };
  struct Recorded {
    ArenaKey key;  // key at the first use
    std::uintptr_t address;
    std::size_t bytes;
    MemoryCategory category;
    std::string owner;
    std::int32_t use;
    std::vector<Kept> kept = {};               // one entry per classify()
    std::vector<std::int32_t> passed_by = {};  // one segment per mark_passed()
  };
  const std::vector<Recorded>& recorded() const { return recorded_; }  // ascending addresses
  std::size_t index_recorded(const void* address) const;               // recorded_.size() if there is none

 private:
  using Slots = std::map<ArenaKey, ArenaPlan::Slot>;
  Slots::const_iterator slot_of(const ArenaKey& key) const;  // slot of the latest use

  MemoryPool& pool_;
  Mode mode_;
  ArenaKey next_;
  std::map<ArenaScope, std::int32_t> uses_;  // uses in the step
  const ArenaPlan* plan_ = nullptr;
  std::byte* block_ = nullptr;
  std::size_t block_bytes_ = 0;
  std::size_t touched_ = 0;
  std::vector<void*> unplanned_;
  std::vector<Recorded> recorded_;
  std::map<ArenaKey, std::size_t> last_recorded_;
  std::uintptr_t next_address_;
  std::uintptr_t end_address_;
};

struct ArenaPlanSpec {
  // Number of lane 0's following entries during which only workspaces may reuse a buffer's memory.
  std::int64_t concurrent_ops = 0;
  // Lays out each use of a scope separately, if there are not too many; otherwise all uses of a scope share places.
  bool by_use = false;
  // One flag per recorded buffer: true if it has one place in all uses. Empty: none.
  std::vector<bool> same_place = {};
  bool searches = true;  // searches for a layout in less memory; slower
};
// Lays out the allocations of `recording` made while `timeline` recorded. Lane 0's order measures time. Work on another
// lane occupies its buffers from the last lane-0 op known to precede it to the first known to follow. Fails if lane 0
// does not join a lane at the end.
ArenaPlan plan_arena(const Timeline& timeline, const Arena& recording, const ArenaPlanSpec& spec = {});

}  // namespace megalith
