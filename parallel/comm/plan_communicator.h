// A single rank of a group of any size, for the plan backend, which records a rank without peers. Only plan streams may
// be used. Host calls assume that peers pass this rank's values.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/comm/communicator.h"

namespace megalith {

// A planned call on a group, with facts that the timeline lacks.
struct PlannedCall {
  std::size_t entry = 0;                          // index in the timeline
  std::string_view kind;                          // a name of kCollectiveNames
  std::size_t bytes = 0;                          // as in CommunicatorStats
  std::string group;                              // its name
  std::shared_ptr<const std::vector<int>> ranks;  // in the world
  bool back = false;                              // returning rows
  std::size_t padded = 0;                         // bytes of equal parts with padding; 0: not padded
};

class PlanCommunicator final : public Communicator {
 public:
  // 0 <= rank < size
  struct Place {
    int rank = 0;
    int size = 1;
  };
  PlanCommunicator(std::string name, const Place& place);

  void host_barrier() override {}
  std::vector<std::string> host_all_gather(const std::string& mine) override;
  bool host_any(bool mine) override { return mine; }
  // An error, since the colors of other ranks are unknown. subgroup() works.
  std::unique_ptr<Communicator> split(int color, int key, const std::string& name) override;
  std::unique_ptr<Communicator> subgroup(std::span<const int> ranks, const std::string& name) override;
  void abort(const std::string&) override {}  // no rank waits

  // Calls of this group and of all groups created from it, in order. Groups of one rank are left out.
  const std::vector<PlannedCall>& calls() const { return *calls_; }
  void clear_calls() { calls_->clear(); }

 protected:
  void run(const Collective& collective) override;  // an error, since plan streams run no tasks
  void on_plan(Stream& stream, const Collective& collective, std::int64_t bytes) override;

 private:
  std::shared_ptr<const std::vector<int>> ranks_;  // ranks in the world, by rank of this group
  std::shared_ptr<std::vector<PlannedCall>> calls_;
};

}  // namespace megalith
