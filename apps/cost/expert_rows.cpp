#include "apps/cost/expert_rows.h"

#include <algorithm>
#include <string>

#include "apps/config/parallel_options.h"

namespace megalith {

std::optional<ExpertRows> expert_rows(const Options& options, const RunConfig& config) {
  const MoeConfig& moe = options.moe();
  const MeshSizes& mesh = config.mesh;
  if (moe.num_experts == 0 || mesh.ep * mesh.etp == 1) return std::nullopt;
  const std::int64_t parts = mesh.cp * (options.parallel.sequence_parallel ? mesh.tp : 1);
  const RoutedSizes sizes{.tokens = config.sequences * config.seq_length / parts,
                          .choices = moe.router_topk,
                          .experts = moe.num_experts,
                          .ranks = mesh.ep * mesh.etp,
                          .copies = mesh.etp,
                          .all_arrive = options.parallel.moe_token_dispatcher_type == MoeTokenDispatcher::kAllGather};
  ExpertRows rows{.sizes = sizes,
                  .mean = mean_rows(sizes),
                  .room = expert_room(sizes, options.parallel.moe_expert_rank_capacity_factor)};
  const auto ranks = static_cast<double>(sizes.ranks);
  rows.sent = rows.mean.arrived * (ranks - 1) / ranks;
  return rows;
}

Access with_expected_rows(Access access, const ExpertRows& rows) {
  double unused = 0, share = 1;
  for (const AccessRange& range : access.ranges()) {
    const RowsOfExperts& of = range.experts;
    if (of.experts > 0 && of.offsets == nullptr) continue;  // weights
    const auto use = [&](std::int64_t room, double mean) {
      if (of.rows != room || mean >= static_cast<double>(room)) return false;
      const double used = mean / static_cast<double>(room);
      unused += (1 - used) * static_cast<double>(range.bytes);
      if (of.offsets != nullptr) share = used;
      return true;
    };
    if (!use(rows.room.rows, rows.mean.rows)) use(rows.room.arrived, rows.mean.arrived);
  }
  if (unused == 0) return access;
  access.set_moved_bytes(access.moved_bytes() - std::min(access.moved_bytes(), static_cast<std::size_t>(unused)));
  Cost cost = access.cost();
  cost.flops *= share;
  access.set_cost(cost);
  return access;
}

Timeline with_expected_rows(const Timeline& timeline, const ExpertRows& rows) {
  Timeline expected;
  for (const std::string& lane : timeline.lanes()) expected.add_lane(lane);
  for (const Timeline::Entry& entry : timeline.entries()) {
    switch (entry.kind) {
      case Timeline::Kind::kOp: expected.op(entry.lane, with_expected_rows(entry.access, rows)); break;
      case Timeline::Kind::kRecord: expected.record(entry.lane, entry.event); break;
      case Timeline::Kind::kWait: expected.wait(entry.lane, entry.event); break;
    }
  }
  return expected;
}

}  // namespace megalith
