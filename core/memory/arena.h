// Memory of a step. Its allocations and accesses are recorded once on the plan backend; interval colouring of the
// buffers' lifetimes, from first to last access, then gives the n-th allocation of a scope its address: fixed before
// the first step, and the same for every microbatch of a column, which captured graphs need, or for each by itself.
// Nothing is freed by hand.
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

// Who allocates: a verb of a segment for one in-flight microbatch (its column). Segment -1 is the step loop itself.
struct ArenaScope {
  std::int32_t column = 0;
  std::int32_t segment = -1;
  std::int32_t verb = 0;
  auto operator<=>(const ArenaScope&) const = default;
};

struct ArenaKey {
  static constexpr std::int32_t kEveryUse = -1;
  ArenaScope scope;
  std::int32_t ordinal = 0;      // of the allocation since begin_scope
  std::int32_t use = kEveryUse;  // of the scope in a step, where a plan is by use
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
  bool by_use = false;                                  // uses of a scope in a step may have places of their own
  std::size_t peak_bytes = 0;                           // size of the block
  std::size_t live_bytes = 0;                           // most bytes alive at once: the lower bound of any layout
  CategoryBytes live_by_category{};                     // at that moment
  std::map<std::string, std::size_t> live_activations;  // likewise, by owner
};

// Equal for plans that give the same addresses.
std::uint64_t digest_of(const ArenaPlan& plan);

class Arena {
 public:
  enum class Mode : std::uint8_t {
    kUnplanned,  // takes every buffer from the pool until reset(): for tests and start-up; refused under capture, if
                 // the pool has a CaptureGuard
    kRecording,  // plan backend: addresses that are never reused
    kPlanned,
  };

  // Recording arenas of one plan give addresses from `first_address` on, far from each other's and above the pool's.
  static constexpr std::uintptr_t kOfDevice = std::uintptr_t{1} << 62, kOfHost = kOfDevice + (kOfDevice >> 1);
  Arena(MemoryPool& pool, Mode mode, std::uintptr_t first_address = kOfDevice);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  void begin_step();  // uses of scopes are counted from here on
  void begin_scope(const ArenaScope& scope);
  void* allocate(std::size_t bytes, MemoryCategory category, std::string_view owner);
  // Recording: a buffer turned out to be kept for backward by the current scope's verb; `address` may point into it.
  // `bounded`: of its rows a number is used that only the device knows. `never_offload`: it stays on the device.
  void classify(const void* address, MemoryCategory category, std::string_view owner, bool bounded = false,
                bool never_offload = false);
  // Recording: the current scope's verb leaves what is at `address` for the next one of its column.
  void hand_on(const void* address);

  // kPlanned: the plan to allocate by, which must outlive its use; the block grows to the largest plan used, which must
  // happen before the first step, or the first after give_back().
  void use(const ArenaPlan& plan);
  // kPlanned: between two steps, the block, whose addresses nobody keeps; the plan's use is over.
  void give_back();
  // What was allocated under this key: kRecording the last time, kPlanned by the plan. None is an error.
  struct Place {
    void* address = nullptr;
    std::size_t bytes = 0;
  };
  Place place_of(const ArenaKey& key) const;
  // kPlanned: the owner to whom the current scope gave the memory at `address`; empty if it gave it to none.
  std::string owner_of(const void* address) const;
  // kUnplanned: gives all buffers back.
  void reset();

  Mode mode() const { return mode_; }
  std::size_t block_bytes() const { return block_bytes_; }
  void* block() const { return block_; }  // kPlanned: between two steps its content is of no value
  // kPlanned: the highest byte really handed out; equals plan.peak_bytes after a step.
  std::size_t touched_bytes() const { return touched_; }

  struct Kept {
    std::string owner;
    std::int32_t segment;
    bool bounded;
    bool never_offload = false;
    friend bool operator==(const Kept&, const Kept&) = default;
  };
  struct Recorded {
    ArenaKey key;  // as of the first use
    std::uintptr_t address;
    std::size_t bytes;
    MemoryCategory category;
    std::string owner;
    std::int32_t use;
    std::vector<Kept> kept = {};               // by each classify()
    std::vector<std::int32_t> handed_on = {};  // by each hand_on(): the segment
  };
  const std::vector<Recorded>& recorded() const { return recorded_; }  // ascending addresses
  std::size_t index_recorded(const void* address) const;               // of the one that holds it; their number: none

 private:
  using Slots = std::map<ArenaKey, ArenaPlan::Slot>;
  Slots::const_iterator slot_of(const ArenaKey& key) const;  // of the latest use

  MemoryPool& pool_;
  Mode mode_;
  ArenaKey next_;
  std::map<ArenaScope, std::int32_t> uses_;  // in the step
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
  // For so many more of lane 0's entries no other takes a buffer's memory, but for workspaces.
  std::int64_t ops_beside = 0;
  // Lays out each use of a scope by itself, if there are not too many; else all uses of a scope have the same places.
  bool by_use = false;
  // By number of the recorded buffers, those that have the same place in all uses all the same; empty: none.
  std::vector<bool> alike = {};
  bool searches = true;  // for a layout in less memory than the first ones; takes longer
};
// Lays out what `recording` allocated while `timeline` recorded. Lane 0's order measures time; work on other lanes
// occupies its buffers from the last lane-0 op known to precede it to the first known to follow. Fails if lane 0 does
// not join a lane at the end.
ArenaPlan plan_arena(const Timeline& timeline, const Arena& recording, const ArenaPlanSpec& spec = {});

}  // namespace megalith
