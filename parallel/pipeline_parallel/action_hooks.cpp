#include "parallel/pipeline_parallel/action_hooks.h"

#include "parallel/pipeline_parallel/segment_runner.h"

namespace megalith {

std::vector<Action> insert_action_hooks(const std::vector<Action>& actions, const std::vector<ActionHook>& hooks) {
  std::vector<Action> inserted;
  const auto add = [&](const Action& verb, HookPoint point) {
    for (const ActionHook& hook : hooks) {
      if (hook.segment != verb.segment || hook.point != point) continue;
      inserted.push_back({.kind = hook.kind,
                          .chunk = verb.chunk,
                          .microbatch = verb.microbatch,
                          .column = verb.column,
                          .item = hook.item});
    }
  };
  for (const Action& action : actions) {
    const bool is_verb = action.segment >= 0;
    if (is_verb) add(action, before(verb_of(action.kind)));
    inserted.push_back(action);
    if (is_verb) add(action, after(verb_of(action.kind)));
  }
  return inserted;
}

}  // namespace megalith
