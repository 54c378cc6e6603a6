// The lists of all stages together. Sends and receives have the same order. No stage blocks forever, even if a message
// leaves only when its receiver has posted.
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <set>
#include <tuple>

#include "core/base/error.h"
#include "parallel/pipeline_parallel/lowering.h"
#include "parallel/pipeline_parallel/messages.h"
#include "tests/support/matchers.h"
#include "tests/unit/parallel/schedule_support.h"

namespace megalith {
namespace {

// Content of a message: the part whose output (or whose output's gradient) it is, and the microbatch.
using Cargo = std::tuple<int, int, bool>;

// Runs the stages' lists with blocking messages: each channel moves its oldest message once it was sent and posted.
class Play {
 public:
  Play(const Placement& placement, std::vector<std::vector<Action>> stages)
      : placement_(placement), stages_(std::move(stages)), next_(stages_.size()) {}

  // Returns false if the stages stop ahead of their ends.
  bool run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t s = 0; s < stages_.size(); ++s) {
        while (next_[s] < stages_[s].size() && step(static_cast<int>(s), stages_[s][next_[s]])) {
          ++next_[s];
          moved = true;
        }
      }
    }
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      if (next_[s] == stages_[s].size()) continue;
      ADD_FAILURE() << "stage " << s << " stops at " << to_string(stages_[s][next_[s]]);
      return false;
    }
    return true;
  }
  std::size_t messages() const { return arrived_.size(); }

 private:
  struct Channel {
    std::deque<Cargo> sent, posted;
  };

  Cargo cargo_of(int stage, const Action& a, bool receives) const {
    const int part = placement_.part({.stage = stage, .chunk = a.chunk});
    // The part whose output it is, or whose output's gradient.
    return {a.gradient == receives ? part : part - 1, a.microbatch, a.gradient};
  }

  void move(Channel& channel) {
    while (!channel.sent.empty() && !channel.posted.empty()) {
      EXPECT_EQ(channel.sent.front(), channel.posted.front()) << "another message than the receiver expects";
      arrived_.insert(channel.sent.front());
      channel.sent.pop_front();
      channel.posted.pop_front();
    }
  }

  bool step(int stage, const Action& a) {
    if (!is_message(a.kind) || a.peer == kThisStage) return true;
    const bool receives = a.kind == ActionKind::kPostReceive || a.kind == ActionKind::kWaitReceive;
    const Cargo cargo = cargo_of(stage, a, receives);
    if (a.kind == ActionKind::kWaitReceive || a.kind == ActionKind::kWaitSend) return arrived_.contains(cargo);
    Channel& channel = receives ? channels_[{a.peer, stage}] : channels_[{stage, a.peer}];
    (receives ? channel.posted : channel.sent).push_back(cargo);
    move(channel);
    return true;
  }

  const Placement& placement_;
  std::vector<std::vector<Action>> stages_;
  std::vector<std::size_t> next_;
  std::map<std::pair<int, int>, Channel> channels_;  // (from, to)
  std::set<Cargo> arrived_;
};

std::vector<std::string> messages_in(const std::vector<Action>& actions) {
  std::vector<std::string> lines;
  for (const Action& a : actions) lines.push_back(to_string(a));
  return lines;
}

void expect_ends(const Schedule& schedule, std::size_t& messages) {
  const Placement& placement = schedule.placement;
  const ChunkSegments segments(static_cast<std::size_t>(placement.num_chunks), 2);
  std::vector<std::vector<Action>> stages, evaluation;
  const Schedule forwards = forwards_of(schedule);
  for (int stage = 0; stage < placement.num_stages; ++stage) {
    stages.push_back(lower_training_step(insert_messages(schedule, stage), segments, {}));  // and verified
    evaluation.push_back(lower_evaluation_step(insert_messages(forwards, stage), segments));
  }
  Play training(placement, stages), evaluating(placement, evaluation);
  ASSERT_TRUE(training.run());
  ASSERT_TRUE(evaluating.run());
  ASSERT_EQ(training.messages(), messages_of(schedule, kReceiveAhead).size());
  ASSERT_EQ(2 * evaluating.messages(), training.messages());
  messages += training.messages();
}

