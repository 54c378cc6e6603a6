#include "offload/slot_ways.h"

#include "core/base/error.h"

namespace megalith {

using Kind = ActionKind;

ListVerbs::ListVerbs(const std::vector<Action>& actions, const OffloadPoints& points)
    : actions_(actions), group_of_(actions.size(), -1) {
  std::tuple<bool, int, int, int> last{};
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const Action& a = actions[i];
    if (a.kind == Kind::kSend && !a.gradient) sends_[{a.chunk, a.microbatch}] = i;
    if (a.kind == Kind::kStartExchange) per_layer_ = 4;
    if (a.segment < 0) continue;
    places_[{a.kind, a.chunk, a.microbatch, a.segment}] = i;
    last_segment_[a.chunk] = std::max(last_segment_[a.chunk], a.segment);
    const std::tuple now{a.kind == Kind::kForward, a.chunk, a.microbatch,
                         points.layer_of_segment[static_cast<std::size_t>(a.segment)]};
    if (groups_.empty() || now != last) groups_.push_back({.begin = i, .end = i});
    last = now;
    groups_.back().end = i + 1;
    group_of_[i] = static_cast<int>(groups_.size()) - 1;
  }
}

std::size_t ListVerbs::place(const SlotVerb& verb, int chunk, int microbatch) const {
  const auto found = places_.find({verb.kind, chunk, microbatch, verb.segment});
  require(found != places_.end(), "a slot's verb is not in the list");
  return found->second;
}

namespace {

std::vector<SlotWay> ways_of(const ListVerbs& verbs, const OffloadPoints& points) {
  std::vector<SlotWay> ways;
  for (const Action& load : verbs.actions()) {
    if (load.kind != Kind::kLoad) continue;
    for (int item = 0; item < std::ssize(points.slots); ++item) {
      const OffloadSlot& slot = points.slots[static_cast<std::size_t>(item)];
      if (slot.chunk != load.chunk) continue;
      const auto place = [&](const SlotVerb& verb) { return verbs.place(verb, load.chunk, load.microbatch); };
      const std::size_t written = place(slot.last_writer), read = place(slot.last_forward_reader),
                        needed = place(slot.first_backward_reader),
                        backward = place({.kind = Kind::kBackwardData, .segment = slot.last_forward_reader.segment});
      const auto after = [&](std::size_t i) { return points.between_layers ? verbs.end_after(i, 0) : i + 1; };
      const auto before = [&](std::size_t i) { return points.between_layers ? verbs.begin_ahead(i, 0) : i; };
      ways.push_back(
          {.load = load,
           .item = item,
           .written = written,
           .starts = after(written),
           .read = std::max(after(read), verbs.sent_after(slot.last_forward_reader, load.chunk, load.microbatch)),
           .left = std::min(before(backward), verbs.end_after(read, slot.lag >= 0 ? slot.lag : points.lag)),
           .reload = verbs.begin_ahead(needed, slot.ahead >= 0 ? slot.ahead : points.ahead),
           .needed = before(needed),
           .layer_read = verbs.layer_of()[read],
           .layer_needed = verbs.layer_of()[needed]});
    }
  }
  return ways;
}

// Orders the ways by copy. Copies of one direction run and are waited for in this order; each wait covers its own copy.
void put_in_order(std::vector<SlotWay>& ways) {
  std::ranges::stable_sort(ways, {}, &SlotWay::written);
  for (std::size_t i = ways.size(); i-- > 1;) ways[i - 1].left = std::min(ways[i - 1].left, ways[i].left);
  std::size_t read = 0;
  for (SlotWay& way : ways) {
    read = std::max(read, way.read);
    way.left = std::max(way.left, read);
    way.reload = std::max(way.reload, way.left);
  }
}

}  // namespace

std::vector<SlotWay> slot_ways(const ListVerbs& verbs, const OffloadPoints& points) {
  std::vector<SlotWay> ways = ways_of(verbs, points);
  put_in_order(ways);
  return ways;
}

}  // namespace megalith
