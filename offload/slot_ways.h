// Where in a rank's list the actions of each slot and microbatch may stand and where they do: what lowering.h puts
// there and what placement.h chooses by.
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "offload/slots.h"

namespace megalith {

// A layer's verbs of one microbatch and direction that stand together in the list: actions [begin, end), and others
// between them.
struct LayerVerbs {
  std::size_t begin = 0, end = 0;
};

// The verbs of a list, and the layers' that stand together.
class ListVerbs {
 public:
  // `actions` lives as long as this object.
  ListVerbs(const std::vector<Action>& actions, const OffloadPoints& points);

  std::size_t place(const SlotVerb& verb, int chunk, int microbatch) const;
  // Where the group so many behind that of the action at `i` ends, or begins for those before it.
  std::size_t end_behind(std::size_t i, int groups) const { return group(group_of_[i] + groups).end; }
  std::size_t begin_ahead(std::size_t i, int groups) const { return group(group_of_[i] - groups).begin; }
  // What the chunk hands on is read once more when it is sent.
  std::size_t sent_behind(const SlotVerb& verb, int chunk, int microbatch) const {
    const auto send = sends_.find({chunk, microbatch});
    return verb.segment == last_segment_.at(chunk) && send != sends_.end() ? send->second + 1 : 0;
  }
  const std::vector<Action>& actions() const { return actions_; }
  const std::vector<LayerVerbs>& layers() const { return groups_; }
  const std::vector<int>& layer_of() const { return group_of_; }

 private:
  const LayerVerbs& group(int index) const {
    return groups_[static_cast<std::size_t>(std::clamp(index, 0, static_cast<int>(groups_.size()) - 1))];
  }

  const std::vector<Action>& actions_;
  std::map<std::tuple<ActionKind, int, int, int>, std::size_t> places_;  // by chunk, microbatch and segment
  std::map<std::pair<int, int>, std::size_t> sends_;                     // of outputs, by chunk and microbatch
  std::map<int, int> last_segment_;                                      // of each chunk
  std::vector<LayerVerbs> groups_;
  std::vector<int> group_of_;  // of each action; -1: no verb
};

// A slot of one microbatch: before which actions of the list its own stand.
struct SlotWay {
  Action load;  // of the microbatch
  int item = 0;
  std::size_t written = 0;  // by this action
  std::size_t starts = 0, read = 0, left = 0, reload = 0, needed = 0;
  int layer_read = 0, layer_needed = 0;  // LayerVerbs of its last reader in forward, and of its first in backward
};

// Of a list whose verbs are those, as the slots are written, which is how their copies follow each other.
std::vector<SlotWay> slot_ways(const ListVerbs& verbs, const OffloadPoints& points);

}  // namespace megalith
