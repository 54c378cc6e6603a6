#include "parallel/comm/plan_communicator.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/error.h"

namespace megalith {

namespace {

// Plan streams run no tasks, so that only a stream that computes comes here.
[[noreturn]] void refuse() {
  fail({.subject = "a group of a plan", .expected = "a plan stream", .got = "a stream that computes"});
}

}  // namespace

PlanCommunicator::PlanCommunicator(std::string name, const Place& place)
    : Communicator(std::move(name), place.rank, place.size) {
  require(place.size > 0 && place.rank >= 0 && place.rank < place.size, "PlanCommunicator: rank outside the group");
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
  return std::make_unique<PlanCommunicator>(
      name, Place{.rank = static_cast<int>(mine - ranks.begin()), .size = static_cast<int>(ranks.size())});
}

void PlanCommunicator::do_all_reduce(const Tensor&, ReduceOp) { refuse(); }
void PlanCommunicator::do_reduce_scatter(const Tensor&, const Tensor&) { refuse(); }
void PlanCommunicator::do_all_gather(const Tensor&, const Tensor&) { refuse(); }
void PlanCommunicator::do_all_to_all_v(const Tensor&, const std::vector<std::int64_t>&, const Tensor&,
                                       const std::vector<std::int64_t>&) {
  refuse();
}
void PlanCommunicator::do_broadcast(const Tensor&, int) { refuse(); }
void PlanCommunicator::do_send(const Tensor&, int) { refuse(); }
void PlanCommunicator::do_receive(const Tensor&, int) { refuse(); }

}  // namespace megalith
