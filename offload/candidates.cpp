#include "offload/candidates.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

#include "core/base/error.h"

namespace megalith {

namespace {

bool is_verb(ActionKind kind) {
  return kind == ActionKind::kForward || kind == ActionKind::kBackwardData || kind == ActionKind::kBackwardWeight;
}
// True for backward verbs and for messages of gradients.
bool is_backward(const Action& action) {
  return action.kind == ActionKind::kBackwardData || action.kind == ActionKind::kBackwardWeight ||
         (is_message(action.kind) && action.gradient);
}

// Actions that access a storage, as positions in the list; -1: none.
struct Touches {
  std::ptrdiff_t first_forward = -1, last_writer = -1, last_saver = -1, last_forward = -1;  // verbs
  std::ptrdiff_t first_backward = -1;                                                       // verb or message
  bool is_sent = false;    // read by the send of the chunk's output
  bool of_others = false;  // accessed in another column, or by an action without microbatch
};

class Finder {
 public:
  Finder(const OffloadRecording& recording, const std::vector<SegmentName>& segments)
      : recording_(recording), segments_(segments) {
    for (const Action& action : recording.actions) {
      if (!is_of_microbatch(action.kind)) continue;
      chunk_of_column_[action.column] = action.chunk;
      int& last = last_segment_[action.chunk];
      last = std::max(last, action.segment);
    }
    for (std::size_t place = 0; place < recording.actions.size(); ++place) {
      const Action& action = recording.actions[place];
      if (is_verb(action.kind))
        verbs_[{action.kind, action.chunk, action.microbatch, action.segment}] = static_cast<std::ptrdiff_t>(place);
    }
  }

  std::vector<OffloadCandidate> find() {
    std::vector<Touches> touches = all_touches();
    const std::vector<Arena::Recorded>& recorded = recording_.arena.recorded();
    for (std::size_t i = 0; i < recorded.size(); ++i) count_savers(recorded[i], touches[i]);
    for (std::size_t i = 0; i < recorded.size(); ++i) {
      if (touches[i].last_forward >= 0 && is_selectable(recorded[i]))
        add(candidate_of(recorded[i], touches[i]), touches[i]);
    }
    std::vector<OffloadCandidate> candidates;
    for (auto& [key, found] : found_) {
      found.candidate.straight_back = 2 * found.straight_back >= found.microbatches;
      order_.emplace_back(found.candidate.slot.chunk, found.first_forward, candidates.size());
      candidates.push_back(std::move(found.candidate));
    }
    std::ranges::sort(order_);
    std::vector<OffloadCandidate> ordered;
    for (const auto& [chunk, place, index] : order_) ordered.push_back(std::move(candidates[index]));
    return ordered;
  }

 private:
  struct Found {
    OffloadCandidate candidate;
    std::ptrdiff_t first_forward = 0;  // last reader in the first microbatch
    int microbatches = 0;
    int straight_back = 0;  // number of these microbatches
  };

  static bool is_selectable(const Arena::Recorded& recorded) {
    return std::ranges::any_of(recorded.kept,
                               [](const Arena::Kept& kept) { return slot_kind_of(kept.owner).has_value(); });
  }

  std::vector<Touches> all_touches() const {
    const std::vector<Arena::Recorded>& recorded = recording_.arena.recorded();
    std::vector<Touches> touches(recorded.size());
    const std::vector<Timeline::Entry>& entries = recording_.timeline.entries();
    std::size_t action = 0;
    for (std::size_t e = recording_.entries.empty() ? entries.size() : recording_.entries[0]; e < entries.size(); ++e) {
      while (action + 1 < recording_.entries.size() && recording_.entries[action + 1] <= e) ++action;
      for (const AccessRange& range : entries[e].access.ranges()) {
        const std::size_t index = recording_.arena.index_recorded(range.begin);
        if (index < recorded.size()) touch(touches[index], recorded[index], verb_for(action), range.write);
      }
    }
    return touches;
  }

