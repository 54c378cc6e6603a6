#include "core/memory/arena.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "core/base/digest.h"
#include "core/base/error.h"
#include "core/device/capture_guard.h"
#include "core/memory/buffer_bytes.h"

namespace megalith {

namespace {
constexpr std::uintptr_t kMaxRecorded = Arena::kOfHost - Arena::kOfDevice;
}  // namespace

std::uint64_t digest_of(const ArenaPlan& plan) {
  std::uint64_t digest = kEmptyDigest;
  const auto add = [&](std::uint64_t word) { fold(digest, word); };
  for (const auto& [key, slot] : plan.slots) {
    add(static_cast<std::uint32_t>(key.scope.column));
    add(static_cast<std::uint32_t>(key.scope.segment));
    add(static_cast<std::uint32_t>(key.scope.verb));
    add(static_cast<std::uint32_t>(key.ordinal));
    add(static_cast<std::uint32_t>(key.use));
    add(slot.offset);
    add(slot.bytes);
  }
  return digest;
}

Arena::Arena(MemoryPool& pool, Mode mode, std::uintptr_t first_address)
    : pool_(pool), mode_(mode), next_address_(first_address), end_address_(first_address + kMaxRecorded) {}

Arena::~Arena() {
  reset();
  if (block_ != nullptr) pool_.free(block_);
}

void Arena::begin_step() {
  for (auto& [scope, uses] : uses_) uses = 0;
}

void Arena::begin_scope(const ArenaScope& scope) { next_ = {.scope = scope, .ordinal = 0, .use = uses_[scope]++}; }

Arena::Slots::const_iterator Arena::slot_of(const ArenaKey& key) const {
  const ArenaKey of_all{.scope = key.scope, .ordinal = key.ordinal};
  const auto uses = uses_.find(key.scope);
  if (plan_->by_use && uses != uses_.end()) {
    const ArenaKey latest{.scope = key.scope, .ordinal = key.ordinal, .use = uses->second - 1};
    if (const auto slot = plan_->slots.find(latest); slot != plan_->slots.end()) return slot;
  }
  return plan_->slots.find(of_all);
}

void* Arena::allocate(std::size_t bytes, MemoryCategory category, std::string_view owner) {
  if (bytes > std::numeric_limits<std::size_t>::max() / 4) {
    fail({.subject = fmt::format("allocation for {}", owner),
          .expected = "a size",
          .got = fmt::format("{}", static_cast<std::int64_t>(bytes))});
  }
  const ArenaKey key = next_;
  ++next_.ordinal;
  switch (mode_) {
    case Mode::kUnplanned:
      if (pool_.capture_guard() != nullptr) {
        pool_.capture_guard()->refuse(fmt::format("allocation of {} bytes for {}", bytes, owner),
                                      "capture with a planned arena");
      }
      unplanned_.push_back(pool_.allocate(bytes, category, owner));
      return unplanned_.back();
    case Mode::kRecording: {
      const std::size_t rounded = padded_bytes(bytes);
      if (rounded > end_address_ - next_address_) {
        fail({.code = ExitCode::kOutOfMemory,
              .subject = fmt::format("{} bytes for {} in a step", bytes, owner),
              .expected = "a step of at most 2^61 bytes",
              .got = "more",
              .remedy = "lower --seq-length, --micro-batch-size or the sizes of the model",
              .show_place = false});
      }
      const ArenaKey first{.scope = key.scope, .ordinal = key.ordinal};
      last_recorded_[first] = recorded_.size();
      recorded_.push_back({first, next_address_, rounded, category, std::string(owner), key.use});
      next_address_ += rounded;
      return reinterpret_cast<void*>(recorded_.back().address);
    }
    case Mode::kPlanned: break;
  }
  require(plan_ != nullptr, "a planned arena without a plan");
  const auto slot = slot_of(key);
  if (slot == plan_->slots.end() || slot->second.bytes != padded_bytes(bytes)) {
    fail({.subject = fmt::format("allocation {} of segment {} verb {} column {} ({})", key.ordinal, key.scope.segment,
                                 key.scope.verb, key.scope.column, owner),
          .expected =
              slot == plan_->slots.end() ? "an allocation the plan knows" : fmt::format("{} bytes", slot->second.bytes),
          .got = fmt::format("{} bytes", padded_bytes(bytes)),
          .remedy = "the step must make the same allocations as its recording on the plan backend"});
  }
  touched_ = std::max(touched_, slot->second.offset + slot->second.bytes);
  return block_ + slot->second.offset;
}

std::size_t Arena::index_recorded(const void* address) const {
  const auto wanted = reinterpret_cast<std::uintptr_t>(address);
  const auto after = std::upper_bound(recorded_.begin(), recorded_.end(), wanted,
                                      [](std::uintptr_t value, const Recorded& r) { return value < r.address; });
  const bool found = after != recorded_.begin() && wanted < (after - 1)->address + (after - 1)->bytes;
  return found ? static_cast<std::size_t>(after - 1 - recorded_.begin()) : recorded_.size();
}

void Arena::classify(const void* address, MemoryCategory category, std::string_view owner, bool bounded,
                     bool never_offload) {
  const std::size_t index = index_recorded(address);
  if (index == recorded_.size()) return;
  Recorded& recorded = recorded_[index];
  recorded.category = category;
  recorded.owner = owner;
  recorded.kept.push_back({.owner = std::string(owner),
                           .segment = next_.scope.segment,
                           .bounded = bounded,
                           .never_offload = never_offload});
}

void Arena::mark_passed(const void* address) {
  const std::size_t index = index_recorded(address);
  if (index < recorded_.size()) recorded_[index].passed_by.push_back(next_.scope.segment);
}

void Arena::use(const ArenaPlan& plan) {
  require(mode_ == Mode::kPlanned, "Arena::use needs the planned mode");
  plan_ = &plan;
  if (plan.peak_bytes <= block_bytes_) return;
  require(touched_ == 0, "the arena must not grow after the first step: use the largest plan first");
  give_back();
  plan_ = &plan;
  block_ = static_cast<std::byte*>(pool_.allocate(plan.peak_bytes, MemoryCategory::kActivations, "arena"));
  block_bytes_ = plan.peak_bytes;
}

void Arena::give_back() {
  require(mode_ == Mode::kPlanned, "Arena::give_back needs the planned mode");
  if (block_ != nullptr) pool_.free(std::exchange(block_, nullptr));
  block_bytes_ = touched_ = 0;
  plan_ = nullptr;
}

Arena::Place Arena::place_of(const ArenaKey& key) const {
  if (mode_ == Mode::kRecording) {
    const auto found = last_recorded_.find(key);
    require(found != last_recorded_.end(), "the place of a buffer that was not recorded");
    const Recorded& recorded = recorded_[found->second];
    return {.address = reinterpret_cast<void*>(recorded.address), .bytes = recorded.bytes};
  }
  require(mode_ == Mode::kPlanned && plan_ != nullptr, "the place of a buffer needs a plan");
  const auto slot = slot_of(key);
  require(slot != plan_->slots.end(), "the place of a buffer that the plan does not know");
  return {.address = block_ + slot->second.offset, .bytes = slot->second.bytes};
}

std::string Arena::owner_of(const void* address) const {
  const auto* at = static_cast<const std::byte*>(address);
  if (mode_ != Mode::kPlanned || plan_ == nullptr || at < block_ || at >= block_ + block_bytes_) return {};
  const auto offset = static_cast<std::size_t>(at - block_);
  std::string owner;  // a scope may allocate memory twice: the later use counts
  for (std::int32_t ordinal = 0; ordinal < next_.ordinal; ++ordinal) {
    const auto slot = slot_of({.scope = next_.scope, .ordinal = ordinal});
    if (slot == plan_->slots.end()) continue;
    if (slot->second.offset <= offset && offset < slot->second.offset + slot->second.bytes) owner = slot->second.owner;
  }
  return owner;
}

void Arena::reset() {
  for (void* address : unplanned_) pool_.free(address);
  unplanned_.clear();
}

}  // namespace megalith
