// Communication of tokens' rows between the ranks that hold a layer's experts (Lepikhin et al. 2020, arXiv:2006.16668).
// Rows travel on a dedicated stream: open(), send() or send_back(), close(), concurrent work, wait(). One exchange of a
// forward and one of a backward_data may be in flight. T: tokens of a rank; P: ranks; M = T P: capacity for rows that
// leave; T_arrived: capacity for rows that arrive; W: columns of a row.
#pragma once

#include <initializer_list>
#include <string>

#include "core/layers/context.h"
#include "core/layers/hooks.h"
#include "core/model/moe_config.h"
#include "moe/expert_room.h"
#include "parallel/comm/comm_lane.h"

namespace megalith {

class Dispatcher {
 public:
  struct Options {
    // Not kAuto. All dispatchers produce equal bits.
    MoeTokenDispatcher way = MoeTokenDispatcher::kAllToAll;
    std::int64_t copies = 1;       // adjacent ranks that hold columns of the same experts
    double capacity_factor = 1.5;  // --moe-expert-rank-capacity-factor
  };

  // `group` serves `communication` only; both outlive this object.
  Dispatcher(Communicator& group, Stream& communication, const Options& options);

  int rank() const { return forward_.group.rank(); }
  int ranks() const { return forward_.group.size(); }
  std::int64_t copies() const { return options_.copies; }
  Communicator& communicator() const { return forward_.group; }
  bool sends_all() const { return options_.way == MoeTokenDispatcher::kAllGather; }
  // True if ranks read each other's memory (MemorySharing).
  bool reads_peers() const { return options_.way == MoeTokenDispatcher::kFlex; }
  std::int64_t expert_groups() const { return ranks() / options_.copies; }  // distinct parts of the experts
  std::int64_t experts_per_rank(std::int64_t experts) const { return experts / expert_groups(); }
  std::int64_t first_expert(std::int64_t experts) const { return rank() / copies() * experts_per_rank(experts); }

  // Sizes of a microbatch in a layer.
  struct Sizes {
    std::int64_t tokens = 0;       // T
    std::int64_t choices = 1;      // K
    std::int64_t experts = 1;      // E
    bool never_overflows = false;  // plans the maximum capacity
  };
  ExpertRoom room(const Sizes& sizes) const;
  void set_capacity_factor(double factor) { options_.capacity_factor = factor; }  // between steps, with a new plan

  // Destinations of rows.
  struct Route {
    Tensor sends;  // [P, P + 1] int32; row r: offsets of rank r's rows by destination
    Tensor index;  // [M] int32: token of each row of this rank
    Sizes sizes;
    Verb verb = Verb::kForward;
    bool marks_begin = false;  // for wait_begin()
  };
  // Tensors of one exchange; each pair has its own W and dtype.
  struct Rows {
    Tensor from, to;
  };
  Stream& stream() const { return forward_.stream; }
  // Around an exchange: the stream waits for the compute stream, and records the end.
  void open(const Context& ctx, Verb verb) { lane(verb).begin(ctx.compute); }
  void close(Verb verb) { lane(verb).end(); }
  // Makes a GPU's compute stream wait until the stream has reached the exchange that was marked last with this `verb`.
  // A CPU's streams have separate cores.
  void wait_begin(const Context& ctx, Verb verb) {
    if (ctx.backend() == DeviceType::kCuda) ctx.compute.wait(begin_of(verb));
  }
  // Sends rows of each `from` [T, W] to `to` [T_arrived, W], sorted by source rank. `offsets` is this rank's row of
  // route.sends; if present, route.sends is gathered first.
  void send(const Context& ctx, const Route& route, std::initializer_list<Rows> rows, const std::string& label,
            const Tensor& offsets = {});
  // Returns rows of each `from` [T_arrived, W], as they arrived, to `to` [M, W], as they left.
  void send_back(const Context& ctx, const Route& route, std::initializer_list<Rows> rows, const std::string& label);
  // Makes the compute stream wait for the exchange that was closed last with this `verb`.
  void wait(const Context& ctx, Verb verb) { lane(verb).wait(ctx.compute); }

 private:
  void exchange(const Context& ctx, const Route& route, std::initializer_list<Rows> rows, const std::string& label,
                bool back);

  RoutedSizes routed_sizes(const Sizes& sizes) const;
  void mark_begin(const Route& route);
  Event& begin_of(Verb verb) { return verb == Verb::kForward ? forward_begins_ : backward_begins_; }

  CommLane& lane(Verb verb) { return verb == Verb::kForward ? forward_ : backward_; }

  // An exchange of a forward may be in flight together with one of a backward_data.
  CommLane forward_, backward_;
  Event forward_begins_, backward_begins_;
  Options options_;
};

}  // namespace megalith
