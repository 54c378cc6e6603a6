#include "apps/run/own_model.h"

#include <fmt/format.h>

#include "apps/config/own.h"

namespace megalith {

namespace {

// Parameters that a whole layer adds, as on one rank.
struct OwnLayer {
  bool exists = false;
  std::int64_t elements = 0;
  std::int64_t in_matrices = 0;
};

OwnLayer own_layer(const OwnSegmentFactory& factory, const ModelConfig& config, std::int64_t layer) {
  ParameterStore store;
  RowExchange rows;
  store.begin_unit("own");
  const std::unique_ptr<Segment> segment = factory({.store = store,
                                                    .rows = rows,
                                                    .config = config,
                                                    .layer = layer,
                                                    .prefix = fmt::format("decoder.layers.{}.", layer)});
  OwnLayer own{.exists = segment != nullptr};
  for (const Parameter* parameter : store.units().front().parameters) {
    own.elements += parameter->shape.numel();
    if (parameter->shape.rank() > 1) own.in_matrices += parameter->shape.numel();
  }
  return own;
}

OwnLayer own_layers(const Options& options) {
  OwnLayer sum;
  const OwnSegmentFactory factory = own_segments(options);
  for (std::int64_t layer = 0; factory && layer < options.model.num_layers; ++layer) {
    const OwnLayer one = own_layer(factory, options.model, layer);
    sum.elements += one.elements;
    sum.in_matrices += one.in_matrices;
  }
  return sum;
}

}  // namespace

OwnOptions own_options() {
  return {.flags = own_flags(), .check = check_own, .has_segment = [](const Options& options, std::int64_t layer) {
            const OwnSegmentFactory factory = own_segments(options);
            return factory && own_layer(factory, options.model, layer).exists;
          }};
}

ParameterCount count_parameters(const Options& options) {
  ParameterCount count = count_parameters(options.model);
  count.own = own_layers(options).elements;
  count.total += count.own;
  return count;
}

double flops_per_token(const Options& options) {
  return flops_per_token(options.model) + 6.0 * static_cast<double>(own_layers(options).in_matrices);
}

ModelFlops flops_of(const Options& options) {
  ModelConfig twice = options.model;
  twice.seq_length *= 2;
  const auto length = static_cast<double>(options.model.seq_length);
  const double attention = flops_per_token(twice) - flops_per_token(options.model);  // of a token in seq_length
  return {.per_token = flops_per_token(options) - attention, .per_pair = attention / length};
}

double flops_per_token(const Options& options, double pairs) {
  const ModelFlops flops = flops_of(options);
  return pairs > 0 ? flops.per_token + flops.per_pair * pairs / static_cast<double>(options.model.seq_length)
                   : flops_per_token(options);
}

}  // namespace megalith
