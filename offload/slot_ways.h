// Positions in a rank's list at which the actions of each slot and microbatch stand. lowering.h inserts the actions
// there, and placement.h evaluates the positions.
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "offload/slots.h"

namespace megalith {

// Adjacent verbs of one layer, microbatch and direction. They lie in actions [begin, end), with other actions in
// between.
struct LayerVerbs {
  std::size_t begin = 0, end = 0;
};

// Verbs of a list, and their groups by layer.
class ListVerbs {
 public:
  // `actions` outlives the object.
  ListVerbs(const std::vector<Action>& actions, const OffloadPoints& points);

  std::size_t place(const SlotVerb& verb, int chunk, int microbatch) const;
  // End, or begin, of the group that is `layers` after, or ahead of, the group of action `i`.
  std::size_t end_after(std::size_t i, int layers) const { return group(group_of_[i] + layers * per_layer_).end; }
  std::size_t begin_ahead(std::size_t i, int layers) const { return group(group_of_[i] - layers * per_layer_).begin; }
  // Position after the send of the chunk's output if `verb` is in the chunk's last segment, else 0.
  std::size_t sent_after(const SlotVerb& verb, int chunk, int microbatch) const {
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
  std::map<std::tuple<ActionKind, int, int, int>, std::size_t> places_;  // key: kind, chunk, microbatch, segment
  std::map<std::pair<int, int>, std::size_t> sends_;                     // sends of outputs; key: chunk, microbatch
  std::map<int, int> last_segment_;                                      // per chunk
  std::vector<LayerVerbs> groups_;
  // Groups of a layer: with split exchanges, two pieces of a forward and two of another microbatch's backward.
  int per_layer_ = 1;
  std::vector<int> group_of_;  // per action; -1: not a verb
};

// Positions of the actions of a slot in one microbatch. Each action stands before the action with this index.
struct SlotWay {
  Action load;  // load action of the microbatch
  int item = 0;
  std::size_t written = 0;  // action that writes it last
  std::size_t starts = 0, read = 0, left = 0, reload = 0, needed = 0;
  int layer_read = 0, layer_needed = 0;  // LayerVerbs of the last forward and first backward reader
};

// Returns the ways in the order of the slots' writers, which is the order of their copies.
std::vector<SlotWay> slot_ways(const ListVerbs& verbs, const OffloadPoints& points);

}  // namespace megalith
