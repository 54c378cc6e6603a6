// Callbacks around a segment's verbs: FSDP's unshard and reshard, or a user's. Hooks run on the host, outside any
// capture, in list order: before and after each verb, also if a graph replays it. If one graph holds a run of verbs,
// hooks run only before the first and after the last verb. An exception ends the step with an error that has segment
// and point. parallel/pipeline_parallel/action_hooks.h attaches hooks as actions.
//
// A pipeline captures its graphs in a pass ahead of the step's first message. That pass calls each hook of the step
// once, in the step's order, with phase kCaptureAhead; the step then calls them as usual.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "core/tensor/tensor.h"

namespace megalith {

struct Context;

enum class Verb : std::uint8_t { kForward, kBackwardData, kBackwardWeight };
inline constexpr int kNumVerbs = 3;
enum class HookPoint : std::uint8_t { kPreForward, kPostForward, kPreBackward, kPostBackward, kPreWeight, kPostWeight };
inline constexpr int kNumHookPoints = 6;
std::string_view name_of(HookPoint point);  // "pre_forward"
std::string_view name_of(Verb verb);        // "forward"

// Execution mode of the hook's verb.
enum class Phase : std::uint8_t {
  kEager,
  kWarmUp,        // eager, ahead of any capture: the set-up pass of libraries, with undefined values (attention on GPUs
                  // writes zeros), or --cuda-graph-warmup-steps
  kCapture,       // captured now and replayed immediately
  kCaptureAhead,  // captured now, or run eagerly later; called again in the same step
  kReplay,
};
std::string_view name_of(Phase phase);  // "warm_up"

// Equal in all phases except for `phase`. In kWarmUp and kCaptureAhead the tensors have addresses and shapes, but
// undefined contents.
struct HookContext {
  std::string_view segment;  // segment name
  int segment_index = 0;
  int chunk = 0;
  int column = 0;
  int microbatch = 0;
  Verb verb = Verb::kForward;
  Phase phase = Phase::kEager;
  // A hook enqueues on this context's compute stream, after all work of the preceding segments. A hook must not
  // allocate from the arena, because the step's plan has no hooks.
  const Context* ctx = nullptr;
  // Readable on that stream by work enqueued during the call. A tensor that the segments do not pass is absent
  // (Tensor::present); rows past a bound (Tensor::bound) are undefined. At other points the list is empty.
  std::span<const Tensor> inputs = {};     // pre_forward
  std::span<const Tensor> outputs = {};    // post_forward
  std::span<const Tensor> gradients = {};  // pre_backward: gradients of the outputs; post_backward: of the inputs
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
