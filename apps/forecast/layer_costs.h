// Costs of a few layers of a model, as bounds that exclude layouts without a recording of all layers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "apps/config/options.h"
#include "parallel/cost/rates.h"

namespace megalith {

// Lower bounds. Layers of a kind are equal, so each adds the same work. Peak memory is a maximum of sums that grow with
// the layers, so it grows at least linearly.
struct LayerCosts {
  double seconds = 0;          // per microbatch through all layers, forward and backward, without waits for units
  double ends = 0;             // embedding and head, part of `seconds`
  double bytes = 0;            // buffers of the step if one stage has all layers
  double bytes_per_layer = 0;  // kept per microbatch by a layer of the kind that keeps least
};

// Costs of `options`, a layout of one stage with any number of layers. Nothing is offloaded.
LayerCosts costs_of_layers(const Options& options, int world, const Rates& rates);

}  // namespace megalith
