#include "apps/run/step_plan.h"

#include <functional>
#include <numeric>

namespace megalith {

namespace {

// Device bytes of a graph. The driver allocates in steps of 2 MiB, so that the real size may be zero or twice as large
// (tests/bench/RESULTS.md).
constexpr std::size_t kGraphBytes = 1 << 20, kGraphBytesOfOp = 2 << 10;

}  // namespace

std::size_t StepGraphs::bytes() const {
  return static_cast<std::size_t>(graphs) * kGraphBytes + static_cast<std::size_t>(captured_ops) * kGraphBytesOfOp;
}

std::size_t MemoryUse::total() const { return std::accumulate(persistent.begin(), persistent.end(), arena); }

std::vector<std::pair<std::size_t, std::string_view>> MemoryUse::owners() const {
  std::vector<std::pair<std::size_t, std::string_view>> owners = {{arena, "activations and temporaries"}};
  for (int c = 0; c < kNumMemoryCategories; ++c)
    owners.emplace_back(persistent[static_cast<std::size_t>(c)], name_of(static_cast<MemoryCategory>(c)));
  std::ranges::sort(owners, std::greater());
  return owners;
}

std::vector<std::pair<std::string, std::size_t>> bytes_by_owner(const CategoryBytes& persistent, const MemoryUse& use) {
  std::vector<std::pair<std::string, std::size_t>> owners;
  for (int c = 0; c < kNumMemoryCategories; ++c) {
    const std::size_t bytes = persistent[static_cast<std::size_t>(c)];
    if (bytes > 0) owners.emplace_back(name_of(static_cast<MemoryCategory>(c)), bytes);
  }
  std::size_t kept = 0;
  for (const auto& [kind, bytes] : use.activations) {
    owners.emplace_back("activations " + kind, bytes);
    kept += bytes;
  }
  owners.emplace_back("step temporaries", use.arena - kept);
  return owners;
}

MemoryUse memory_use(const StepPlans& plans) {
  return {.persistent = plans.persistent,
          .arena = plans.block_bytes(),
          .arena_live = plans.train.live_by_category,
          .activations = plans.train.live_activations};
}

}  // namespace megalith
