#include "moe/dispatcher.h"

#include <cmath>
#include <utility>

namespace megalith {

Dispatcher::Dispatcher(Communicator& group, Stream& communication, const Options& options)
    : forward_(group, communication, "rows of experts"),
      backward_(group, communication, "gradients of experts' rows"),
      forward_begins_("rows of experts begin"),
      backward_begins_("gradients of experts' rows begin"),
      options_(options) {
  require(options.way != MoeTokenDispatcher::kAuto, "Dispatcher: options.way must not be kAuto");
  require(options.copies >= 1 && group.size() % options.copies == 0, "Dispatcher: copies must divide the ranks");
}

ExpertRoom Dispatcher::room(const Sizes& sizes) const {
  const RoutedSizes routed = routed_sizes(sizes);
  return sizes.never_overflows ? max_room(routed) : expert_room(routed, options_.capacity_factor);
}

RoutedSizes Dispatcher::routed_sizes(const Sizes& sizes) const {
  return {.tokens = sizes.tokens,
          .choices = sizes.choices,
          .experts = sizes.experts,
          .ranks = ranks(),
          .copies = options_.copies,
          .all_arrive = sends_all()};
}

void Dispatcher::send(const Context& ctx, const Route& route, std::initializer_list<Rows> rows,
                      const std::string& label, const Tensor& offsets) {
  mark_begin(route);  // ahead of the numbers, which wait for the other ranks
  if (offsets) {
    launch(stream(),
           AllGather{.group = communicator(), .in = offsets, .out = route.sends, .label = "numbers of " + label});
  }
  if (sends_all()) {
    for (const Rows& each : rows)
      launch(stream(), AllGather{.group = communicator(), .in = each.from, .out = each.to, .label = label});
  } else {
    exchange(ctx, route, rows, label, false);
  }
}

void Dispatcher::send_back(const Context& ctx, const Route& route, std::initializer_list<Rows> rows,
                           const std::string& label) {
  mark_begin(route);
  if (sends_all()) {
    for (const Rows& each : rows)
      launch(stream(), AllToAll{.group = communicator(), .in = each.from, .out = each.to, .label = label});
  } else {
    exchange(ctx, route, rows, label, true);
  }
}

void Dispatcher::mark_begin(const Route& route) {
  if (!route.marks_begin || stream().device() != DeviceType::kCuda) return;
  Event& event = begin_of(route.verb);
  stream().capturing() ? stream().record_external(event) : stream().record(event);
}

void Dispatcher::exchange(const Context& ctx, const Route& route, std::initializer_list<Rows> rows,
                          const std::string& label, bool back) {
  const double others = static_cast<double>(ranks() - 1) / ranks();
  ExchangeRows op{.group = communicator(),
                  .sends = route.sends,
                  .pair_room = route.sizes.tokens,
                  .expected_rows = std::llround(mean_rows(routed_sizes(route.sizes)).arrived * others),
                  .back = back,
                  .label = label};
  if (!back) op.index = route.index;
  for (const Rows& each : rows) op.rows.push_back({.in = each.from, .out = each.to});
  const bool pads = ctx.backend() == DeviceType::kCuda && !reads_peers();
  const std::int64_t bytes = pads ? exchange_room_bytes(op) : 0;
  if (bytes == 0) return launch(stream(), op);
  launch(stream(), PaddedExchangeRows{op, ctx.empty({bytes}, DType::kUint8, "rows of a pair of ranks")});
}

}  // namespace megalith
