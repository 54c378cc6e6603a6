// Actions of others around a segment's verbs: FSDP's unshard and reshard, a user's own. Hooks run on the host, outside
// any capture, in the order of the list: before and after each verb, also where a graph stands for it. A run of verbs
// in one graph has hooks only before its first and after its last verb. One that throws ends the step with an error
// that names segment and point. What is attached as an action is in parallel/pipeline_parallel/action_hooks.h.
//
// A pipeline captures its graphs in a pass before the step's first message. That pass calls each hook of the step once,
// in the step's order, with phase kCaptureAhead; the step itself then calls them as any other step does.
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

// How the verb runs that a hook stands at.
enum class Phase : std::uint8_t {
  kEager,
  kWarmUp,   // eagerly, before anything is captured: the libraries' pass, whose values mean nothing (attention on GPUs
             // leaves zeros), --cuda-graph-warmup-steps
  kCapture,  // captured now and replayed at once
  kCaptureAhead,  // captured now, or run eagerly later, and called again in the same step
  kReplay,
};
std::string_view name_of(Phase phase);  // "warm_up"

// The same in every phase but for the phase itself. In kWarmUp and kCaptureAhead the tensors have addresses and shapes,
// but their contents are undefined.
struct HookContext {
  std::string_view segment;  // name
  int segment_index = 0;
  int chunk = 0;
  int column = 0;
  int microbatch = 0;
  Verb verb = Verb::kForward;
  Phase phase = Phase::kEager;
  // A hook enqueues on its compute stream, behind all that the segments before have enqueued. Its arena gives a hook no
  // memory, as the step's plan knows no hook.
  const Context* ctx = nullptr;
  // To read, on that stream and enqueued during the call. Absent tensors (Tensor::present) are those that the segments
  // do not hand on; rows past a bound (Tensor::bound) are undefined. At other points the list is empty.
  std::span<const Tensor> inputs = {};     // pre_forward
  std::span<const Tensor> outputs = {};    // post_forward
  std::span<const Tensor> gradients = {};  // pre_backward: of the outputs; post_backward: of the inputs
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
