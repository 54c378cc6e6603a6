// Tests of the positions of a slot's four actions in the lists of all schedules. Lists with a missing or moved action
// are rejected.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "offload/lowering.h"
#include "parallel/pipeline_parallel/lowering.h"
#include "tests/support/error_of.h"
#include "tests/support/matchers.h"

namespace megalith {
namespace {

using Kind = ActionKind;

constexpr int kLayers = 3;  // per chunk, of two segments each; a head follows

// Two slots a layer: the first segment writes one that the second reads; the second writes and reads the other.
OffloadPoints points_of(int chunks, int lag = 1, int ahead = 1) {
  OffloadPoints points{.slots = {}, .layer_of_segment = {}, .lag = lag, .ahead = ahead};
  int segment = 0;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    for (int layer = 0; layer < kLayers; ++layer, segment += 2) {
      points.layer_of_segment.insert(points.layer_of_segment.end(), {layer, layer});
      const auto add = [&](int written, int read, Kind needed_by) {
        points.slots.push_back({.chunk = chunk,
                                .segment = written,
                                .ordinal = 3,
                                .bytes = 256,
                                .last_writer = {.kind = Kind::kForward, .segment = written},
                                .last_forward_reader = {.kind = Kind::kForward, .segment = read},
                                .first_backward_reader = {.kind = needed_by, .segment = read},
                                .name = fmt::format("slot of layer {}", layer)});
      };
      add(segment, segment + 1, Kind::kBackwardWeight);
      add(segment + 1, segment + 1, Kind::kBackwardData);
    }
    points.layer_of_segment.push_back(kLayers);
    ++segment;
  }
  return points;
}

std::vector<Action> plain_list(const Schedule& schedule, int stage) {
  const ChunkSegments segments(static_cast<std::size_t>(schedule.placement.num_chunks), 2 * kLayers + 1);
  return lower_training_step(insert_messages(schedule, stage), segments, {});
}

std::string text_of(const std::vector<Action>& actions, int microbatch) {
  std::string text;
  for (const Action& a : actions) {
    if (a.microbatch != microbatch) continue;
    if (is_of_slot(a.kind)) text += fmt::format("{} {}, ", name_of(a.kind), a.item);
    if (a.kind == Kind::kSend) text += a.gradient ? "send gradient, " : "send, ";
    if (a.kind == Kind::kForward) text += fmt::format("F{}, ", a.segment);
    if (a.kind == Kind::kBackwardData) text += fmt::format("B{}, ", a.segment);
    if (a.kind == Kind::kBackwardWeight) text += fmt::format("W{}, ", a.segment);
  }
  return text;
}

TEST(OffloadLowering, AMicrobatchReadsAsWritten) {
  const Schedule schedule = make_schedule(ScheduleKind::k1F1B, 1, 1, 2);
  EXPECT_EQ(text_of(insert_offloads(plain_list(schedule, 0), points_of(1)), 1),
            "F0, offload 0, F1, offload 1, F2, offload 2, F3, offload 3, wait_offload 0, wait_offload 1, "
            "F4, offload 4, F5, offload 5, wait_offload 2, wait_offload 3, F6, "
            // The last layer's slots return immediately.
            "wait_offload 4, wait_offload 5, reload 5, reload 4, B6, W6, "
            "reload 3, reload 2, wait_reload 5, B5, wait_reload 4, W5, B4, W4, "
            "reload 1, reload 0, wait_reload 3, B3, wait_reload 2, W3, B2, W2, "
            "wait_reload 1, B1, wait_reload 0, W1, B0, W0, ");
}

// Slots return in the order of their writers, so a wait for the last one covers the others.
TEST(OffloadLowering, WaitsFirstForTheLastOfThoseThatAreNeededTogether) {
  OffloadPoints points = points_of(1);
  points.between_layers = true;
  const std::vector<Action> list = plain_list(make_schedule(ScheduleKind::k1F1B, 1, 1, 1), 0);
  EXPECT_THAT(text_of(insert_offloads(list, points), 0),
              AllOf(HasSubstr("W6, reload 2, reload 3, wait_reload 5, wait_reload 4, B5, "),
                    HasSubstr("W4, reload 0, reload 1, wait_reload 3, wait_reload 2, B3, "),
                    HasSubstr("W2, wait_reload 1, wait_reload 0, B1, ")));
}

// The send reads the chunk's output.
TEST(OffloadLowering, WhatIsSentLeavesAfterTheSend) {
  const std::vector<Action> list = plain_list(make_schedule(ScheduleKind::k1F1B, 2, 1, 1), 0);
  OffloadPoints points = points_of(1, 0, 0);
  const auto at_end_of = [&](int segment) {
    OffloadSlot slot = points_of(1).slots[1];
    slot.segment = slot.last_writer.segment = slot.last_forward_reader.segment = segment;
    slot.first_backward_reader.segment = segment;
    return slot;
  };
  points.slots = {at_end_of(5), at_end_of(6)};
  EXPECT_THAT(text_of(insert_offloads(list, points), 0),
              HasSubstr("F5, offload 0, wait_offload 0, F6, offload 1, send, wait_offload 1, "));
}

// Waits keep the order of copies: a wait with a larger lag does not delay later waits.
TEST(OffloadLowering, ALateWaitComesBeforeThatOfALaterCopy) {
  const std::vector<Action> list = plain_list(make_schedule(ScheduleKind::k1F1B, 1, 1, 1), 0);
  OffloadPoints points = points_of(1);
  const std::vector<Action> plain = insert_offloads(list, points);
  points.slots[0].lag = 2;
  EXPECT_EQ(insert_offloads(list, points), plain);
}

// Each action occurs once, in order, where the verbs allow it; insert_offloads verifies its own result.
TEST(OffloadLowering, EveryScheduleMovesEachSlotOnceInEachMicrobatch) {
  int lists = 0, bounded = 0;
  for (int kind = 0; kind < kNumScheduleKinds; ++kind) {
    const auto schedule_kind = static_cast<ScheduleKind>(kind);
    const int chunks = is_v_shaped(schedule_kind) || schedule_kind == ScheduleKind::kInterleaved ? 2 : 1;
    for (const int stages : {1, 2, 4}) {
      const Schedule schedule = make_schedule(schedule_kind, stages, chunks, 8);
      for (int stage = 0; stage < stages; ++stage) {
        for (const int distance : {0, 1, 3}) {
          const OffloadPoints points = points_of(chunks, distance, distance);
          const std::vector<Action> list = insert_offloads(plain_list(schedule, stage), points);
          for (const Kind each : {Kind::kOffload, Kind::kWaitOffload, Kind::kReload, Kind::kWaitReload})
            EXPECT_EQ(std::ranges::count(list, each, &Action::kind), std::ssize(points.slots) * 8);
          std::vector<Action> verbs = list;
          std::erase_if(verbs, [](const Action& a) { return is_of_slot(a.kind); });
          EXPECT_EQ(verbs, plain_list(schedule, stage));
          ++lists;
          // Between a slot's last reader and its wait there are at most `distance` layers and the rest of its layer.
          for (std::size_t i = 0; i < list.size(); ++i) {
            if (list[i].kind != Kind::kWaitOffload) continue;
            int verbs_before = 0;
            for (std::size_t at = i; at-- > 0;) {
              const Action& a = list[at];
              if (a.segment < 0) continue;
              if (a.kind == Kind::kForward && a.microbatch == list[i].microbatch && a.chunk == list[i].chunk &&
                  a.segment == points.slots[static_cast<std::size_t>(list[i].item)].last_forward_reader.segment)
                break;
              ++verbs_before;
            }
            EXPECT_LE(verbs_before, distance * 4);  // a layer of backward has four verbs
            ++bounded;
          }
        }
      }
    }
  }
  EXPECT_EQ(lists, 6 * 7 * 3);
  EXPECT_GT(bounded, 1000);
}

TEST(VerifyOffloads, FindsEachActionThatIsMissingOrMoved) {
  for (const auto& [kind, chunks] : {std::pair(ScheduleKind::k1F1B, 1), std::pair(ScheduleKind::kZbV, 2)}) {
    const OffloadPoints points = points_of(chunks);
    const std::vector<Action> list = insert_offloads(plain_list(make_schedule(kind, 2, chunks, 4), 0), points);
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (!is_of_slot(list[i].kind)) continue;
      SCOPED_TRACE(fmt::format("{}: {}", i, to_string(list[i])));
      std::vector<Action> without = list;
      without.erase(without.begin() + static_cast<std::ptrdiff_t>(i));
      EXPECT_THROW(verify_offloads(without, points), Error);
      for (const bool to_begin : {true, false}) {
        std::vector<Action> moved = without;
        moved.insert(to_begin ? moved.begin() : moved.end(), list[i]);
        EXPECT_THROW(verify_offloads(moved, points), Error);
      }
      std::vector<Action> other = list;
      ++other[i].column;
      EXPECT_THROW(verify_offloads(other, points), Error);
    }
  }
}

