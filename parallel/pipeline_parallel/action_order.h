// Where each action of a list stands: what the verify of a lowering pass is written with. Errors: exit code 9.
#pragma once

#include <cstddef>
#include <map>
#include <string_view>
#include <tuple>
#include <vector>

#include "parallel/pipeline_parallel/schedule.h"

namespace megalith {

[[noreturn]] void fail_order(const Action& action, std::string_view why);

// What follows the verb at `verb` comes after the kWaitReturn that stands next to it: one graph can hold both.
std::size_t end_of_verb(const std::vector<Action>& actions, std::size_t verb);

class ActionOrder {
 public:
  // An error where one appears twice. `actions` lives as long as this object.
  explicit ActionOrder(const std::vector<Action>& actions);

  const std::vector<Action>& actions() const { return actions_; }
  void require(const Action& action) const;
  // `earlier` is there, and before `later`; `later` may be missing.
  void require_before(const Action& earlier, const Action& later) const;

 private:
  // Kind, chunk, microbatch, segment, gradient, item. The others say how an action is carried out.
  using Key = std::tuple<ActionKind, int, int, int, bool, int>;
  static Key key(const Action& a) { return {a.kind, a.chunk, a.microbatch, a.segment, a.gradient, a.item}; }

  const std::vector<Action>& actions_;
  std::map<Key, std::size_t> places_;
};

}  // namespace megalith
