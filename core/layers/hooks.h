// Actions of others around a segment's verbs: FSDP's unshard and reshard, a user's own. Hooks run on the host, outside
// any capture, in the order of the list: before and after each verb, also where a graph stands for it. A run of verbs
// in one graph has hooks only before its first and after its last verb. One that throws ends the step with an error
// that names segment and point. What is attached as an action is in parallel/pipeline_parallel/action_hooks.h.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace megalith {

enum class Verb : std::uint8_t { kForward, kBackwardData, kBackwardWeight };
inline constexpr int kNumVerbs = 3;
enum class HookPoint : std::uint8_t { kPreForward, kPostForward, kPreBackward, kPostBackward, kPreWeight, kPostWeight };
inline constexpr int kNumHookPoints = 6;
std::string_view name_of(HookPoint point);  // "pre_forward"
std::string_view name_of(Verb verb);        // "forward"

// How the verb runs that a hook stands at.
enum class Phase : std::uint8_t {
  kEager,
  kWarmUp,   // eagerly, before anything is captured: the libraries' pass, whose values mean nothing (attention on GPUs
             // leaves zeros), --cuda-graph-warmup-steps
  kCapture,  // captured now and replayed at once
  kReplay,
};
std::string_view name_of(Phase phase);  // "warm_up"

// The same in every phase but for the phase itself.
struct HookContext {
  std::string_view segment;  // name
  int segment_index = 0;
  int chunk = 0;
  int microbatch = 0;
  Verb verb = Verb::kForward;
  Phase phase = Phase::kEager;
};

using Hook = std::function<void(const HookContext&)>;

class HookTable {
 public:
  void add(HookPoint point, Hook hook) { hooks_[static_cast<std::size_t>(point)].push_back(std::move(hook)); }
  bool empty() const;
  std::size_t size(HookPoint point) const { return hooks_[static_cast<std::size_t>(point)].size(); }
  void run(HookPoint point, const HookContext& context) const;

 private:
  std::array<std::vector<Hook>, kNumHookPoints> hooks_;
};

constexpr HookPoint before(Verb verb) { return static_cast<HookPoint>(2 * static_cast<int>(verb)); }
constexpr HookPoint after(Verb verb) { return static_cast<HookPoint>(2 * static_cast<int>(verb) + 1); }

}  // namespace megalith
