// Hooks that are actions: what a room attaches to a point of a segment (core/layers/hooks.h) and carries out itself, as
// an entry of the list that can be printed, verified and simulated. The other kind of hook is a callback (HookTable);
// both run outside of graphs, whose runs end where one stands.
#pragma once

#include <vector>

#include "core/layers/hooks.h"
#include "parallel/pipeline_parallel/schedule.h"

namespace megalith {

struct ActionHook {
  int segment = 0;
  HookPoint point = HookPoint::kPreForward;
  ActionKind kind = ActionKind::kWaitParameters;
  int item = -1;  // of the action
};

// Puts each action before or behind every verb that it is attached to; those of one point in the order of `hooks`. An
// action is about the chunk, microbatch and column of its verb. `actions` have segments.
std::vector<Action> insert_action_hooks(const std::vector<Action>& actions, const std::vector<ActionHook>& hooks);

}  // namespace megalith
