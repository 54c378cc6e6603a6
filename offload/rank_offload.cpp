#include "offload/rank_offload.h"

#include <algorithm>
#include <utility>

namespace megalith {

RankOffload::RankOffload(DeviceType device, OffloadPoints chosen, const Instruments& instruments, const Context& ctx,
                         SegmentRunner& runner, bool poison)
    : points(std::move(chosen)),
      pool(device, 0, MemoryPool::Place::kHost),
      host(pool, device == DeviceType::kPlan ? Arena::Mode::kRecording : Arena::Mode::kPlanned, Arena::kOfHost),
      out(device, "offload", instruments),
      back(device, "reload", instruments),
      transfer(ctx, runner, {.out = out, .back = back}, host, points, poison) {}

bool RankOffload::moves_rows() const { return std::ranges::any_of(points.slots, &OffloadSlot::bounded); }

}  // namespace megalith
