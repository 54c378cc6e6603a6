// What a few layers of a model tell of a step of all of them, to leave layouts out without recording them whole.
#pragma once

#include <cstddef>
#include <cstdint>

#include "apps/config/options.h"
#include "parallel/cost/rates.h"

namespace megalith {

// Lower bounds. Layers of a kind are alike, so each adds the same work; and what is alive at the fullest moment is the
// largest of sums that grow with the layers, so it grows the more the more layers there are.
struct LayerCosts {
  double seconds = 0;          // of a microbatch through the whole model, forward and backward, with no wait for units
  double ends = 0;             // of that, of the embedding and the head
  double bytes = 0;            // of the step's buffers, where one stage has all layers
  double bytes_per_layer = 0;  // of them that a layer of the kind that keeps least keeps of a microbatch
};

// `options` are those of a layout of one stage, of any number of layers. Nothing is moved to the host.
LayerCosts costs_of_layers(const Options& options, int world, const Rates& rates);

}  // namespace megalith