// The only slot is written by F0, read by F1 and needed by W1.
TEST(VerifyOffloads, NamesWhatAnActionNeedsBeforeIt) {
  OffloadPoints points = points_of(1);
  points.slots.resize(1);
  const std::vector<Action> list = insert_offloads(plain_list(make_schedule(ScheduleKind::k1F1B, 1, 1, 1), 0), points);
  ASSERT_THAT(text_of(list, 0), HasSubstr("F0, offload 0, F1, "));
  struct Verb {
    Kind kind;
    int segment = -1;
  };
  struct Case {
    std::vector<Kind> moved;
    Verb ahead_of;
    Verb later, earlier;
  };
  constexpr Verb kW0{Kind::kBackwardWeight, 0}, kW1{Kind::kBackwardWeight, 1}, kF0{Kind::kForward, 0},
      kF1{Kind::kForward, 1}, kF4{Kind::kForward, 4}, kB1{Kind::kBackwardData, 1};
  constexpr Verb kOut{Kind::kOffload}, kLeft{Kind::kWaitOffload}, kBack{Kind::kReload}, kHere{Kind::kWaitReload};
  const Case cases[] = {
      {{Kind::kOffload}, kF0, kOut, kF0},
      {{Kind::kOffload}, kF4, kLeft, kOut},
      {{Kind::kWaitOffload}, kF1, kLeft, kF1},
      {{Kind::kWaitOffload, Kind::kReload, Kind::kWaitReload}, kW1, kB1, kLeft},
      {{Kind::kReload}, kLeft, kBack, kLeft},
      {{Kind::kWaitReload}, kBack, kHere, kBack},
      {{Kind::kWaitReload}, kW0, kW1, kHere},
  };
  const auto find = [](const std::vector<Action>& in, const Verb& verb) {
    return std::ranges::find_if(in, [&](const Action& a) { return a.kind == verb.kind && a.segment == verb.segment; });
  };
  for (const Case& each : cases) {
    const std::string later = to_string(*find(list, each.later)), earlier = to_string(*find(list, each.earlier));
    std::vector<Action> moved = list;
    for (const Kind kind : each.moved) {
      const Action action = *find(list, {kind});
      std::erase(moved, action);
      moved.insert(find(moved, each.ahead_of), action);
    }
    EXPECT_THAT(error_of(ExitCode::kInternal, [&] { verify_offloads(moved, points); }),
                HasSubstr(fmt::format("{} needs before it: {}", later, earlier)));
  }
}