  // Place of the verb that stands for an exchange's start: the verb that reads what arrives, or the backward verb
  // ahead.
  std::size_t verb_for(std::size_t place) const {
    const Action& action = recording_.actions[place];
    if (action.kind != ActionKind::kStartExchange) return place;
    const ActionKind kind = action.gradient ? ActionKind::kBackwardData : ActionKind::kForward;
    return static_cast<std::size_t>(
        verbs_.at({kind, action.chunk, action.microbatch, action.item + (action.gradient ? 0 : 1)}));
  }

  void touch(Touches& touches, const Arena::Recorded& recorded, std::size_t place, bool writes) const {
    const Action& action = recording_.actions[place];
    const auto at = static_cast<std::ptrdiff_t>(place);
    if (!is_of_microbatch(action.kind) || action.column != recorded.key.scope.column) {
      touches.of_others = true;
    } else if (is_backward(action)) {
      if (touches.first_backward < 0) touches.first_backward = at;
    } else if (action.kind == ActionKind::kForward) {
      if (touches.first_forward < 0) touches.first_forward = at;
      touches.last_forward = at;
      if (writes) touches.last_writer = at;
    } else if (action.kind == ActionKind::kSend) {
      touches.is_sent = true;
    }
  }

  // Counts a verb that keeps a view as a reader, even if it does not read the view.
  void count_savers(const Arena::Recorded& recorded, Touches& touches) const {
    if (touches.last_forward < 0) return;
    const Action& reader = recording_.actions[static_cast<std::size_t>(touches.last_forward)];
    for (const Arena::Kept& kept : recorded.kept) {
      const auto saver = verbs_.find({ActionKind::kForward, reader.chunk, reader.microbatch, kept.segment});
      if (saver == verbs_.end()) {
        touches.of_others = true;
      } else {
        touches.last_saver = std::max(touches.last_saver, saver->second);
      }
    }
    touches.last_forward = std::max(touches.last_forward, touches.last_saver);
  }

  std::int64_t layer_of(int segment) const {
    return segment < 0 ? -1 : segments_[static_cast<std::size_t>(segment)].layer;
  }
  SlotVerb verb_at(std::ptrdiff_t place) const {
    if (place < 0) return {};
    const Action& action = recording_.actions[static_cast<std::size_t>(place)];
    return {.kind = action.kind, .segment = action.segment};
  }

  OffloadCandidate candidate_of(const Arena::Recorded& recorded, const Touches& touches) const {
    const ArenaKey& key = recorded.key;
    const std::ptrdiff_t writer = touches.last_writer >= 0 ? touches.last_writer : touches.first_forward;  // received
    OffloadCandidate candidate{.slot = {.chunk = chunk_of_column_.at(key.scope.column),
                                        .segment = key.scope.segment,
                                        .verb = key.scope.verb,
                                        .ordinal = key.ordinal,
                                        .bytes = recorded.bytes,
                                        .last_writer = verb_at(writer),
                                        .last_forward_reader = verb_at(touches.last_forward),
                                        .first_backward_reader = verb_at(touches.first_backward)},
                               .views = {}};
    describe(candidate, recorded);
    if (candidate.slot.bounded && !recording_.between_layers)
      candidate.slot.last_writer = verb_at(std::max(writer, touches.last_saver));
    const bool vetoed = std::ranges::any_of(recorded.kept, &Arena::Kept::never_offload);
    if (vetoed) {
      candidate.stays = kNeverOffload;
    } else if (touches.of_others) {
      candidate.stays = "passed to another chunk of the stage";
    } else if (touches.is_sent &&
               candidate.slot.last_forward_reader.segment != last_segment_.at(candidate.slot.chunk)) {
      candidate.stays = "read again when the chunk's output is sent";
    } else if (touches.first_backward < 0) {
      candidate.stays = "backward does not read it";
    } else if (!is_verb(candidate.slot.first_backward_reader.kind)) {
      candidate.stays = "first read by a backward message";
    }
    return candidate;
  }

