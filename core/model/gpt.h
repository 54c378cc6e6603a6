// Decoder-only transformer as a list of segments: embedding, attention and MLP per layer, head. Segments exchange
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
#include "core/layers/mlp.h"
#include "core/layers/norm.h"
#include "core/layers/segment.h"
#include "core/model/gpt_part.h"

namespace megalith {

struct ModelConfig;

struct NamedSegment {
  std::string name;  // "layer 3 attention"
  std::unique_ptr<Segment> segment;
  int first_unit = 0;  // units of the ParameterStore in use: [first_unit, last_unit]
  int last_unit = 0;
  int layer_unit = 0;  // the first unit of its layer
  SegmentModule module = SegmentModule::kOther;
  std::int64_t layer = -1;  // the first layer, counted over the full model; -1: none
};

using CoreAttentionFactory = std::function<std::unique_ptr<CoreAttention>(const CoreAttention::Spec&)>;

// Place of a user-supplied layer: after the MLP of a layer, or after its experts.
struct OwnSite {
  ParameterStore& store;  // in the layer's unit
  RowExchange& rows;      // outlives the model
  const ModelConfig& config;
  std::int64_t layer = 0;  // counted over the full model
  std::string prefix;      // of logical names: "decoder.layers.3."

  TensorSplit split() const { return rows.split(); }
};
// Maker of the user-supplied layer at a place; null: no layer there.
using OwnSegmentFactory = std::function<std::unique_ptr<Segment>(const OwnSite&)>;

// Place of experts instead of an MLP.
struct MoeSite {
  ParameterStore& store;  // in the layer's unit
  RowExchange& rows;
  const ModelConfig& config;
  std::int64_t layer = 0;
  std::string prefix;  // of logical names: "decoder.layers.3.mlp."
  Norm norm;           // the norm ahead of the experts
  DropoutSpec dropout;
  bool recompute_shared = false;  // recomputes the shared expert
};
// Maker of a layer's segments, from (hidden, residual) to (hidden, residual); their intermediate tensors are free.
// A segment's units are those that it begins, or the layer's unit if both indices are 0.
using MoeFactory = std::function<std::vector<NamedSegment>(const MoeSite&)>;

// Factories of parts that tensor and context parallelism replace. A missing factory means one rank.
struct GptFactories {
  RowExchange* rows = nullptr;               // of tensor parallelism; outlives the model
  CoreAttentionFactory core_attention = {};  // the spec has this rank's heads
  OwnSegmentFactory own = {};
  MoeFactory moe = {};  // required if the model has experts
};

struct GptModel {
  std::shared_ptr<const ModelConfig> config;
  std::unique_ptr<ParameterStore> parameters = std::make_unique<ParameterStore>();
  std::unique_ptr<RowExchange> one_rank = std::make_unique<RowExchange>();  // used without GptFactories::rows
  std::vector<NamedSegment> segments;
  std::vector<int> part_segments;  // segments of each part
  // Word table, or its copy if the output layer is tied to another stage's table. The copy has the same initial values.
  // The caller adds the copy's gradients to the table's. Null if no part needs the table.
  Parameter* words = nullptr;
};

// Returns the activation of MLPs and experts.
Activation activation_of(const ModelConfig& config);

// Builds a model or a pipeline stage. `config` is resolved and valid; `loss_chunk_size` is the head's (lm_head.h).
// `parts` are those of a pipeline stage in the model's order; empty: the full model.
// Parameters are declared; the caller allocates and initializes them.
GptModel build_gpt(const ModelConfig& config, const RecomputeLayers& recompute = {}, const GptFactories& factories = {},
                   std::int64_t loss_chunk_size = 0, const std::vector<GptPart>& parts = {});

}  // namespace megalith
