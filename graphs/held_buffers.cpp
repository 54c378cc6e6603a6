#include "graphs/held_buffers.h"

#include <algorithm>

namespace megalith {

namespace {

constexpr int kNone = -1;

// Blocks of adjacent segments that run eagerly.
class Blocks {
 public:
  Blocks(const std::vector<Action>& actions, const GraphRunPlan& plan) {
    int last = kNone;
    for (const Action& action : actions) last = std::max(last, action.segment);
    std::vector<bool> captured(static_cast<std::size_t>(last + 1));
    for (const GraphRun& run : plan.runs) {
      for (std::size_t i = run.first; i < run.first + run.count; ++i)
        if (actions[i].segment >= 0) captured[static_cast<std::size_t>(actions[i].segment)] = true;
    }
    int block = 0;
    for (const bool is_captured : captured) blocks_.push_back(is_captured ? (++block, kNone) : block);
  }
  // Block of the segment; kNone if it is captured or negative.
  int of(int segment) const { return segment < 0 ? kNone : blocks_[static_cast<std::size_t>(segment)]; }
  // True if the segment's output is in a list where a graph begins or ends.
  bool borders_graph(int segment) const {
    const auto is_captured = [&](int s) { return s >= 0 && s < std::ssize(blocks_) && of(s) == kNone; };
    return is_captured(segment - 1) || is_captured(segment) || is_captured(segment + 1);
  }

 private:
  std::vector<int> blocks_;
};

}  // namespace

std::vector<bool> held_by_graphs(const Timeline& timeline, const Arena& recording, const std::vector<Action>& actions,
                                 const std::vector<std::size_t>& entries, const GraphRunPlan& plan) {
  if (plan.runs.empty()) return {};
  const Blocks blocks(actions, plan);
  const std::vector<Arena::Recorded>& buffers = recording.recorded();
  std::vector<bool> held;
  for (const Arena::Recorded& buffer : buffers) {
    const int home = blocks.of(buffer.key.scope.segment);
    const auto is_elsewhere = [&](const Arena::Kept& kept) { return blocks.of(kept.segment) != home; };
    const auto is_listed = [&](std::int32_t segment) { return blocks.borders_graph(segment); };
    held.push_back(home == kNone || std::ranges::any_of(buffer.kept, is_elsewhere) ||
                   std::ranges::any_of(buffer.passed_by, is_listed));
  }
  for (std::size_t i = 0; i < actions.size(); ++i) {
    if (is_of_slot(actions[i].kind)) continue;  // copies, for the current owner of the buffer
    const int block = blocks.of(actions[i].segment);
    const std::size_t end = i + 1 < entries.size() ? entries[i + 1] : timeline.entries().size();
    for (std::size_t e = entries[i]; e < end; ++e) {
      for (const AccessRange& range : timeline.entries()[e].access.ranges()) {
        const std::size_t index = recording.index_recorded(range.begin);
        if (index < buffers.size() && block != blocks.of(buffers[index].key.scope.segment)) held[index] = true;
      }
    }
  }
  return held;
}

}  // namespace megalith
