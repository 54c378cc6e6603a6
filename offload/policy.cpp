#include "offload/policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

namespace megalith {

namespace {

bool asks_for(const OffloadRequest& request, const OffloadCandidate& candidate) {
  return request.by_forecast || std::ranges::any_of(candidate.views, [&](const OffloadCandidate::View& view) {
           return request.policies.of(view.layer, view.kind) == StashPolicy::kOffload;
         });
}

class Chooser {
 public:
  Chooser(const std::vector<OffloadCandidate>& candidates, const OffloadRequest& request)
      : candidates_(candidates), request_(request), choices_(candidates.size()) {}

  std::vector<OffloadChoice> choose() {
    for (std::size_t i = 0; i < candidates_.size(); ++i) choices_[i] = alone(candidates_[i]);
    keep_fraction();
    keep_layers_within_limit();
    return std::move(choices_);
  }

 private:
  OffloadChoice alone(const OffloadCandidate& candidate) const {
    const auto stays = [](std::string reason) { return OffloadChoice{.moves = false, .reason = std::move(reason)}; };
    if (!asks_for(request_, candidate)) return stays(kNotAskedFor);
    if (!candidate.stays.empty()) return stays(candidate.stays);
    if (candidate.slot.bytes < request_.min_bytes)
      return stays(fmt::format("smaller than {} bytes", request_.min_bytes));
    if (candidate.straight_back) return stays("needed again at once");
    return {.moves = true, .reason = {}};
  }

  void keep(std::size_t index, const std::string& reason) { choices_[index] = {.moves = false, .reason = reason}; }

  void keep_fraction() {
    using Group = std::pair<std::int64_t, SlotKind>;
    std::map<int, std::vector<std::pair<Group, std::vector<std::size_t>>>> groups_of_chunk;  // in the order of forward
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
      if (!choices_[i].moves) continue;
      const OffloadSlot& slot = candidates_[i].slot;
      const Group group{slot.layer, slot.kind};
      auto& groups = groups_of_chunk[slot.chunk];
      auto found = std::ranges::find(groups, group, [](const auto& each) { return each.first; });
      if (found == groups.end()) found = groups.insert(found, {group, {}});
      found->second.push_back(i);
    }
    for (const auto& [chunk, groups] : groups_of_chunk) {
      // Adds an epsilon: 10 (1 - 0.8) must be 2, but is less in binary.
      const double part = static_cast<double>(groups.size()) * (1 - request_.fraction);
      const auto stay = static_cast<std::size_t>(part + 1e-9);
      for (std::size_t g = groups.size() - stay; g < groups.size(); ++g) {
        for (const std::size_t index : groups[g].second)
          keep(index, fmt::format("beyond --activation-offload-fraction {}", request_.fraction));
      }
    }
  }

  // Keeps slots beyond the limit of a layer, and prefers to move large slots.
  void keep_layers_within_limit() {
    if (request_.max_bytes_of_layer == 0) return;
    std::vector<std::size_t> order(candidates_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(order, std::greater(), [&](std::size_t i) { return candidates_[i].slot.bytes; });
    std::map<std::pair<int, std::int64_t>, std::size_t> bytes_of_layer;
    for (const std::size_t index : order) {
      if (!choices_[index].moves) continue;
      const OffloadSlot& slot = candidates_[index].slot;
      std::size_t& bytes = bytes_of_layer[{slot.chunk, slot.layer}];
      if (bytes + slot.bytes > request_.max_bytes_of_layer) {
        keep(index, "beyond --offload-mb-per-layer");
      } else {
        bytes += slot.bytes;
      }
    }
  }

  const std::vector<OffloadCandidate>& candidates_;
  const OffloadRequest& request_;
  std::vector<OffloadChoice> choices_;
};

}  // namespace

std::vector<OffloadChoice> choose_offloads(const std::vector<OffloadCandidate>& candidates,
                                           const OffloadRequest& request) {
  return Chooser(candidates, request).choose();
}

void tighten(OffloadSlot& slot, const OffloadPoints& points) {
  const std::vector<int>& layers = points.layer_of_segment;
  const auto has_more = [&](int segment) {  // segments of its layer that follow in forward
    const auto s = static_cast<std::size_t>(segment);
    return s + 1 < layers.size() && layers[s + 1] == layers[s];
  };
  if (points.between_layers || has_more(slot.last_forward_reader.segment)) slot.lag = 0;
  if (!points.between_layers && has_more(slot.first_backward_reader.segment)) slot.ahead = 0;
}

std::vector<OffloadSlot> moving(const std::vector<OffloadCandidate>& candidates,
                                const std::vector<OffloadChoice>& choices) {
  std::vector<OffloadSlot> slots;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (choices[i].moves) slots.push_back(candidates[i].slot);
  }
  return slots;
}

}  // namespace megalith
