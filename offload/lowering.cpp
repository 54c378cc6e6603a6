#include "offload/lowering.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <iterator>
#include <map>
#include <tuple>
#include <utility>

#include "core/base/error.h"
#include "parallel/pipeline_parallel/action_order.h"

namespace megalith {

namespace {

using Kind = ActionKind;
using Verb = std::tuple<Kind, int, int, int>;  // chunk, microbatch, segment

// The list's verbs, and the groups of a layer's that stand together.
class Verbs {
 public:
  Verbs(const std::vector<Action>& actions, const OffloadPoints& points) : group_of_(actions.size(), -1) {
    std::tuple<bool, int, int, int> last{};
    for (std::size_t i = 0; i < actions.size(); ++i) {
      const Action& a = actions[i];
      if (a.kind == Kind::kSend && !a.gradient) sends_[{a.chunk, a.microbatch}] = i;
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

  std::size_t place(const SlotVerb& verb, int chunk, int microbatch) const {
    const auto found = places_.find({verb.kind, chunk, microbatch, verb.segment});
    require(found != places_.end(), "a slot's verb is not in the list");
    return found->second;
  }
  // Where the group so many behind that of the action at `i` ends, or begins for those before it.
  std::size_t end_behind(std::size_t i, int groups) const { return group(group_of_[i] + groups).end; }
  std::size_t begin_ahead(std::size_t i, int groups) const { return group(group_of_[i] - groups).begin; }
  // What the chunk hands on is read once more when it is sent.
  std::size_t sent_behind(const SlotVerb& verb, int chunk, int microbatch) const {
    const auto send = sends_.find({chunk, microbatch});
    return verb.segment == last_segment_.at(chunk) && send != sends_.end() ? send->second + 1 : 0;
  }

 private:
  struct Group {
    std::size_t begin = 0, end = 0;
  };
  const Group& group(int index) const {
    return groups_[static_cast<std::size_t>(std::clamp(index, 0, static_cast<int>(groups_.size()) - 1))];
  }

  std::map<Verb, std::size_t> places_;
  std::map<std::pair<int, int>, std::size_t> sends_;  // of outputs, by chunk and microbatch
  std::map<int, int> last_segment_;                   // of each chunk
  std::vector<Group> groups_;
  std::vector<int> group_of_;  // of each action; -1: no verb
};

// A slot of one microbatch: before which actions of the list its own stand.
struct Way {
  Action load;  // of the microbatch
  int item = 0;
  std::size_t written = 0;  // by this action
  std::size_t starts = 0, read = 0, left = 0, reload = 0, needed = 0;
};

std::vector<Way> ways_of(const std::vector<Action>& actions, const OffloadPoints& points) {
  const Verbs verbs(actions, points);
  std::vector<Way> ways;
  for (const Action& load : actions) {
    if (load.kind != Kind::kLoad) continue;
    for (int item = 0; item < std::ssize(points.slots); ++item) {
      const OffloadSlot& slot = points.slots[static_cast<std::size_t>(item)];
      if (slot.chunk != load.chunk) continue;
      const auto place = [&](const SlotVerb& verb) { return verbs.place(verb, load.chunk, load.microbatch); };
      const std::size_t written = place(slot.last_writer), read = place(slot.last_forward_reader),
                        needed = place(slot.first_backward_reader),
                        backward = place({.kind = Kind::kBackwardData, .segment = slot.last_forward_reader.segment});
      const auto behind = [&](std::size_t i) { return points.between_layers ? verbs.end_behind(i, 0) : i + 1; };
      const auto before = [&](std::size_t i) { return points.between_layers ? verbs.begin_ahead(i, 0) : i; };
      ways.push_back(
          {.load = load,
           .item = item,
           .written = written,
           .starts = behind(written),
           .read = std::max(behind(read), verbs.sent_behind(slot.last_forward_reader, load.chunk, load.microbatch)),
           .left = std::min(before(backward), verbs.end_behind(read, slot.lag >= 0 ? slot.lag : points.lag)),
           .reload = verbs.begin_ahead(needed, slot.ahead >= 0 ? slot.ahead : points.ahead),
           .needed = before(needed)});
    }
  }
  return ways;
}

// Copies of one direction follow each other, and are waited for in their order: each wait is for the slot's own copy.
void put_in_order(std::vector<Way>& ways) {
  std::ranges::stable_sort(ways, {}, &Way::written);
  for (std::size_t i = ways.size(); i-- > 1;) ways[i - 1].left = std::min(ways[i - 1].left, ways[i].left);
  std::size_t read = 0;
  for (Way& way : ways) {
    read = std::max(read, way.read);
    way.left = std::max(way.left, read);
    way.reload = std::max(way.reload, way.left);
  }
}

}  // namespace

std::vector<Action> insert_offloads(const std::vector<Action>& actions, const OffloadPoints& points) {
  if (points.empty()) return actions;
  std::vector<Way> ways = ways_of(actions, points);
  put_in_order(ways);
  // What stands before the action of that number: in the order of kinds, then as the copies follow each other.
  std::map<std::tuple<std::size_t, Kind, std::size_t>, Action> inserted;
  const auto add = [&](const Way& way, std::size_t number, Kind kind, std::size_t before) {
    Action action = way.load;
    action.kind = kind;
    action.item = way.item;
    inserted.emplace(std::tuple(before, kind, number), action);
  };
  for (std::size_t n = 0; n < ways.size(); ++n) {
    add(ways[n], n, Kind::kOffload, ways[n].starts);
    add(ways[n], n, Kind::kWaitOffload, ways[n].left);
  }
  std::ranges::stable_sort(ways, {}, &Way::needed);
  for (std::size_t n = 0; n < ways.size(); ++n) {
    add(ways[n], n, Kind::kReload, ways[n].reload);
    add(ways[n], ways.size() - n, Kind::kWaitReload, ways[n].needed);  // which waits for the last one waits for all
  }
  std::vector<Action> list;
  list.reserve(actions.size() + inserted.size());
  auto next = inserted.begin();
  for (std::size_t i = 0; i < actions.size(); ++i) {
    for (; next != inserted.end() && std::get<0>(next->first) == i; ++next) list.push_back(next->second);
    list.push_back(actions[i]);
  }
  verify_offloads(list, points);
  return list;
}

void verify_offloads(const std::vector<Action>& actions, const OffloadPoints& points) {
  std::vector<Action> of_microbatches;  // others may stand several times
  std::ranges::copy_if(actions, std::back_inserter(of_microbatches),
                       [](const Action& a) { return is_of_microbatch(a.kind); });
  const ActionOrder order(of_microbatches);
  const auto same = [](Action action, Kind kind, int segment, int item) {
    action.kind = kind;
    action.segment = segment;
    action.item = item;
    return action;
  };
  std::map<int, std::pair<int, int>> owner;  // chunk and microbatch, by column
  for (const Action& a : actions) {
    if (a.kind == Kind::kLoad) {
      owner[a.column] = {a.chunk, a.microbatch};
      for (int item = 0; item < std::ssize(points.slots); ++item) {
        if (points.slots[static_cast<std::size_t>(item)].chunk == a.chunk)
          order.require(same(a, Kind::kOffload, -1, item));
      }
    }
    if (!is_of_slot(a.kind)) continue;
    if (a.item < 0 || a.item >= std::ssize(points.slots)) fail_order(a, "names no slot");
    const OffloadSlot& slot = points.slots[static_cast<std::size_t>(a.item)];
    if (slot.chunk != a.chunk) fail_order(a, "is of another chunk's slot");
    if (owner[a.column] != std::pair(a.chunk, a.microbatch)) fail_order(a, "is in another microbatch's column");
    if (a.kind != Kind::kOffload) continue;
    const Action left = same(a, Kind::kWaitOffload, -1, a.item), back = same(a, Kind::kReload, -1, a.item),
                 here = same(a, Kind::kWaitReload, -1, a.item);
    const auto verb = [&](const SlotVerb& of) { return same(a, of.kind, of.segment, -1); };
    for (const Action& each : {left, back, here}) order.require(each);
    order.require_before(verb(slot.last_writer), a);
    order.require_before(a, left);
    order.require_before(verb(slot.last_forward_reader), left);
    order.require_before(left, verb({.kind = Kind::kBackwardData, .segment = slot.last_forward_reader.segment}));
    order.require_before(left, back);
    order.require_before(back, here);
    order.require_before(here, verb(slot.first_backward_reader));
  }
  std::deque<Action> under_way;  // to the host
  for (const Action& a : actions) {
    if (is_of_slot(a.kind)) order.require(same(a, Kind::kOffload, -1, a.item));
    if (a.kind == Kind::kOffload) under_way.push_back(same(a, Kind::kWaitOffload, -1, a.item));
    if (a.kind != Kind::kWaitOffload) continue;
    if (under_way.front() != a) fail_order(a, "waits for a later copy than the next one");
    under_way.pop_front();
  }
}

}  // namespace megalith
