// Positions of a list's actions, for the verification of lowering passes. Errors have exit code 9.
#pragma once

#include <cstddef>
#include <map>
#include <string_view>
#include <tuple>
#include <vector>

#include "parallel/pipeline_parallel/schedule.h"

namespace megalith {

[[noreturn]] void fail_order(const Action& action, std::string_view why);

// Index after the verb at `verb` and the adjacent kWaitExchange, since one graph can hold both.
std::size_t end_of_verb(const std::vector<Action>& actions, std::size_t verb);

class ActionOrder {
 public:
  // Fails if an action appears twice. `actions` outlives the object.
  explicit ActionOrder(const std::vector<Action>& actions);

  const std::vector<Action>& actions() const { return actions_; }
  void require(const Action& action) const;
  // Requires that `earlier` exists and precedes `later`; `later` may be missing.
  void require_before(const Action& earlier, const Action& later) const;

 private:
  // Kind, chunk, microbatch, segment, gradient, item. Other fields say how an action is executed.
  using Key = std::tuple<ActionKind, int, int, int, bool, int>;
  static Key key(const Action& a) { return {a.kind, a.chunk, a.microbatch, a.segment, a.gradient, a.item}; }

  const std::vector<Action>& actions_;
  std::map<Key, std::size_t> places_;
};

}  // namespace megalith
