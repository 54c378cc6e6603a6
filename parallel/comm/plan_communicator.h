// Any rank of a group of any size, alone: for the plan backend, which records what a rank would do without peers. Only
// plan streams may be used. On the host, peers are taken to say what this rank says.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/comm/communicator.h"

namespace megalith {

// A call on a group of a plan: what the timeline does not know of it.
struct PlannedCall {
  std::size_t entry = 0;                          // of the timeline
  std::string_view kind;                          // a name of kCollectiveNames
  std::size_t bytes = 0;                          // as CommunicatorStats counts them
  std::string group;                              // its name
  std::shared_ptr<const std::vector<int>> ranks;  // of the world
  bool back = false;                              // rows that go home
  std::size_t padded = 0;                         // rows in equal parts: bytes with what fills these up; 0: none are
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
  // An error: nobody knows the colors of the other ranks. subgroup() works.
  std::unique_ptr<Communicator> split(int color, int key, const std::string& name) override;
  std::unique_ptr<Communicator> subgroup(std::span<const int> ranks, const std::string& name) override;
  void abort(const std::string&) override {}  // nobody waits

  // Of this group and of all that were made of it, as they were enqueued. Calls on groups of one rank are left out.
  const std::vector<PlannedCall>& calls() const { return *calls_; }
  void clear_calls() { calls_->clear(); }

 protected:
  void run(const Collective& collective) override;  // an error: plan streams run no tasks
  void on_plan(Stream& stream, const Collective& collective, std::int64_t bytes) override;

 private:
  std::shared_ptr<const std::vector<int>> ranks_;  // of the world, by rank of this group
  std::shared_ptr<std::vector<PlannedCall>> calls_;
};

}  // namespace megalith
