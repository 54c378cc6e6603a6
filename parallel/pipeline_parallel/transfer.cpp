#include "parallel/pipeline_parallel/transfer.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>

#include "core/base/error.h"
#include "core/device/trace.h"
#include "core/ops/elementwise/elementwise.h"
#include "core/ops/op.h"

namespace megalith {

namespace {

struct Edge {
  int from = 0;  // stage
  int to = 0;
};

// Directions of the placement's messages, in rounds in which no stage has two.
std::vector<std::vector<Edge>> rounds_of(const Placement& placement) {
  const int stages = placement.num_stages;
  std::vector<std::vector<Edge>> rounds;
  const auto add = [&](const std::vector<Edge>& up) {
    if (up.empty()) return;
    rounds.push_back(up);
    std::vector<Edge>& down = rounds.emplace_back();
    for (const Edge& edge : up) down.push_back({.from = edge.to, .to = edge.from});
  };
  for (const int first : {0, 1}) {
    std::vector<Edge> up;
    for (int s = first; s + 1 < stages; s += 2) up.push_back({.from = s, .to = s + 1});
    add(up);
  }
  const bool wraps = !placement.is_v && placement.num_chunks > 1 && stages > 2;
  if (wraps) add({{.from = stages - 1, .to = 0}});
  return rounds;
}

std::string label_of(const Action& action) {
  return fmt::format("{} of chunk {} microbatch {}", action.gradient ? "gradient" : "output", action.chunk,
                     action.microbatch);
}

}  // namespace

PipelineTransfer::PipelineTransfer(Communicator& stages, const Context& ctx, SegmentRunner& runner, const Spec& spec)
    : ctx_(ctx), runner_(runner), spec_(spec) {
  require(stages.size() == spec.placement.num_stages, "PipelineTransfer: one rank a stage");
  const int me = stages.rank();
  for (const std::vector<Edge>& round : rounds_of(spec.placement)) {
    const auto edge =
        std::find_if(round.begin(), round.end(), [me](const Edge& e) { return e.from == me || e.to == me; });
    if (edge == round.end()) {
      const std::vector<int> alone{me};
      static_cast<void>(stages.subgroup(alone, "pp none"));
      continue;
    }
    const std::vector<int> ranks{edge->from, edge->to};
    const std::string name = fmt::format("pp {} to {}", edge->from, edge->to);
    const bool sends = edge->from == me;
    channels_.push_back({.group = stages.subgroup(ranks, name),
                         .stream = std::make_unique<Stream>(
                             spec.device, fmt::format("{} {}", sends ? "send" : "receive", name), spec.instruments),
                         .peer = sends ? edge->to : edge->from,
                         .sends = sends});
  }
}

PipelineTransfer::~PipelineTransfer() = default;

void PipelineTransfer::connect(const Tensor& scratch) {
  for (Channel& c : channels_) {
    if (c.sends) {
      launch(*c.stream, Send{.group = *c.group, .buffer = scratch, .peer = 1, .label = "connection"});
    } else {
      launch(*c.stream, Receive{.group = *c.group, .buffer = scratch, .peer = 0, .label = "connection"});
    }
    c.stream->synchronize();
  }
}

std::vector<Communicator*> PipelineTransfer::groups() const {
  std::vector<Communicator*> groups;
  for (const Channel& c : channels_) groups.push_back(c.group.get());
  return groups;
}

PipelineTransfer::Channel& PipelineTransfer::channel(int peer, bool sends) {
  const auto found = std::find_if(channels_.begin(), channels_.end(),
                                  [&](const Channel& c) { return c.peer == peer && c.sends == sends; });
  if (found == channels_.end())
    fail({.subject = fmt::format("a message {} stage {}", sends ? "to" : "from", peer),
          .expected = "an adjacent stage"});
  return *found;
}

PipelineTransfer::Flight& PipelineTransfer::flight(const Action& action, bool sends) {
  const std::tuple key{action.column, action.gradient, sends, action.peer};
  const auto found = flights_.find(key);
  if (found != flights_.end()) return found->second;
  return flights_.try_emplace(key, channel(action.peer, sends)).first->second;
}

template <class Op>
void PipelineTransfer::start(const Action& action, Flight& flight, const Op& op) {
  CommLane& lane = flight.lane;
  lane.begin(ctx_.compute);
  const TraceRange range(lane.stream, lane.stream.instruments().trace, [&] { return to_string(action); });
  launch(lane.stream, op);
  lane.end();
}

void PipelineTransfer::post_receive(const Action& action) {
  Flight& f = flight(action, false);
  ctx_.arena.begin_scope(
      {.column = action.column, .segment = -1, .verb = action.gradient ? kReceiveGradientScope : kReceiveOutputScope});
  f.buffer = ctx_.empty(spec_.shape, spec_.dtype, action.gradient ? "received gradient" : "received output");
  if (rehearses_) return launch(ctx_.compute, Fill{.x = f.buffer, .value = 0});
  start(action, f, Receive{.group = f.lane.group, .buffer = f.buffer, .peer = 0, .label = label_of(action)});
  ++stats_.received;
}

void PipelineTransfer::wait_receive(const Action& action) {
  TensorList tensors = handed_over_;
  if (action.peer != kThisStage) {
    Flight& f = flight(action, false);
    if (!rehearses_) f.lane.wait(ctx_.compute);
    tensors = action.gradient ? TensorList{f.buffer, f.buffer} : TensorList{f.buffer, Tensor{}};
  }
  if (action.gradient) {
    runner_.set_output_gradients(action.column, tensors);
  } else {
    runner_.set_inputs(action.column, tensors);
  }
}

// Both gradients that a segment returns equal the gradient of the sum.
Tensor PipelineTransfer::payload(const Action& action) {
  if (action.gradient) return runner_.input_gradients(action.column)[0];
  const TensorList& output = runner_.outputs(action.column);
  if (output.size() < 2 || !output[1]) return output[0];
  ctx_.arena.begin_scope({.column = action.column, .segment = -1, .verb = kSendScope});
  const Tensor sum = ctx_.empty(spec_.shape, spec_.dtype, "stage output");
  launch(ctx_.compute, Add{.a = output[0], .b = output[1], .y = sum});
  return sum;
}

void PipelineTransfer::send(const Action& action) {
  if (action.peer == kThisStage) {
    handed_over_ = action.gradient ? runner_.input_gradients(action.column) : runner_.outputs(action.column);
    if (!rehearses_) ++stats_.handed_over;
    return;
  }
  Flight& f = flight(action, true);
  f.buffer = payload(action);
  if (rehearses_) return;
  start(action, f, Send{.group = f.lane.group, .buffer = f.buffer, .peer = 1, .label = label_of(action)});
  ++stats_.sent;
  stats_.bytes_sent += static_cast<std::int64_t>(f.buffer.bytes());
}

void PipelineTransfer::wait_send(const Action& action) {
  if (!rehearses_) flight(action, true).lane.wait(ctx_.compute);
}

void PipelineTransfer::synchronize() {
  std::exception_ptr error;
  for (Channel& c : channels_) {  // all, even if one has failed
    try {
      c.stream->synchronize();
    } catch (...) {
      if (!error) error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace megalith
