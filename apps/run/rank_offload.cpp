#include "apps/run/rank_offload.h"

#include <algorithm>
#include <utility>

#include "apps/config/training_options.h"

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

std::unique_ptr<RankOffload> make_offload(const Options& options, DeviceType device, OffloadPoints points,
                                          const Instruments& instruments, const Context& ctx, SegmentRunner& runner) {
  if (points.empty()) return nullptr;
  return std::make_unique<RankOffload>(device, std::move(points), instruments, ctx, runner,
                                       options.train.check_hazards);
}

}  // namespace megalith
