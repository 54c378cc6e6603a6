#include "parallel/comm/plan_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "core/base/error.h"
#include "core/instruments/timeline.h"

namespace megalith {

PlanCommunicator::PlanCommunicator(std::string name, const Place& place)
    : Communicator(std::move(name), place.rank, place.size) {
  require(place.size > 0 && place.rank >= 0 && place.rank < place.size, "PlanCommunicator: rank outside the group");
  std::vector<int> ranks(static_cast<std::size_t>(place.size));
  std::iota(ranks.begin(), ranks.end(), 0);
  ranks_ = std::make_shared<const std::vector<int>>(std::move(ranks));
  calls_ = std::make_shared<std::vector<PlannedCall>>();
}

void PlanCommunicator::run(const Collective&) {
  fail({.subject = "a group of a plan", .expected = "a plan stream", .got = "a stream that computes"});
}

void PlanCommunicator::on_plan(Stream& stream, const Collective& collective, std::int64_t bytes) {
  if (size() == 1 || stream.instruments().timeline == nullptr) return;
  PlannedCall& call = calls_->emplace_back(PlannedCall{.entry = stream.instruments().timeline->entries().size() - 1,
                                                       .kind = kCollectiveNames[collective.index()],
                                                       .bytes = static_cast<std::size_t>(bytes),
                                                       .group = name(),
                                                       .ranks = ranks_});
  const ExchangeRows* const rows = exchange_rows_in(collective);
  if (rows == nullptr) return;
  call.back = rows->back;
  if (std::holds_alternative<PaddedExchangeRows>(collective))
    call.padded = static_cast<std::size_t>((size() - 1) * rows->pair_room * row_bytes(*rows));
}

std::vector<std::string> PlanCommunicator::host_all_gather(const std::string& mine) {
  return std::vector<std::string>(static_cast<std::size_t>(size()), mine);
}

std::unique_ptr<Communicator> PlanCommunicator::split(int, int, const std::string& name) {
  fail({.subject = fmt::format("split of group {} into {}", this->name(), name),
        .expected = "peers",
        .got = "a plan",
        .remedy = "use subgroup"});
}

std::unique_ptr<Communicator> PlanCommunicator::subgroup(std::span<const int> ranks, const std::string& name) {
  const auto mine = std::find(ranks.begin(), ranks.end(), rank());
  if (mine == ranks.end()) {
    fail({.subject = fmt::format("subgroup {} of group {}", name, this->name()),
          .expected = fmt::format("a list with rank {}", rank()),
          .got = fmt::format("[{}]", fmt::join(ranks, ", "))});
  }
  auto group = std::make_unique<PlanCommunicator>(
      name, Place{.rank = static_cast<int>(mine - ranks.begin()), .size = static_cast<int>(ranks.size())});
  std::vector<int> of_world;
  for (const int r : ranks) of_world.push_back(ranks_->at(static_cast<std::size_t>(r)));
  group->ranks_ = std::make_shared<const std::vector<int>>(std::move(of_world));
  group->calls_ = calls_;
  return group;
}

}  // namespace megalith
