// A decoder-only transformer as a list of segments: embedding, per layer attention and MLP, head. Between segments flow
// (hidden, residual); the residual add is fused into the next norm.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/layers/core_attention.h"
#include "core/layers/embedding.h"
#include "core/layers/linear.h"
#include "core/layers/lm_head.h"
#include "core/layers/norm.h"
#include "core/layers/segment.h"
#include "core/model/gpt_part.h"

namespace megalith {

struct ModelConfig;

struct NamedSegment {
  std::string name;  // "layer 3 attention"
  std::unique_ptr<Segment> segment;
  int first_unit = 0;  // units of the ParameterStore that it uses: [first_unit, last_unit]
  int last_unit = 0;
  int layer_unit = 0;  // the first one of its layer
  SegmentModule module = SegmentModule::kOther;
  std::int64_t layer = -1;  // its first one, counted through the whole model; -1: none
};

using CoreAttentionFactory = std::function<std::unique_ptr<CoreAttention>(const CoreAttention::Spec&)>;

// Where a layer of a user's own stands: behind the MLP of a layer, or behind its experts.
struct OwnSite {
  ParameterStore& store;  // in the layer's unit
  RowExchange& rows;      // outlives the model
  const ModelConfig& config;
  std::int64_t layer = 0;  // counted through the whole model
  std::string prefix;      // of logical names: "decoder.layers.3."

  TensorSplit split() const { return rows.split(); }
};
// Null: none there.
using OwnSegmentFactory = std::function<std::unique_ptr<Segment>(const OwnSite&)>;

// Where experts stand in place of an MLP.
struct MoeSite {
  ParameterStore& store;  // in the layer's unit
  RowExchange& rows;
  const ModelConfig& config;
  std::int64_t layer = 0;
  std::string prefix;  // of logical names: "decoder.layers.3.mlp."
  Norm norm;           // in front of it
  DropoutSpec dropout;
  bool recompute_shared = false;  // the shared expert
};
// Segments of a layer, from (hidden, residual) to (hidden, residual); in between flows what they want. Units are those
// that they begin themselves, or the layer's where both are 0.
using MoeFactory = std::function<std::vector<NamedSegment>(const MoeSite&)>;

// Where tensor and context parallelism come in; what is left out is as on one rank.
struct GptFactories {
  RowExchange* rows = nullptr;               // of tensor parallelism; outlives the model
  CoreAttentionFactory core_attention = {};  // its spec has this rank's heads
  OwnSegmentFactory own = {};
  MoeFactory moe = {};  // needed where the model has experts
};

struct GptModel {
  std::shared_ptr<const ModelConfig> config;
  std::unique_ptr<ParameterStore> parameters = std::make_unique<ParameterStore>();
  std::unique_ptr<RowExchange> one_rank = std::make_unique<RowExchange>();  // used without GptFactories::rows
  std::vector<NamedSegment> segments;
  std::vector<int> part_segments;  // segments of each part
  // The word table; where the output layer is tied to that of another stage its copy, which is initialised alike and
  // whose gradients the caller adds to the table's. Null where no part needs it.
  Parameter* words = nullptr;
};

// `config` is resolved and valid; `loss_chunk_size` is the head's (core/layers/lm_head.h); `parts` are those of a
// pipeline stage, in the model's order, empty for the whole model. Parameters are declared; the caller allocates and
// initialises them.
GptModel build_gpt(const ModelConfig& config, const RecomputeLayers& recompute = {}, const GptFactories& factories = {},
                   std::int64_t loss_chunk_size = 0, const std::vector<GptPart>& parts = {});

}  // namespace megalith