TEST(VerifyOffloads, RefusesASlotThatTheChunkLacks) {
  const OffloadPoints points = points_of(2);
  const std::vector<Action> list = insert_offloads(plain_list(make_schedule(ScheduleKind::kZbV, 2, 2, 4), 0), points);
  for (const auto& [item, why] : {std::pair{-1, "refers to no slot"},
                                  {static_cast<int>(points.slots.size()), "refers to no slot"},
                                  {0, "refers to a slot of another chunk"}}) {
    std::vector<Action> more = list;
    more.push_back({.kind = Kind::kReload, .chunk = 1, .item = item});
    EXPECT_THAT(error_of(ExitCode::kInternal, [&] { verify_offloads(more, points); }), HasSubstr(why));
  }
}

TEST(VerifyOffloads, RefusesWaitsInAnotherOrderThanTheCopies) {
  const OffloadPoints points = points_of(1);
  std::vector<Action> list = insert_offloads(plain_list(make_schedule(ScheduleKind::k1F1B, 1, 1, 1), 0), points);
  const auto first = std::ranges::find(list, Kind::kWaitOffload, &Action::kind);
  std::iter_swap(first, first + 1);
  EXPECT_THAT(error_of(ExitCode::kInternal, [&] { verify_offloads(list, points); }),
              HasSubstr("waits for a copy out of order"));
}

}  // namespace
}  // namespace megalith
