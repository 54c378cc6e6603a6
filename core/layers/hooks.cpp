#include "core/layers/hooks.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/code_of.h"

namespace megalith {

std::string_view name_of(HookPoint point) {
  static constexpr std::array<std::string_view, kNumHookPoints> kNames = {
      "pre_forward", "post_forward", "pre_backward", "post_backward", "pre_weight", "post_weight"};
  return kNames[static_cast<std::size_t>(point)];
}

std::string_view name_of(Verb verb) {
  static constexpr std::array<std::string_view, kNumVerbs> kNames = {"forward", "backward_data", "backward_weight"};
  return kNames[static_cast<std::size_t>(verb)];
}

std::string_view name_of(Phase phase) {
  static constexpr std::array<std::string_view, 5> kNames = {"eager", "warm_up", "capture", "capture_ahead", "replay"};
  return kNames[static_cast<std::size_t>(phase)];
}

bool HookTable::empty() const {
  return std::all_of(hooks_.begin(), hooks_.end(), [](const auto& list) { return list.empty(); });
}

void HookTable::run(HookPoint point, const HookContext& context) const {
  for (const Hook& hook : hooks_[static_cast<std::size_t>(point)]) {
    try {
      hook(context);
    } catch (const std::exception& error) {
      fail({.code = code_of(error),
            .subject = fmt::format("hook {} of segment {} (microbatch {}): {}", name_of(point), context.segment,
                                   context.microbatch, error.what()),
            .remedy = "an exception in a hook ends the step: fix the hook",
            .show_place = false});
    }
  }
}

}  // namespace megalith
