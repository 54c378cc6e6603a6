// Which layers each part of the model holds (a part is one chunk of one stage, see placement.h).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "parallel/pipeline_parallel/placement.h"

namespace megalith {

struct PartLayers {
  int first_layer = 0;  // counted through the model from 0
  int num_layers = 0;
  bool has_embedding = false;  // the first part only
  bool has_loss = false;       // the last part only: final norm, output layer and loss
  friend bool operator==(const PartLayers&, const PartLayers&) = default;
};
using LayerLayout = std::vector<PartLayers>;  // in the model's order

// --pipeline-model-parallel-layout in Megatron-LM's form, parts in the model's order, parted by '|':
//   E embedding, t one layer, L loss; X*N repeats the letter or bar X, (...)*N what stands in the brackets (which hold
//   no others); commas are for the eye. "Et*3|(tt|)*2L" is E and 3 layers, 2 layers, 2 layers, L.
// A part may have no layer. Megatron's m (multi-token prediction) is refused. The number of parts is a multiple of
// `num_stages`, the t are `num_layers`; anything else is an error with exit code 2 that names the place.
LayerLayout parse_layer_layout(std::string_view text, int num_layers, int num_stages);

// The same as text, in its shortest form without brackets.
std::string to_string(const LayerLayout& layout);

// How layers are split where no layout is given; fields by Megatron-LM's flags (get_num_layers_to_build in
// transformer_block.py). Sizes that do not divide are an error with exit code 2 that names sizes that would.
struct LayerSplit {
  int num_layers = 1;
  Placement placement;
  bool account_for_embedding = false;  // as a layer of the first part: --account-for-embedding-in-pipeline-split
  bool account_for_loss = false;       // as a layer of the last part: --account-for-loss-in-pipeline-split
  int first_stage_layers = 0;  // --decoder-first-pipeline-num-layers, of the first stage's parts together; 0: even
  int last_stage_layers = 0;   // --decoder-last-pipeline-num-layers, of the last stage's; 0: even
};
LayerLayout split_layers(const LayerSplit& split);

// The number of chunks per stage that --num-layers-per-virtual-pipeline-stage asks for; `split` without its chunks.
int chunks_of_virtual_stages(const LayerSplit& split, int num_layers_per_virtual_stage);

}  // namespace megalith
