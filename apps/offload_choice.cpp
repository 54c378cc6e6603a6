#include "apps/offload_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace megalith {

namespace {

struct Touched {
  int chunk = 0;
  SlotVerb writer, reader, needed;
  bool of_others = false;
};

}  // namespace

bool offloads(const Options& options) { return !options.train.offload_modules.empty(); }

OffloadPoints offload_points(const Rank& rank, const Timeline& timeline, const std::vector<Action>& actions,
                             const std::vector<std::size_t>& entries) {
  const Arena& arena = rank.memory.arena;
  const std::vector<Arena::Recorded>& recorded = arena.recorded();
  const std::vector<std::string>& modules = rank.options.train.offload_modules;
  std::vector<Touched> touched(recorded.size());
  for (std::size_t a = 0; a < actions.size(); ++a) {
    const std::size_t end = a + 1 < entries.size() ? entries[a + 1] : timeline.entries().size();
    for (std::size_t e = entries[a]; e < end; ++e) {
      for (const AccessRange& range : timeline.entries()[e].access.ranges()) {
        const std::size_t index = arena.index_recorded(range.begin);
        if (index == recorded.size()) continue;
        Touched& t = touched[index];
        const Action& action = actions[a];
        const SlotVerb verb{.kind = action.kind, .segment = action.segment};
        t.of_others =
            t.of_others || !is_of_microbatch(action.kind) || action.column != recorded[index].key.scope.column;
        if (action.segment < 0) continue;
        t.chunk = action.chunk;
        if (action.kind == ActionKind::kForward) {
          if (range.write || t.writer.segment < 0) t.writer = verb;
          t.reader = verb;
        } else if (t.needed.segment < 0) {
          t.needed = verb;
        }
      }
    }
  }
  OffloadPoints points;
  for (const NamedSegment& segment : rank.model.gpt.segments) points.layer_of_segment.push_back(segment.layer_unit);
  std::map<ArenaKey, bool> seen;
  for (std::size_t i = 0; i < recorded.size(); ++i) {
    const Arena::Recorded& r = recorded[i];
    const Touched& t = touched[i];
    ArenaKey key = r.key;
    key.scope.column = t.chunk;  // once for all columns of a chunk
    if (r.category != MemoryCategory::kActivations || std::ranges::find(modules, r.owner) == modules.end()) continue;
    if (t.of_others || t.needed.segment < 0 || t.reader.segment < 0 || !seen.emplace(key, true).second) continue;
    points.slots.push_back({.chunk = t.chunk,
                            .segment = r.key.scope.segment,
                            .verb = r.key.scope.verb,
                            .ordinal = r.key.ordinal,
                            .bytes = r.bytes,
                            .last_writer = t.writer,
                            .last_forward_reader = t.reader,
                            .first_backward_reader = t.needed,
                            .name = r.owner});
  }
  return points;
}

}  // namespace megalith
