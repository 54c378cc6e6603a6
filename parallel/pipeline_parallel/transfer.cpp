#include "parallel/pipeline_parallel/transfer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "core/device/trace.h"
#include "core/ops/elementwise/elementwise.h"
#include "core/ops/op.h"
#include "parallel/comm/memory_sharing.h"

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

ArenaScope scope_of_receive(const Action& action) {
  return {
      .column = action.column, .segment = -1, .verb = action.gradient ? kReceiveGradientScope : kReceiveOutputScope};
}

std::size_t offset_in(const Arena& arena, const void* address) {
  return static_cast<std::size_t>(static_cast<const std::byte*>(address) -
                                  static_cast<const std::byte*>(arena.block()));
}

bool copies_messages() {
  const char* const text = std::getenv("MEGALITH_COPY_MESSAGES");
  return text == nullptr || std::string_view(text) != "0";
}

constexpr int kReceiver = 1;  // rank in a channel's group

// The receiver's numbers, on both ranks.
std::vector<std::size_t> numbers_of_receiver(Communicator& group, const std::vector<std::size_t>& mine) {
  const std::string bytes(reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(mine[0]));
  const std::string theirs = group.host_broadcast(bytes, kReceiver);
  std::vector<std::size_t> numbers(theirs.size() / sizeof(mine[0]));
  std::memcpy(numbers.data(), theirs.data(), theirs.size());
  return numbers;
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
      launch(*c.stream, Send{.group = *c.group, .buffer = scratch, .peer = kReceiver, .label = "connection"});
    } else {
      launch(*c.stream, Receive{.group = *c.group, .buffer = scratch, .peer = 0, .label = "connection"});
    }
    c.stream->synchronize();
  }
}

// In connect()'s order, so that no stage waits for one that waits for it.
void PipelineTransfer::share(const std::vector<List>& lists) {
  for (Channel& c : channels_) {
    MemorySharing* const sharing = c.group->memory_sharing();
    if (sharing == nullptr || c.group->host_any(!copies_messages())) continue;
    if (!sharing->share_memory(ctx_.arena.block(), ctx_.arena.block_bytes(), std::nullopt)) continue;
    for (const List& list : lists) {
      const std::vector<std::size_t> mine = c.sends ? std::vector<std::size_t>() : places_from(c.peer, list);
      c.places.push_back(numbers_of_receiver(*c.group, mine));
    }
    copy_once(c);
  }
}

// The driver may allocate at a first copy, for which it would wait for a pending receive.
void PipelineTransfer::copy_once(const Channel& c) {
  if (c.places.front().empty()) return;
  const std::size_t place = c.places.front().front();
  const Tensor buffer(static_cast<std::byte*>(ctx_.arena.block()) + (c.sends ? 0 : place), spec_.dtype, spec_.shape);
  if (c.sends) {
    launch(*c.stream,
           Send{.group = *c.group, .buffer = buffer, .peer = kReceiver, .label = "first copy", .place = place});
  } else {
    launch(*c.stream, Receive{.group = *c.group, .buffer = buffer, .peer = 0, .label = "first copy", .placed = true});
  }
  c.stream->synchronize();
}

void PipelineTransfer::unshare() {
  for (Channel& c : channels_) {
    if (c.places.empty()) continue;
    c.places.clear();
    c.group->memory_sharing()->unshare_memory();
  }
}

std::vector<std::size_t> PipelineTransfer::places_from(int peer, const List& list) const {
  Arena& arena = ctx_.arena;
  arena.use(list.plan);
  arena.begin_step();
  std::vector<std::size_t> places;
  for (const Action& action : list.actions) {
    if (action.kind != ActionKind::kPostReceive || action.peer != peer) continue;
    const ArenaScope scope = scope_of_receive(action);
    arena.begin_scope(scope);
    places.push_back(offset_in(arena, arena.place_of({.scope = scope}).address));
  }
  return places;
}

void PipelineTransfer::begin(std::size_t list) {
  for (Channel& c : channels_) {
    c.list = list;
    c.next = 0;
  }
}

std::optional<std::size_t> PipelineTransfer::next_place(Channel& channel) {
  if (channel.places.empty()) return std::nullopt;
  const std::vector<std::size_t>& places = channel.places.at(channel.list);
  require(channel.next < places.size(), "a message that the list of share() lacks");
  return places[channel.next++];
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
  ctx_.arena.begin_scope(scope_of_receive(action));
  f.buffer = ctx_.empty(spec_.shape, spec_.dtype, action.gradient ? "received gradient" : "received output");
  if (rehearses_) return launch(ctx_.compute, Fill{.x = f.buffer, .value = 0});
  const std::optional<std::size_t> place = next_place(channel(action.peer, false));
  require(!place || *place == offset_in(ctx_.arena, f.buffer.data), "a receive at another place than share() found");
  start(action, f,
        Receive{.group = f.lane.group,
                .buffer = f.buffer,
                .peer = 0,
                .label = label_of(action),
                .placed = place.has_value()});
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
  const std::optional<std::size_t> place = next_place(channel(action.peer, true));
  start(action, f,
        Send{.group = f.lane.group, .buffer = f.buffer, .peer = kReceiver, .label = label_of(action), .place = place});
  ++stats_.sent;
  if (place) ++stats_.placed;
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
