// Layers of each part of the model. A part is one chunk of one stage (placement.h).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "parallel/pipeline_parallel/placement.h"

namespace megalith {

struct PartLayers {
  int first_layer = 0;  // index in the model, from 0
  int num_layers = 0;
  bool has_embedding = false;  // the first part only
  bool has_loss = false;       // the last part only: final norm, output layer and loss
  friend bool operator==(const PartLayers&, const PartLayers&) = default;
};
using LayerLayout = std::vector<PartLayers>;  // in the model's order

// Parses --pipeline-model-parallel-layout in Megatron-LM's form: parts in the model's order, separated by '|'.
//   E: embedding, t: one layer, L: loss; X*N repeats a letter or bar; (...)*N repeats a group without nested brackets;
//   commas are ignored. "Et*3|(tt|)*2L" is E and 3 layers, 2 layers, 2 layers, L.
// A part may have no layer. Megatron's m (multi-token prediction) is rejected. The number of parts is a multiple of
// `num_stages`, and the number of t is `num_layers`. Other text is an error with exit code 2 that reports the place.
LayerLayout parse_layer_layout(std::string_view text, int num_layers, int num_stages);

// Text of a layout, in its shortest form without brackets.
std::string to_string(const LayerLayout& layout);

// Split of layers without an explicit layout, with fields as in Megatron-LM (get_num_layers_to_build in
// transformer_block.py). Sizes that do not divide are an error with exit code 2 that lists valid sizes.
struct LayerSplit {
  int num_layers = 1;
  Placement placement;
  bool account_for_embedding = false;  // counts as a layer of the first part: --account-for-embedding-in-pipeline-split
  bool account_for_loss = false;       // counts as a layer of the last part: --account-for-loss-in-pipeline-split
  int first_stage_layers = 0;          // --decoder-first-pipeline-num-layers, total of the first stage; 0: even
  int last_stage_layers = 0;           // --decoder-last-pipeline-num-layers, total of the last stage; 0: even
};
LayerLayout split_layers(const LayerSplit& split);

// Chunks per stage for --num-layers-per-virtual-pipeline-stage; `split` has no chunks yet.
int chunks_of_virtual_stages(const LayerSplit& split, int num_layers_per_virtual_stage);

}  // namespace megalith
