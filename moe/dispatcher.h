// The ranks that share out the experts of a layer, and how rows of tokens reach them and come back (Lepikhin et al.
// 2020, arXiv:2006.16668). Rows travel on a dedicated stream: start, what may run concurrently, wait.
//   T: tokens of a rank, P: ranks, M = T P rows at most leave a rank, T_arrived: those that may arrive, W: columns
#pragma once

#include <initializer_list>
#include <string>

#include "core/layers/context.h"
#include "core/model/moe_config.h"
#include "moe/expert_room.h"
#include "parallel/comm/comm_lane.h"

namespace megalith {

class Dispatcher {
 public:
  struct Options {
    // Not kAuto. All of them give the same bits.
    MoeTokenDispatcher way = MoeTokenDispatcher::kAllToAll;
    std::int64_t copies = 1;       // ranks that hold parts of the same experts' columns, neighbours in the group
    double capacity_factor = 1.5;  // --moe-expert-rank-capacity-factor
  };

  // `group` serves `communication` alone; both outlive this object.
  Dispatcher(Communicator& group, Stream& communication, const Options& options);

  int rank() const { return lane_.group.rank(); }
  int ranks() const { return lane_.group.size(); }
  std::int64_t copies() const { return options_.copies; }
  Communicator& communicator() const { return lane_.group; }
  bool sends_all() const { return options_.way == MoeTokenDispatcher::kAllGather; }
  // Of each other's memory, which they share (MemorySharing).
  bool reads_peers() const { return options_.way == MoeTokenDispatcher::kFlex; }
  std::int64_t expert_groups() const { return ranks() / options_.copies; }  // of ranks that have all experts together
  std::int64_t experts_per_rank(std::int64_t experts) const { return experts / expert_groups(); }
  std::int64_t first_expert(std::int64_t experts) const { return rank() / copies() * experts_per_rank(experts); }

  // Of a microbatch in a layer.
  struct Sizes {
    std::int64_t tokens = 0;       // T
    std::int64_t choices = 1;      // K
    std::int64_t experts = 1;      // E
    bool never_overflows = false;  // whatever the room costs
  };
  ExpertRoom room(const Sizes& sizes) const;
  void set_capacity_factor(double factor) { options_.capacity_factor = factor; }  // between steps, with a plan for it

  // Where rows go.
  struct Route {
    Tensor sends;  // [P, P + 1] int32: row r says where in rank r's rows those for each rank begin, and their end
    Tensor index;  // [M] int32: the token of each of this rank's rows
    Sizes sizes;
  };
  // What travels together; each its own W and dtype.
  struct Rows {
    Tensor from, to;
  };
  // Each `from` [T, W], of the token of each row; each `to` [T_arrived, W], by source rank. With `offsets`, this rank's
  // row of route.sends, these are gathered first.
  void start(const Context& ctx, const Route& route, std::initializer_list<Rows> rows, const std::string& label,
             const Tensor& offsets = {});
  // Each `from` [T_arrived, W] as rows arrived, each `to` [M, W] as they had left.
  void start_back(const Context& ctx, const Route& route, std::initializer_list<Rows> rows, const std::string& label);
  // What was started is there for the compute stream.
  void wait(const Context& ctx) { lane_.wait(ctx.compute); }

 private:
  void exchange(const Context& ctx, const Route& route, std::initializer_list<Rows> rows, const std::string& label,
                bool back);

  RoutedSizes routed_sizes(const Sizes& sizes) const;

  CommLane lane_;
  Options options_;
};

}  // namespace megalith
