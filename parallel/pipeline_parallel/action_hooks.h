// Hooks that are actions. A folder attaches them to a point of a segment (core/layers/hooks.h) and executes them as
// entries of the list. They can be printed, verified and simulated. The other kind of hook is a callback (HookTable).
// Both run outside of graphs, whose runs end at hooks.
#pragma once

#include <vector>

#include "core/layers/hooks.h"
#include "parallel/pipeline_parallel/schedule.h"

namespace megalith {

struct ActionHook {
  int segment = 0;
  HookPoint point = HookPoint::kPreForward;
  ActionKind kind = ActionKind::kWaitParameters;
  int item = -1;  // `item` of the action
};

// Inserts each action before or after every verb that it is attached to, in the order of `hooks` at each point. An
// action gets the chunk, microbatch and column of its verb. `actions` must have segments.
std::vector<Action> insert_action_hooks(const std::vector<Action>& actions, const std::vector<ActionHook>& hooks);

}  // namespace megalith