  // Sets kinds, layer and name.
  void describe(OffloadCandidate& candidate, const Arena::Recorded& recorded) const {
    OffloadSlot& slot = candidate.slot;
    std::vector<int> votes;
    int segment = -1, most = 0;
    for (const Arena::Kept& kept : recorded.kept) {
      slot.bounded |= kept.bounded;
      const std::optional<SlotKind> kind = slot_kind_of(kept.owner);
      if (!kind) continue;
      const OffloadCandidate::View view{.kind = *kind, .layer = layer_of(kept.segment)};
      auto found = std::ranges::find(candidate.views, view);
      if (found == candidate.views.end()) {
        found = candidate.views.insert(found, view);
        votes.push_back(0);
      }
      if (std::ranges::find(slot.kinds, *kind) == slot.kinds.end()) slot.kinds.push_back(*kind);
      int& vote = votes[static_cast<std::size_t>(found - candidate.views.begin())];
      if (++vote <= most) continue;
      most = vote;
      segment = kept.segment;
      slot.kind = view.kind;
      slot.layer = view.layer;
    }
    slot.name = fmt::format("{}: {}", segments_[static_cast<std::size_t>(segment)].name, name_of(slot.kind));
  }

  bool comes_straight_back(const OffloadCandidate& candidate, const Touches& touches) const {
    const int microbatch = recording_.actions[static_cast<std::size_t>(touches.last_forward)].microbatch;
    for (std::ptrdiff_t place = touches.last_forward + 1; place < touches.first_backward; ++place) {
      const Action& action = recording_.actions[static_cast<std::size_t>(place)];
      if (!is_verb(action.kind)) continue;
      const std::int64_t layer = layer_of(action.segment);
      if (layer >= 0 && (layer != candidate.slot.layer || action.microbatch != microbatch)) return false;
    }
    return true;
  }

  void add(OffloadCandidate candidate, const Touches& touches) {
    const OffloadSlot& slot = candidate.slot;
    const bool straight = comes_straight_back(candidate, touches);
    const auto [at, is_new] = found_.try_emplace(std::tuple(slot.chunk, slot.segment, slot.verb, slot.ordinal));
    Found& found = at->second;
    if (is_new)
      found = {.candidate = std::move(candidate), .first_forward = touches.last_forward};
    else
      check_equal(found.candidate, candidate);
    ++found.microbatches;
    found.straight_back += straight ? 1 : 0;
  }

  static void check_equal(const OffloadCandidate& one, const OffloadCandidate& other) {
    const OffloadSlot &a = one.slot, &b = other.slot;
    if (a.bytes == b.bytes && a.bounded == b.bounded && one.views == other.views && one.stays == other.stays &&
        a.last_writer == b.last_writer && a.last_forward_reader == b.last_forward_reader &&
        a.first_backward_reader == b.first_backward_reader)
      return;
    const auto describe_slot = [](const OffloadSlot& slot) {
      return fmt::format("{} bytes, last read by {} of segment {}, then by {} of segment {}", slot.bytes,
                         name_of(slot.last_forward_reader.kind), slot.last_forward_reader.segment,
                         name_of(slot.first_backward_reader.kind), slot.first_backward_reader.segment);
    };
    fail({.subject = fmt::format("offload: {} of chunk {}", a.name, a.chunk),
          .expected = fmt::format("the same in each microbatch: {}", describe_slot(a)),
          .got = describe_slot(b)});
  }

  const OffloadRecording& recording_;
  const std::vector<SegmentName>& segments_;
  std::map<int, int> chunk_of_column_;
  std::map<int, int> last_segment_;                                        // per chunk
  std::map<std::tuple<ActionKind, int, int, int>, std::ptrdiff_t> verbs_;  // key: kind, chunk, microbatch, segment
  std::map<std::tuple<int, int, int, int>, Found> found_;
  std::vector<std::tuple<int, std::ptrdiff_t, std::size_t>> order_;
};

}  // namespace

std::vector<OffloadCandidate> find_candidates(const OffloadRecording& recording,
                                              const std::vector<SegmentName>& segments) {
  return Finder(recording, segments).find();
}

}  // namespace megalith
