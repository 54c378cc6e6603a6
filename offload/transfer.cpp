#include "offload/transfer.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "core/device/copy.h"
#include "core/ops/elementwise/copy_rows.h"
#include "core/ops/elementwise/elementwise.h"
#include "core/ops/op.h"

namespace megalith {

namespace {

Tensor moved(Tensor tensor, void* to) {
  tensor.data = to;
  return tensor;
}

}  // namespace

ActivationTransfer::ActivationTransfer(const Context& ctx, SegmentRunner& runner, const Streams& streams, Arena& host,
                                       OffloadPoints points, bool poison)
    : ctx_(ctx), runner_(runner), streams_(streams), host_(host), points_(std::move(points)), poison_(poison) {
  const std::vector<OffloadSlot>& slots = points_.slots;
  for (const OffloadSlot& slot : slots) {
    const auto first = std::ranges::find_if(slots, [&](const OffloadSlot& other) {
      return other.chunk == slot.chunk && other.last_writer == slot.last_writer;
    });
    first_written_.push_back(static_cast<int>(first - slots.begin()));
  }
}

ActivationTransfer::Flight& ActivationTransfer::pass(const Action& action, State from, State to) {
  Flight& flight = flights_[{action.item, action.column}];
  if (flight.state != from) {
    fail({.subject = to_string(action),
          .expected = "offload, wait_offload, reload, wait_reload in this order (offload/lowering.h)",
          .got = "a call out of order"});
  }
  flight.state = to;
  return flight;
}

void ActivationTransfer::fill_with_nan(void* begin, std::size_t bytes) {
  if (!poison_) return;
  const Tensor memory(begin, DType::kFp32, {static_cast<std::int64_t>(bytes / sizeof(float))});
  launch(ctx_.compute, Fill{.x = memory, .value = std::numeric_limits<double>::quiet_NaN()});
}

void ActivationTransfer::written_in_graph(const Action& verb) {
  for (std::size_t item = 0; item < points_.slots.size(); ++item) {
    const OffloadSlot& of = points_.slots[item];
    if (first_written_[item] != static_cast<int>(item) || of.chunk != verb.chunk ||
        of.last_writer != SlotVerb{.kind = verb.kind, .segment = verb.segment})
      continue;
    Flight& flight = flights_[{static_cast<int>(item), verb.column}];
    ctx_.compute.record_external(flight.written);
    flight.in_graph = true;
  }
}

// Rows in use, if all views of a bounded storage begin where it does and have one bound; absent otherwise.
Tensor ActivationTransfer::rows_in_use(const Action& action, const Arena::Place& place) const {
  if (!slot(action).bounded) return {};
  const auto* const begin = static_cast<const std::byte*>(place.address);
  Tensor rows;
  bool is_whole = false;
  runner_.for_each_slot(action.column, [&](const Stash::Slot& kept) {
    const Tensor& view = kept.tensor;
    if (view.as<std::byte>() < begin || view.as<std::byte>() >= begin + place.bytes) return;
    const bool is_other =
        rows && (rows.bound != view.bound || rows.size(0) != view.size(0) || rows.bytes() != view.bytes());
    is_whole = is_whole || is_other || view.bound == nullptr || view.data != begin || !view.is_contiguous();
    rows = view;
  });
  return is_whole ? Tensor() : rows;
}

// Waits once for each source, since copies of one stream run in order.
void ActivationTransfer::wait_until_written(const Action& action) {
  Flight& first = flights_[{first_written_[static_cast<std::size_t>(action.item)], action.column}];
  const int verb = slot(action).last_writer.segment;
  const bool in_graph = replays_ && first.in_graph;
  if (in_graph) ++stats_.from_within;
  Source source{.column = action.column,
                .microbatch = action.microbatch,
                .verb = points_.between_layers && !points_.in_pieces ? -1 : verb,
                .layer = points_.layer_of_segment[static_cast<std::size_t>(verb)]};
  if (source == waited_for_) return;  // the complete layer was waited for
  if (in_graph) source.verb = verb;
  if (source == waited_for_) return;
  waited_for_ = source;
  if (!in_graph) ctx_.compute.record(first.written);
  streams_.out.wait(first.written);
}

void ActivationTransfer::offload(const Action& action) {
  Flight& flight = pass(action, State::kHere, State::kLeaving);
  flight.device = ctx_.arena.place_of(slot(action).key(action.column));
  host_.begin_scope({.column = action.column, .segment = -1, .verb = kOffloadScope + action.item});
  flight.host = host_.allocate(flight.device.bytes, MemoryCategory::kActivations, name_of(slot(action).kind));
  if (rehearses_) return;
  wait_until_written(action);
  flight.rows = rows_in_use(action, flight.device);
  flight.timed = clock_.start(CopyClock::Way::kOut, streams_.out);
  if (flight.rows) {
    flight.sure = std::min(slot(action).sure_rows, flight.rows.size(0));
    copy_to_host(streams_.out, flight.host, flight.device.address, bytes_of_rows(flight.rows, flight.sure));
    launch(
        streams_.out,
        CopyRows{
            .src = flight.rows, .dst = moved(flight.rows, flight.host), .first = flight.sure, .counted = count_of(0)});
    stats_.bounded_out += static_cast<std::int64_t>(flight.device.bytes);
  } else {
    copy_to_host(streams_.out, flight.host, flight.device.address, flight.device.bytes);
  }
  CopyClock::end(flight.timed, streams_.out);
  streams_.out.record(flight.left);
  ++stats_.offloads;
  stats_.bytes_out += static_cast<std::int64_t>(flight.device.bytes);
}

void ActivationTransfer::wait_offload(const Action& action) {
  Flight& flight = pass(action, State::kLeaving, State::kLeft);
  // From here on, other buffers may use the slot's memory.
  const int views = runner_.rebind(action.column, flight.device.address, flight.device.bytes, flight.host);
  if (views == 0) {
    fail({.subject = fmt::format("{} ({})", to_string(action), slot(action).name),
          .expected = "a stash that holds the slot",
          .got = "none"});
  }
  if (rehearses_) return;
  CopyClock::ask(flight.timed, ctx_.compute);
  ctx_.compute.wait(flight.left);
  fill_with_nan(flight.device.address, flight.device.bytes);
}

void ActivationTransfer::reload(const Action& action) {
  Flight& flight = pass(action, State::kLeft, State::kComing);
  const OffloadSlot& of = slot(action);
  ctx_.arena.begin_scope({.column = action.column, .segment = of.segment, .verb = kReloadScope + action.item});
  flight.target = ctx_.arena.allocate(flight.device.bytes, MemoryCategory::kActivations, name_of(of.kind));
  if (rehearses_) return;
  fill_with_nan(flight.target, flight.device.bytes);
  ctx_.compute.record(flight.room);  // also after wait_offload, so the copy out is complete
  streams_.back.wait(flight.room);
  flight.timed = clock_.start(CopyClock::Way::kBack, streams_.back);
  if (flight.rows) {
    copy_from_host(streams_.back, flight.target, flight.host, bytes_of_rows(flight.rows, flight.sure));
    launch(streams_.back, CopyRows{.src = moved(flight.rows, flight.host),
                                   .dst = moved(flight.rows, flight.target),
                                   .first = flight.sure,
                                   .counted = count_of(1)});
    stats_.bounded_back += static_cast<std::int64_t>(flight.device.bytes);
  } else {
    copy_from_host(streams_.back, flight.target, flight.host, flight.device.bytes);
  }
  CopyClock::end(flight.timed, streams_.back);
  streams_.back.record(flight.back);
  ++stats_.reloads;
  stats_.bytes_back += static_cast<std::int64_t>(flight.device.bytes);
}

void ActivationTransfer::wait_reload(const Action& action) {
  Flight& flight = pass(action, State::kComing, State::kHere);
  runner_.rebind(action.column, flight.host, flight.device.bytes, flight.target);
  if (rehearses_) return;
  if (ctx_.compute.is_after(flight.back)) return;  // a later copy was waited for
  CopyClock::ask(flight.timed, ctx_.compute);
  ctx_.compute.wait(flight.back);
}

void ActivationTransfer::reset() {
  for (auto& [key, flight] : flights_) flight.state = State::kHere;
  waited_for_ = {};
}

void ActivationTransfer::synchronize() {
  streams_.out.synchronize();
  streams_.back.synchronize();
}

}  // namespace megalith