TEST(LoweringOfMessages, TheListsOfAllStagesRunToTheirEnds) {
  std::size_t messages = 0;
  test::for_each_schedule([&](const Schedule& schedule) {
    if (schedule.num_microbatches <= 16) expect_ends(schedule, messages);
  });
  EXPECT_GT(messages, 50'000u);
}

TEST(LoweringOfMessages, DelayedWeightGradientsLetNoStageWaitForEver) {
  std::size_t messages = 0;
  test::for_each_schedule([&](const Schedule& schedule) {
    if (schedule.num_microbatches > 8 && schedule.num_microbatches != 16) return;
    const Schedule delayed = delay_weights(schedule);
    for (const std::vector<Action>& stage : delayed.stages) {
      for (const Action& a : stage) ASSERT_FALSE(a.with_next);
    }
    verify(delayed);
    expect_ends(delayed, messages);
  });
  EXPECT_GT(messages, 10'000u);
}

TEST(LoweringOfMessages, OneMicrobatchOnTwoStagesReadsAsWritten) {
  const Schedule schedule = make_schedule(ScheduleKind::k1F1B, 2, 1, 1);
  EXPECT_THAT(
      messages_in(insert_messages(schedule, 0)),
      ElementsAre("post_receive chunk 0 microbatch 0 gradient from stage 1", "forward chunk 0 microbatch 0",
                  "send chunk 0 microbatch 0 output to stage 1",
                  "wait_receive chunk 0 microbatch 0 gradient from stage 1", "backward_data chunk 0 microbatch 0",
                  "backward_weight chunk 0 microbatch 0", "wait_send chunk 0 microbatch 0 output to stage 1"));
  EXPECT_THAT(messages_in(insert_messages(schedule, 1)),
              ElementsAre("post_receive chunk 0 microbatch 0 output from stage 0",
                          "wait_receive chunk 0 microbatch 0 output from stage 0", "forward chunk 0 microbatch 0",
                          "backward_data chunk 0 microbatch 0", "backward_weight chunk 0 microbatch 0",
                          "send chunk 0 microbatch 0 gradient to stage 0",
                          "wait_send chunk 0 microbatch 0 gradient to stage 0"));
}

TEST(LoweringOfMessages, TheTurnOfAVIsHandedOverWithoutAMessage) {
  const Schedule schedule = make_schedule(ScheduleKind::kZbV, 1, 2, 1);
  EXPECT_THAT(messages_in(insert_messages(schedule, 0)),
              ElementsAre("forward chunk 0 microbatch 0", "send chunk 0 microbatch 0 output to this stage",
                          "wait_receive chunk 1 microbatch 0 output from this stage", "forward chunk 1 microbatch 0",
                          "backward_data chunk 1 microbatch 0", "backward_weight chunk 1 microbatch 0",
                          "send chunk 1 microbatch 0 gradient to this stage",
                          "wait_receive chunk 0 microbatch 0 gradient from this stage",
                          "backward_data chunk 0 microbatch 0", "backward_weight chunk 0 microbatch 0"));
}

TEST(LoweringOfMessages, OneStageOfOneChunkHasNone) {
  const Schedule schedule = make_schedule(ScheduleKind::k1F1B, 1, 1, 4);
  EXPECT_EQ(insert_messages(schedule, 0), schedule.stages[0]);
}

// A gradient that is sent after the sums of the tied embedding would never come: the first stage waits there.
TEST(LoweringOfMessages, TiedGradientsMeetAfterTheLastMessage) {
  const Schedule schedule = make_schedule(ScheduleKind::kZbH1, 2, 1, 4);
  const std::vector<Action> step =
      lower_training_step(insert_messages(schedule, 1), {3},
                          {.segments_of_bucket = {{2}, {0, 1}}, .tied_segment = 2, .tied_across_stages = true});
  std::size_t tie = 0, last_message = 0, reduced = 0;
  for (std::size_t i = 0; i < step.size(); ++i) {
    if (step[i].kind == ActionKind::kTieGradients) tie = i;
    if (is_message(step[i].kind)) last_message = i;
    if (step[i].kind == ActionKind::kReduce && step[i].item == 0) reduced = i;
  }
  EXPECT_GT(tie, last_message);
  EXPECT_GT(reduced, tie);
}

// verify() finds each message that is missing, and each that comes too late or too early for its verb.
TEST(LoweringOfMessages, VerifyFindsDamage) {
  const Schedule schedule = make_schedule(ScheduleKind::k1F1B, 3, 1, 3);
  const std::vector<Action> step = lower_training_step(insert_messages(schedule, 1), {2}, {});
  const auto accepted = [](const std::vector<Action>& list) {
    try {
      verify(list, {2}, {});
      return true;
    } catch (const Error&) {
      return false;
    }
  };
  ASSERT_TRUE(accepted(step));
  int damaged_lists = 0;
  for (std::size_t i = 0; i < step.size(); ++i) {
    if (!is_message(step[i].kind)) continue;
    std::vector<Action> damaged = step;
    damaged.erase(damaged.begin() + static_cast<std::ptrdiff_t>(i));
    EXPECT_FALSE(accepted(damaged)) << "without " << to_string(step[i]);
    damaged = step;
    damaged.insert(damaged.begin() + static_cast<std::ptrdiff_t>(i), step[i]);
    EXPECT_FALSE(accepted(damaged)) << "twice " << to_string(step[i]);
    damaged = step;
    const bool is_send = step[i].kind == ActionKind::kSend;
    const bool is_wait = step[i].kind == ActionKind::kWaitReceive;
    if (is_send)
      std::rotate(damaged.begin(), damaged.begin() + static_cast<std::ptrdiff_t>(i),
                  damaged.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    if (is_wait)
      std::rotate(damaged.begin() + static_cast<std::ptrdiff_t>(i),
                  damaged.begin() + static_cast<std::ptrdiff_t>(i) + 1, damaged.end());
    EXPECT_EQ(accepted(damaged), !is_send && !is_wait) << "elsewhere " << to_string(step[i]);
    ++damaged_lists;
  }
  EXPECT_EQ(damaged_lists, 24);
}

}  // namespace
}  // namespace megalith
