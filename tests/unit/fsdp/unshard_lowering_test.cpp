// Tests of slots and of the lowering pass that inserts gathers and reductions into a rank's list.
#include "fsdp/unshard_lowering.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/base/error.h"
#include "tests/support/error_of.h"
#include "tests/support/matchers.h"
#include "tests/unit/fsdp/units.h"

namespace megalith::test {
namespace {

using Kind = ActionKind;

std::int64_t count(const std::vector<Action>& actions, Kind kind) {
  return std::ranges::count(actions, kind, &Action::kind);
}

std::vector<int> items(const std::vector<Action>& actions, Kind kind) {
  std::vector<int> items;
  for (const Action& action : actions) {
    if (action.kind == kind) items.push_back(action.item);
  }
  return items;
}

// Text of the unit actions and of the verbs of segments 1 to `layers`.
std::string text_of(const std::vector<Action>& actions, int layers) {
  std::string text;
  for (const Action& a : actions) {
    if (is_of_unit(a.kind)) text += fmt::format("{} {}, ", name_of(a.kind), a.item);
    if (a.segment >= 1 && a.segment <= layers) text += fmt::format("{} of {}, ", name_of(a.kind), a.segment);
    if (a.kind == Kind::kOptimizerStep) text += "update, ";
  }
  return text;
}

TEST(UnitSlots, UnitsOfOneSizeTakeThemInTurnAndTheEndsShareOne) {
  std::vector<ParameterUnit> units(8);
  for (const auto& [unit, numel] :
       {std::pair{0, 900}, {1, 256}, {2, 512}, {3, 256}, {4, 0}, {5, 256}, {6, 256}, {7, 700}})
    units[static_cast<std::size_t>(unit)].numel = numel;
  for (ParameterUnit& unit : units) unit.resident_weights = false;
  units[2].resident_gradients = units[3].resident_gradients = false;
  const UnitSlots slots = assign_slots(units, {}, std::vector<int>{0, 7});
  EXPECT_THAT(slots.of_weights, ElementsAre(0, 1, 2, 3, UnitSlots::kResident, 1, 3, 0));
  EXPECT_THAT(slots.weight_elements, ElementsAre(900, 256, 512, 256));
  EXPECT_THAT(slots.weight_family, ElementsAre(0, 1, 2, 1));
  constexpr int kNone = UnitSlots::kResident;
  EXPECT_THAT(slots.of_gradients, ElementsAre(kNone, kNone, 0, 1, kNone, kNone, kNone, kNone));
  EXPECT_THAT(slots.gradient_elements, ElementsAre(512, 256));
  EXPECT_FALSE(assign_slots(std::vector<ParameterUnit>(3), {}).has_weights());
}

TEST(UnitSlots, GradientsMayHaveFewer) {
  std::vector<ParameterUnit> units(3);
  for (ParameterUnit& unit : units) {
    unit.numel = 256;
    unit.resident_weights = unit.resident_gradients = false;
  }
  const UnitSlots slots = assign_slots(units, {.weights = 2, .gradients = 1});
  EXPECT_THAT(slots.of_weights, ElementsAre(0, 1, 0));
  EXPECT_THAT(slots.of_gradients, ElementsAre(0, 0, 0));
  EXPECT_THAT(slots.gradient_elements, ElementsAre(256));
}

// In one family, all dense units would use one slot and all experts the other.
TEST(UnitSlots, ExpertsOfTheSizeOfDenseUnitsHaveSlotsOfTheirOwn) {
  std::vector<ParameterUnit> units(8);
  for (std::size_t u = 0; u < units.size(); ++u) {
    units[u].kind = u % 2 == 0 ? UnitKind::kDense : UnitKind::kExperts;
    units[u].numel = 256;
    units[u].resident_weights = units[u].resident_gradients = false;
  }
  const UnitSlots slots = assign_slots(units, {});
  EXPECT_THAT(slots.of_weights, ElementsAre(0, 1, 2, 3, 0, 1, 2, 3));
  EXPECT_THAT(slots.weight_family, ElementsAre(0, 1, 0, 1));
  EXPECT_EQ(slots.of_gradients, slots.of_weights);
}

TEST(UnshardLowering, ASteadyStepGathersEachLayerTwiceButThoseOfTheTurn) {
  for (int layers = 1; layers <= 6; ++layers) {
    for (int slots = 1; slots <= layers; ++slots) {
      for (int prefetch = 0; prefetch < slots; ++prefetch) {
        SCOPED_TRACE(fmt::format("{} layers, {} slots, prefetch {}", layers, slots, prefetch));
        const UnitLists lists = lists_of({.layers = layers, .slots = slots, .prefetch = prefetch});
        EXPECT_EQ(count(lists.train, Kind::kUnshard), 2 * layers - slots);
        EXPECT_EQ(std::ssize(lists.points.ahead), prefetch + 1);
        // A unit gathered before evaluation stays in its slot if no other unit uses the slot.
        const int kept = std::max(0, prefetch + 1 - (layers - slots));
        EXPECT_EQ(count(lists.evaluate, Kind::kUnshard), layers - kept);
      }
    }
  }
}

TEST(UnshardLowering, AStepOfTwoMicrobatchesReadsAsWritten) {
  const UnitLists lists = lists_of({.layers = 3, .layers_together = 1}, 2);
  EXPECT_THAT(lists.points.ahead, ElementsAre(1, 2));
  EXPECT_EQ(text_of(lists.train, 3),
            // The previous list started the gathers of 1 and 2. Unit 3 replaces unit 1 in its slot.
            "wait_unshard 1, forward of 1, reshard 1, unshard 3, "
            "wait_unshard 2, forward of 2, "
            "wait_unshard 3, forward of 3, "
            "bind_gradients 3, backward_data of 3, backward_weight of 3, reshard 3, unshard 1, reduce_shard 3, "
            "bind_gradients 2, backward_data of 2, backward_weight of 2, reduce_shard 2, "
            "wait_unshard 1, bind_gradients 1, backward_data of 1, backward_weight of 1, reduce_shard 1, "
            // Units 1 and 2 are gathered.
            "forward of 1, reshard 1, unshard 3, "
            "forward of 2, "
            "wait_unshard 3, forward of 3, "
            "bind_gradients 3, backward_data of 3, backward_weight of 3, reshard 3, unshard 1, reduce_shard 3, "
            "bind_gradients 2, backward_data of 2, backward_weight of 2, reshard 2, reduce_shard 2, "
            "wait_unshard 1, bind_gradients 1, backward_data of 1, backward_weight of 1, reshard 1, reduce_shard 1, "
            "update, unshard 1, unshard 2, ");
}

// Gathers start in order of use, at most `prefetch` ahead, and as early as the slots allow.
TEST(UnshardLowering, GathersStartAheadOfTheirUses) {
  for (const int prefetch : {0, 1, 2}) {
    SCOPED_TRACE(prefetch);
    const UnitLists lists = lists_of({.layers = 6, .slots = 3, .prefetch = prefetch}, 2);
    std::vector<int> started = lists.points.ahead, waited = items(lists.train, Kind::kWaitUnshard);
    const std::vector<int> gathers = items(lists.train, Kind::kUnshard);
    started.insert(started.end(), gathers.begin(), gathers.end());
    std::int64_t ahead = prefetch + 1, full = 0;
    std::vector<int> order;  // gathers in order of use
    for (const Action& a : lists.train) {
      if (a.kind == Kind::kUnshard) ++ahead;
      if (a.kind == Kind::kWaitUnshard) {
        --ahead;
        order.push_back(a.item);
      }
      if (a.kind == Kind::kForward) full += ahead == prefetch ? 1 : 0;
      ASSERT_LE(ahead, prefetch + 1);
      ASSERT_GE(ahead, 0);
    }
    // The running layer is in its slot, and `prefetch` gathers are ahead.
    EXPECT_GE(full, 2 * 6);
    order.insert(order.end(), lists.points.ahead.begin(), lists.points.ahead.end());
    EXPECT_EQ(started, order);
  }
}

// Segments out of model order: the first and the second segment's units have the same slot.
TEST(UnshardLowering, GathersKeepTheOrderOfUsesWhereASlotIsTaken) {
  for (const int slots : {2, 3}) {
    SCOPED_TRACE(slots);
    const UnitSpec spec{.layers = slots + 1, .slots = slots, .prefetch = slots - 1, .layers_together = 1};
    UnshardPoints points = points_of(spec);
    std::rotate(points.segments.begin() + 2, points.segments.end() - 2, points.segments.end() - 1);  // 1, 3, 2
    const Schedule schedule = make_schedule(ScheduleKind::k1F1B, 1, 1, 1);
    const std::vector<Action> step =
        lower_training_step(insert_messages(schedule, 0), {static_cast<int>(points.segments.size())}, {});
    points.ahead = units_ahead(step, points);
    EXPECT_THAT(points.ahead, ElementsAre(1));
    const std::vector<Action> list = insert_unshards(step, points);
    std::vector<int> started = points.ahead, used = items(list, Kind::kWaitUnshard);
    const std::vector<int> gathers = items(list, Kind::kUnshard);
    started.insert(started.end(), gathers.begin(), gathers.end());
    used.insert(used.end(), points.ahead.begin(), points.ahead.end());
    EXPECT_EQ(started, used);
  }
}

// Dense units (odd) and experts (even) have separate slots. Each family's gathers overlap the use of its previous unit.
TEST(UnshardLowering, ExpertsAreGatheredWhileThoseOfTheLayerBeforeAreInUse) {
  const UnitLists lists = lists_of({.layers = 3, .gradients = false, .experts = true});
  EXPECT_THAT(lists.points.ahead, ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(text_of(lists.train, 6),
            "wait_unshard 1, forward of 1, reshard 1, wait_unshard 2, forward of 2, reshard 2, "
            "unshard 5, wait_unshard 3, forward of 3, "
            "unshard 6, wait_unshard 4, forward of 4, "
            "wait_unshard 5, forward of 5, wait_unshard 6, forward of 6, "
            "backward_data of 6, backward_weight of 6, reshard 6, unshard 2, "
            "backward_data of 5, backward_weight of 5, reshard 5, unshard 1, "
            "backward_data of 4, backward_weight of 4, reshard 4, "
            "backward_data of 3, backward_weight of 3, reshard 3, "
            "wait_unshard 2, backward_data of 2, backward_weight of 2, reshard 2, "
            "wait_unshard 1, backward_data of 1, backward_weight of 1, reshard 1, "
            "update, unshard 1, unshard 2, unshard 3, unshard 4, ");
  // The number of gathers does not depend on experts, for any number of slots.
  for (const int slots : {1, 2, 3}) {
    const UnitSpec spec{.layers = 5, .slots = slots, .prefetch = slots - 1, .ends = true, .experts = true};
    EXPECT_EQ(count(lists_of(spec).train, Kind::kUnshard), 2 * (2 * 5 - slots) + 2);
  }
}

TEST(UnshardLowering, GradientsAreReducedOncePerMicrobatchAndBeforeTheNorm) {
  const UnitLists lists = lists_of({.layers = 3, .ends = true}, 3);
  EXPECT_EQ(count(lists.train, Kind::kBindGradients), 5 * 3);
  EXPECT_EQ(count(lists.train, Kind::kReduceShard), 5 * 3);
  const auto last = std::ranges::find(lists.train.rbegin(), lists.train.rend(), Kind::kReduceShard, &Action::kind);
  const auto finish = std::ranges::find(lists.train, Kind::kFinishReduce, &Action::kind);
  EXPECT_LT(last.base() - lists.train.begin(), finish - lists.train.begin() + 1);
  const UnitLists whole = lists_of({.layers = 3, .gradients = false}, 3);
  EXPECT_EQ(count(whole.train, Kind::kBindGradients) + count(whole.train, Kind::kReduceShard), 0);
}

// A layer's backward verbs have no action between them, so that one graph can hold them.
TEST(UnshardLowering, BackwardOfALayerStaysTogether) {
  const UnitLists lists = lists_of({.layers = 3}, 2);
  for (std::size_t i = 1; i < lists.train.size(); ++i) {
    const Action& a = lists.train[i];
    const bool in_layer = a.kind == Kind::kBackwardWeight && a.segment % 2 == 0 && a.segment > 0 && a.segment < 7;
    if (!in_layer) continue;
    ASSERT_LT(i + 2, lists.train.size());
    EXPECT_EQ(lists.train[i - 1].kind, Kind::kBackwardData);
    EXPECT_EQ(lists.train[i + 1].kind, Kind::kBackwardData) << to_string(a);
    EXPECT_EQ(lists.train[i + 2].kind, Kind::kBackwardWeight) << to_string(a);
  }
}

// The same for a segment of several units: layers recomputed together, or a layer with its experts.
TEST(UnshardLowering, BackwardOfASegmentOfSeveralUnitsStaysTogether) {
  const UnitLists lists = lists_of({.layers = 4, .slots = 2, .layers_together = 2}, 2);
  int segments = 0;
  for (std::size_t i = 1; i < lists.train.size(); ++i) {
    const Action& a = lists.train[i];
    if (a.kind != Kind::kBackwardWeight ||
        lists.points.segments[static_cast<std::size_t>(a.segment)].weights.size() < 2)
      continue;
    EXPECT_EQ(lists.train[i - 1].kind, Kind::kBackwardData) << to_string(a);
    ++segments;
  }
  EXPECT_EQ(segments, 2 * 2);
}

// With one gradient slot, a unit's gradients are reduced before the next unit's are bound; nothing else changes.
TEST(UnshardLowering, OneSlotOfGradientsReducesBeforeTheNextBinds) {
  const UnitSpec spec{.layers = 4, .experts = true};
  UnitSpec one = spec;
  one.gradient_slots = 1;
  const UnitLists lists = lists_of(one, 2);
  EXPECT_EQ(lists.train, lists_of(spec, 2).train);
  EXPECT_EQ(std::ssize(lists.points.slots.gradient_elements), 2);  // one for experts, one for dense units
  EXPECT_EQ(std::ssize(lists.points.slots.weight_elements), 4);
}

// insert_unshards verifies its own result.
TEST(UnshardLowering, EveryScheduleHasItsUnitsWhole) {
  int lists = 0;
  for (int kind = 0; kind < kNumScheduleKinds; ++kind) {
    const auto schedule_kind = static_cast<ScheduleKind>(kind);
    const int chunks = is_v_shaped(schedule_kind) || schedule_kind == ScheduleKind::kInterleaved ? 2 : 1;
    for (const int stages : {1, 2, 4}) {
      const Schedule schedule = make_schedule(schedule_kind, stages, chunks, 8);
      for (int stage = 0; stage < stages; ++stage) {
        for (const int slots : {1, 2, 3}) {
          const UnitLists made = lists_of({.slots = slots, .prefetch = slots - 1, .ends = true}, schedule, stage);
          EXPECT_GE(count(made.train, Kind::kReduceShard), 6 * 8);
          EXPECT_GE(count(made.train, Kind::kUnshard), 2 * 4 - slots);
          ++lists;
        }
      }
    }
  }
  EXPECT_EQ(lists, 6 * 7 * 3);
}

TEST(UnshardLowering, ASegmentOfMoreUnitsThanSlotsSaysHowManyItNeeds) {
  const UnitSpec four{.layers = 4, .slots = 4, .prefetch = 3, .layers_together = 4};
  EXPECT_EQ(count(lists_of(four).train, Kind::kWaitUnshard), 4);  // gathered from forward to the end of backward
  UnitSpec few = four;
  few.slots = 2;
  const std::string message = error_of(ExitCode::kUsage, [&] { lists_of(few); });
  EXPECT_THAT(message, AllOf(HasSubstr("--fsdp-unit-slots"), HasSubstr("at least 4"),
                             HasSubstr("got 2; use --fsdp-unit-slots 4"), HasSubstr("--recompute-num-layers")));
  UnshardPoints points = points_of({.layers = 4, .slots = 4, .gradient_slots = 3, .layers_together = 4});
  points.gradients_as_weights = false;
  EXPECT_THAT(error_of(ExitCode::kUsage, [&] { insert_unshards({}, points); }),
              HasSubstr("got 3; use --fsdp-gradient-slots 4"));
}

TEST(VerifyUnits, FindsEachActionThatIsMissingOrMoved) {
  for (const UnitSpec& spec : {UnitSpec{.layers = 3}, UnitSpec{.layers = 3, .slots = 3, .prefetch = 2, .ends = true},
                               UnitSpec{.layers = 4, .slots = 2, .layers_together = 2, .instances = true}}) {
    const UnitLists lists = lists_of(spec, 2);
    for (const std::vector<Action>* list : {&lists.train, &lists.evaluate}) {
      int broken = 0;
      for (std::size_t i = 0; i < list->size(); ++i) {
        const Action action = (*list)[i];
        if (!is_of_unit(action.kind)) continue;
        SCOPED_TRACE(fmt::format("{}: {}", i, to_string(action)));
        std::vector<Action> without = *list;
        without.erase(without.begin() + static_cast<std::ptrdiff_t>(i));
        EXPECT_THROW(verify_units(without, lists.points), Error);
        const bool ends = action.kind == Kind::kReshard || action.kind == Kind::kReduceShard ||
                          action.kind == Kind::kSumInstances || action.kind == Kind::kGatherInstances;
        const auto waits = [&](const Action& a) { return a.kind == Kind::kWaitUnshard && a.item == action.item; };
        const bool is_of_next = action.kind == Kind::kUnshard &&
                                std::none_of(list->begin() + static_cast<std::ptrdiff_t>(i), list->end(), waits);
        if (is_of_next) continue;  // gathers for the next list may be in any order
        std::vector<Action> moved = without;
        moved.insert(ends ? moved.begin() : moved.end(), action);
        EXPECT_THROW(verify_units(moved, lists.points), Error);
        ++broken;
      }
      EXPECT_GT(broken, 2);
    }
  }
}

TEST(VerifyUnits, FindsUnitsThatAreWholeWhileTheOptimizerWrites) {
  const UnitLists lists = lists_of({.layers = 2});
  std::vector<Action> early = lists.train;
  const auto step = std::ranges::find(early, Kind::kOptimizerStep, &Action::kind);
  std::rotate(step, early.end() - 2, early.end());  // gathers for the next list
  EXPECT_THAT(error_of(ExitCode::kInternal, [&] { verify_units(early, lists.points); }),
              HasSubstr("updates weights of"));
}

// Moves the last action of this kind and unit to the position after the last action of kind `before_it`.
std::vector<Action> moved_after(std::vector<Action> actions, const Action& which, Kind before_it) {
  const auto is_it = [&](const Action& a) { return a.kind == which.kind && a.item == which.item; };
  const auto from = std::find_if(actions.rbegin(), actions.rend(), is_it).base() - 1;
  const auto last = std::ranges::find(actions.rbegin(), actions.rend(), before_it, &Action::kind).base();
  EXPECT_LT(from, last);
  std::rotate(from, from + 1, last);
  return actions;
}

TEST(VerifyUnits, FindsWhatAnUpdateLacksAndWhatLacksTheUpdate) {
  struct Case {
    UnitSpec spec;
    Action moved;
    Kind before_it;
    const char* why;
  };
  const UnitSpec instances{.layers = 3, .instances = true};
  for (const Case& c :
       {Case{{.layers = 3}, {.kind = Kind::kReduceShard, .item = 1}, Kind::kOptimizerStep, "updates weights of"},
        Case{instances,
             {.kind = Kind::kGatherInstances, .item = 1},
             Kind::kUnshard,
             "gathers a unit from incomplete shards"}}) {
    const UnitLists lists = lists_of(c.spec);
    const std::vector<Action> broken = moved_after(lists.train, c.moved, c.before_it);
    EXPECT_THAT(error_of(ExitCode::kInternal, [&] { verify_units(broken, lists.points); }), HasSubstr(c.why));
  }
}

}  // namespace
}  // namespace megalith::test
