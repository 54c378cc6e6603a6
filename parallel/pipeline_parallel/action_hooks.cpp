#include "parallel/pipeline_parallel/action_hooks.h"

#include <map>
#include <utility>

#include "parallel/pipeline_parallel/action_order.h"
#include "parallel/pipeline_parallel/segment_runner.h"

namespace megalith {

std::vector<Action> insert_action_hooks(const std::vector<Action>& actions, const std::vector<ActionHook>& hooks) {
  std::map<std::pair<int, HookPoint>, std::vector<const ActionHook*>> hooks_at;
  for (const ActionHook& hook : hooks) hooks_at[{hook.segment, hook.point}].push_back(&hook);
  std::vector<Action> inserted;
  const auto add = [&](const Action& verb, HookPoint point) {
    const auto at = hooks_at.find({verb.segment, point});
    if (at == hooks_at.end()) return;
    for (const ActionHook* hook : at->second) {
      inserted.push_back({.kind = hook->kind,
                          .chunk = verb.chunk,
                          .microbatch = verb.microbatch,
                          .column = verb.column,
                          .item = hook->item});
    }
  };
  for (std::size_t i = 0; i < actions.size();) {
    const Action& action = actions[i];
    const bool is_verb = action.segment >= 0;
    const std::size_t end = is_verb ? end_of_verb(actions, i) : i + 1;
    if (is_verb) add(action, before(verb_of(action.kind)));
    for (; i < end; ++i) inserted.push_back(actions[i]);
    if (is_verb) add(action, after(verb_of(action.kind)));
  }
  return inserted;
}

}  // namespace megalith
