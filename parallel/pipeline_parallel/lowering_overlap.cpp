#include <algorithm>
#include <utility>

#include "parallel/pipeline_parallel/lowering.h"

namespace megalith {

namespace {

using Kind = ActionKind;
using Piece = std::vector<Action>;  // ends with the start of an exchange, or is the last

// Pieces of one verb of a chunk, in the order of its segments.
class Pieces {
 public:
  Pieces(const Action& verb, const ReturnPoints& returns) : verb_(verb), returns_(returns) {
    verb_.with_next = false;
    pieces_.emplace_back();
  }

  void add_forward(int segment) {
    add(Kind::kForward, segment);
    leave(returns_.split.forward, segment, false);
  }
  void add_backward(int segment, bool with_weight) {
    add(Kind::kBackwardData, segment);
    if (returns_.segments.contains(segment)) pieces_.back().push_back(exchange(Kind::kWaitExchange, segment, true));
    leave(returns_.split.backward, segment, true);
    if (with_weight) weights_.push_back(of(Kind::kBackwardWeight, segment));  // after its exchange is finished
  }
  void add_weight(int segment) { pieces_.back().push_back(of(Kind::kBackwardWeight, segment)); }

  std::vector<Piece> take() {
    flush();
    return std::move(pieces_);
  }

 private:
  Action of(Kind kind, int segment) const {
    Action action = verb_;
    action.kind = kind;
    action.segment = segment;
    return action;
  }
  Action exchange(Kind kind, int segment, bool gradient) const {
    Action action = of(kind, -1);
    action.item = segment;
    action.gradient = gradient;
    return action;
  }

  void add(Kind kind, int segment) {
    Action action = of(kind, segment);
    action.finishes_exchange = std::exchange(finishes_, false);
    pieces_.back().push_back(action);
  }

  void leave(const std::set<int>& split, int segment, bool gradient) {
    if (!split.contains(segment)) return;
    pieces_.back().back().leaves_exchange = finishes_ = true;
    pieces_.back().push_back(exchange(Kind::kStartExchange, segment, gradient));
    flush();
    pieces_.push_back({exchange(Kind::kWaitExchange, segment, gradient)});
  }

  void flush() {
    pieces_.back().insert(pieces_.back().end(), weights_.begin(), weights_.end());
    weights_.clear();
  }

  Action verb_;
  const ReturnPoints& returns_;
  std::vector<Piece> pieces_;
  std::vector<Action> weights_;  // that the next start of an exchange precedes
  bool finishes_ = false;        // the next verb finishes the exchange of the segment before
};

bool follows_own_data(const std::vector<Action>& actions, std::size_t i) {
  return i > 0 && actions[i - 1].kind == Kind::kBackwardData && actions[i - 1].with_next &&
         actions[i - 1].chunk == actions[i].chunk && actions[i - 1].microbatch == actions[i].microbatch;
}

}  // namespace

std::vector<Action> expand_overlapped(const std::vector<Action>& actions, const ChunkSegments& segments,
                                      const ReturnPoints& returns) {
  std::vector<Action> expanded;
  for (std::size_t first = 0; first < actions.size();) {
    // Messages inside of a block precede it.
    std::size_t end = first;
    std::vector<Action> verbs;
    for (bool inside = true; inside && end < actions.size(); ++end) {
      Action action = actions[end];
      if (is_message(action.kind)) {
        action.segment = -1;
        expanded.push_back(action);
        inside = !verbs.empty();
      } else {
        inside = action.with_next;
        verbs.push_back(action);
      }
    }
    first = end;
    std::vector<Piece> forward, backward;
    for (std::size_t i = 0; i < verbs.size(); ++i) {
      const Action& verb = verbs[i];
      const int begin = first_segment(segments, verb.chunk), last = first_segment(segments, verb.chunk + 1) - 1;
      if (verb.kind == Kind::kBackwardWeight && follows_own_data(verbs, i)) continue;
      Pieces pieces(verb, returns);
      if (verb.kind == Kind::kForward) {
        for (int s = begin; s <= last; ++s) pieces.add_forward(s);
      } else {
        const bool both = verb.kind == Kind::kBackwardData && i + 1 < verbs.size() && follows_own_data(verbs, i + 1) &&
                          verbs[i + 1].kind == Kind::kBackwardWeight;
        for (int s = last; s >= begin; --s)
          verb.kind == Kind::kBackwardData ? pieces.add_backward(s, both) : pieces.add_weight(s);
      }
      std::vector<Piece>& to = verb.kind == Kind::kForward ? forward : backward;
      std::ranges::move(pieces.take(), std::back_inserter(to));
    }
    for (std::size_t i = 0; i < std::max(forward.size(), backward.size()); ++i) {
      for (const std::vector<Piece>* of : {&backward, &forward})
        if (i < of->size()) expanded.insert(expanded.end(), (*of)[i].begin(), (*of)[i].end());
    }
  }
  return expanded;
}

}  // namespace megalith
