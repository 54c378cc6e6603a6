#include "parallel/pipeline_parallel/action_order.h"

#include <fmt/format.h>

#include "core/base/error.h"

namespace megalith {

void fail_order(const Action& action, std::string_view why) {
  fail({.subject = fmt::format("action list: {} {}", to_string(action), why),
        .remedy = "fix the lowering pass that made the list"});
}

std::size_t end_of_verb(const std::vector<Action>& actions, std::size_t verb) {
  if (verb + 1 == actions.size() || actions[verb + 1].kind != ActionKind::kWaitExchange) return verb + 1;
  const Action &of = actions[verb], &wait = actions[verb + 1];
  return wait.chunk == of.chunk && wait.microbatch == of.microbatch ? verb + 2 : verb + 1;
}

ActionOrder::ActionOrder(const std::vector<Action>& actions) : actions_(actions) {
  for (std::size_t i = 0; i < actions.size(); ++i) {
    if (!places_.emplace(key(actions[i]), i).second) fail_order(actions[i], "appears twice");
  }
}

void ActionOrder::require(const Action& action) const {
  if (!places_.contains(key(action))) fail_order(action, "is missing");
}

void ActionOrder::require_before(const Action& earlier, const Action& later) const {
  const auto after = places_.find(key(later));
  if (after == places_.end()) return;
  const auto before = places_.find(key(earlier));
  if (before == places_.end() || before->second > after->second)
    fail_order(later, fmt::format("needs before it: {}", to_string(earlier)));
}

}  // namespace megalith
