#include "core/model/gpt.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/layers/attention.h"
#include "core/layers/mlp.h"
#include "core/layers/recompute.h"
#include "core/model/config.h"

namespace megalith {

namespace {

enum DropoutSite : std::int32_t { kEmbeddingSite, kAttentionSite, kMlpSite };

class GptBuilder {
 public:
  GptBuilder(const ModelConfig& config, const RecomputeLayers& recompute, const GptFactories& factories,
             std::int64_t loss_chunk_size)
      : config_(config), recompute_(recompute), factories_(factories), loss_chunk_size_(loss_chunk_size) {
    model_.config = std::make_shared<const ModelConfig>(config);
    rows_ = factories.rows != nullptr ? factories.rows : model_.one_rank.get();
    split_ = rows_->split();
    moe_layers_ = moe_layers(config.moe, config.num_layers);
    windows_ = attention_windows(config);
  }

  GptModel build(const std::vector<GptPart>& parts) {
    for (const GptPart& part : parts) {
      const std::size_t before = model_.segments.size();
      if (part.has_embedding) add_embedding();
      add_layers(part.first_layer, part.first_layer + part.num_layers);
      if (part.has_head) add_head();
      model_.part_segments.push_back(static_cast<int>(model_.segments.size() - before));
    }
    store().check_split(split_);
    return std::move(model_);
  }

 private:
  ParameterStore& store() { return *model_.parameters; }
  int current_unit() { return static_cast<int>(store().units().size()) - 1; }

  void add(NamedSegment segment) { model_.segments.push_back(std::move(segment)); }
  // Adds a segment that uses the units from `first_unit` to the current one.
  void add(std::string name, std::unique_ptr<Segment> segment, int first_unit,
           SegmentModule module = SegmentModule::kOther, std::int64_t layer = -1) {
    add({.name = std::move(name),
         .segment = std::move(segment),
         .first_unit = first_unit,
         .last_unit = current_unit(),
         .layer_unit = first_unit,
         .module = module,
         .layer = layer});
  }

  void add_embedding() {
    store().begin_unit("embedding");
    const bool learned = config_.position_embedding_type == PositionEmbedding::kLearnedAbsolute;
    auto embedding =
        std::make_unique<Embedding>(store(),
                                    Embedding::Spec{.table = table(),
                                                    .positions = learned ? config_.max_position_embeddings : 0,
                                                    .dropout = dropout(-1, kEmbeddingSite)},
                                    *rows_);
    model_.words = &embedding->word_table();
    add("embedding", std::move(embedding), current_unit(), SegmentModule::kEmbedding);
  }

  // Returns this rank's part of the word table or of the output layer's table.
  WordTable table() const {
    const std::int64_t divisor = config_.make_vocab_size_divisible_by, multiple = divisor * split_.ranks;
    const std::int64_t rows = (config_.vocab_size + multiple - 1) / multiple * divisor;
    return {.vocab = config_.padded_vocab_size,
            .hidden = config_.hidden_size,
            .rows = rows,
            .first_row = split_.rank * rows,
            .init_std = static_cast<float>(config_.init_method_std)};
  }

  void add_layers(std::int64_t first, std::int64_t end) {
    for (std::int64_t layer = first; layer < end;) {
      const auto range = std::find_if(recompute_.ranges.begin(), recompute_.ranges.end(),
                                      [layer](const RecomputeLayers::Range& r) { return r.first == layer; });
      if (range != recompute_.ranges.end()) {
        add_recomputed(*range);
        layer += range->count;
      } else {
        add_layer(layer++);
      }
    }
  }

  DropoutSpec dropout(std::int64_t layer, DropoutSite site) const {
    return {.p = static_cast<float>(config_.hidden_dropout),
            .layer = static_cast<std::int32_t>(layer),
            .site = site,
            .row_part = split_.row_part()};
  }

  std::unique_ptr<Linear> linear(LinearSpec spec) {
    spec.one_write = true;
    return std::make_unique<Linear>(store(), spec, *rows_);
  }

  // Gradients are partial under sequence parallelism (part of the rows) and for q and k norms (part of the heads).
  Norm norm(std::string name, std::int64_t size, SlotKind kind, bool partial_gradient) {
    return Norm(store(),
                {.name = std::move(name),
                 .kind = config_.normalization == Normalization::kRmsNorm ? NormKind::kRmsNorm : NormKind::kLayerNorm,
                 .size = size,
                 .eps = static_cast<float>(config_.norm_epsilon),
                 .zero_centered = config_.apply_layernorm_1p,
                 .input_kind = kind,
                 .split = split_,
                 .partial_gradient = partial_gradient});
  }

  std::unique_ptr<Segment> attention(std::int64_t layer) {
    const std::string prefix = fmt::format("decoder.layers.{}.", layer);
    const std::string self = prefix + "self_attention.";
    const std::int64_t d = config_.kv_channels;
    const std::int64_t q = config_.num_attention_heads * d;
    const std::int64_t kv = config_.num_query_groups * d;
    Attention::Parts parts{
        .norm = norm(prefix + "input_layernorm", config_.hidden_size, SlotKind::kAttnNorm, split_.sequence)};
    parts.qkv = linear({.name = self + "linear_qkv",
                        .inputs = config_.hidden_size,
                        .outputs = q + 2 * kv,
                        .bias = config_.has_qkv_bias(),
                        .init_std = static_cast<float>(config_.init_method_std),
                        .input_kind = SlotKind::kQkvLinear,
                        .parts = {{self + "linear_q", q, d}, {self + "linear_k", kv, d}, {self + "linear_v", kv, d}}});
    parts.proj = linear({.name = self + "linear_proj",
                         .inputs = q,
                         .outputs = config_.hidden_size,
                         .bias = config_.has_attn_proj_bias(),
                         .init_std = static_cast<float>(config_.output_layer_init_std()),
                         .input_kind = SlotKind::kAttnProj,
                         .splits_inputs = true});
    if (config_.qk_layernorm) {
      const bool partial = split_.ranks > 1;
      parts.q_norm = norm(self + "q_layernorm", d, SlotKind::kCoreAttn, partial);
      parts.k_norm = norm(self + "k_layernorm", d, SlotKind::kCoreAttn, partial);
    }
    const CoreAttention::Spec core{.heads = config_.num_attention_heads / split_.ranks,
                                   // If there are more ranks than groups, several ranks use one group.
                                   .query_groups = std::max<std::int64_t>(1, config_.num_query_groups / split_.ranks),
                                   .head_dim = d,
                                   .window = windows_[static_cast<std::size_t>(layer)]};
    parts.core = factories_.core_attention ? factories_.core_attention(core) : std::make_unique<CausalAttention>(core);
    return std::make_unique<Attention>(Attention::Spec{.rotary_base = static_cast<float>(config_.rotary_base),
                                                       .rotary_scaling = config_.rotary_scaling(),
                                                       .rotary_dim = config_.rotary_dim(),
                                                       .dropout = dropout(layer, kAttentionSite),
                                                       .layer = static_cast<int>(layer)},
                                       std::move(parts));
  }

  Norm mlp_norm(std::int64_t layer) {
    return norm(fmt::format("decoder.layers.{}.pre_mlp_layernorm", layer), config_.hidden_size, SlotKind::kMlpNorm,
                split_.sequence);
  }

  std::unique_ptr<Segment> mlp(std::int64_t layer) {
    const std::string prefix = fmt::format("decoder.layers.{}.", layer);
    const std::int64_t ffn = config_.ffn_hidden_size;
    LinearSpec fc1{.name = prefix + "mlp.linear_fc1",
                   .inputs = config_.hidden_size,
                   .outputs = ffn,
                   .bias = config_.add_bias_linear,
                   .init_std = static_cast<float>(config_.init_method_std),
                   .input_kind = SlotKind::kFc1};
    if (config_.swiglu) {
      fc1.outputs = 2 * ffn;
      fc1.parts = {{prefix + "mlp.linear_gate", ffn}, {prefix + "mlp.linear_up", ffn}};
    }
    Mlp::Parts parts{.norm = mlp_norm(layer)};
    parts.fc1 = linear(fc1);
    parts.fc2 = linear({.name = prefix + "mlp.linear_fc2",
                        .inputs = ffn,
                        .outputs = config_.hidden_size,
                        .bias = config_.add_bias_linear,
                        .init_std = static_cast<float>(config_.output_layer_init_std()),
                        .input_kind = SlotKind::kFc2,
                        .splits_inputs = true});
    return std::make_unique<Mlp>(Mlp::Spec{.activation = activation_of(config_), .dropout = dropout(layer, kMlpSite)},
                                 std::move(parts));
  }

  std::vector<NamedSegment> experts(std::int64_t layer) {
    require(factories_.moe != nullptr, "a model with experts is built with GptFactories::moe");
    std::vector<NamedSegment> list = factories_.moe({.store = store(),
                                                     .rows = *rows_,
                                                     .config = config_,
                                                     .layer = layer,
                                                     .prefix = fmt::format("decoder.layers.{}.mlp.", layer),
                                                     .norm = mlp_norm(layer),
                                                     .dropout = dropout(layer, kMlpSite),
                                                     .recompute_shared = is_in(recompute_.shared_experts, layer)});
    if (!is_in(recompute_.moes, layer) || is_in(recompute_.ranges, layer)) return list;
    NamedSegment whole{.name = "moe", .last_unit = current_unit(), .module = SegmentModule::kMoe};
    std::vector<std::unique_ptr<Segment>> segments;
    segments.reserve(list.size());
    for (NamedSegment& one : list) segments.push_back(std::move(one.segment));
    whole.segment = std::make_unique<Recompute>(std::make_unique<Sequential>(std::move(segments)));
    list.clear();
    list.push_back(std::move(whole));
    return list;
  }

  static bool is_in(const std::vector<RecomputeLayers::Range>& ranges, std::int64_t layer) {
    return std::ranges::any_of(ranges, [layer](const RecomputeLayers::Range& range) { return range.contains(layer); });
  }

  // Returns the segments of a layer in order, without the layer's name. A user-supplied one follows another segment.
  std::vector<NamedSegment> layer_segments(std::int64_t layer) {
    store().begin_unit(fmt::format("layer {}", layer));
    const int unit = current_unit();
    std::vector<NamedSegment> list;
    list.push_back({.name = "attention", .segment = attention(layer), .module = SegmentModule::kAttention});
    const auto make_own = [&]() -> std::unique_ptr<Segment> {
      if (!factories_.own) return nullptr;
      return factories_.own({.store = store(),
                             .rows = *rows_,
                             .config = config_,
                             .layer = layer,
                             .prefix = fmt::format("decoder.layers.{}.", layer)});
    };
    std::unique_ptr<Segment> own;
    if (moe_layers_[static_cast<std::size_t>(layer)]) {
      own = make_own();  // while the layer's unit is the current one
      for (NamedSegment& one : experts(layer)) list.push_back(std::move(one));
    } else {
      list.push_back({.name = "mlp", .segment = mlp(layer), .module = SegmentModule::kMlp});
      own = make_own();
    }
    if (own) list.push_back({.name = "own", .segment = std::move(own), .module = SegmentModule::kOwn});
    require(
        dynamic_cast<const Layer*>(list.front().segment.get()) == nullptr,
        "a Layer comes first in a transformer layer: where a pipeline stage begins with it, it would see the sum of "
        "hidden and residual; put it after another segment");
    for (NamedSegment& one : list) {
      one.layer = layer;
      one.layer_unit = unit;
      if (one.first_unit == 0) one.first_unit = unit;
      one.last_unit = std::max(one.last_unit, one.first_unit);
    }
    return list;
  }

  void add_layer(std::int64_t layer) {
    const bool recomputes_mlp = is_in(recompute_.mlps, layer);
    for (NamedSegment& one : layer_segments(layer)) {
      if (recomputes_mlp && one.name == "mlp") one.segment = std::make_unique<Recompute>(std::move(one.segment));
      one.name = fmt::format("layer {} {}", layer, one.name);
      add(std::move(one));
    }
  }

  void add_recomputed(const RecomputeLayers::Range& range) {
    std::vector<std::unique_ptr<Segment>> layers;
    const int first_unit = current_unit() + 1;
    for (std::int64_t layer = range.first; layer < range.first + range.count; ++layer) {
      std::vector<std::unique_ptr<Segment>> segments;
      for (NamedSegment& one : layer_segments(layer)) segments.push_back(std::move(one.segment));
      layers.push_back(std::make_unique<Sequential>(std::move(segments)));
    }
    const std::string name = range.count == 1
                                 ? fmt::format("layer {}", range.first)
                                 : fmt::format("layers {} to {}", range.first, range.first + range.count - 1);
    add(name, std::make_unique<Recompute>(std::make_unique<Sequential>(std::move(layers))), first_unit,
        SegmentModule::kLayer, range.first);
  }

  void add_head() {
    store().begin_unit("head");
    Norm final_norm = norm("decoder.final_layernorm", config_.hidden_size, SlotKind::kOther, split_.sequence);
    const bool tied = !config_.untie_embeddings_and_output_weights;
    const char* const name = tied ? "embedding.word_embeddings.weight" : "output_layer.weight";
    const bool shares = tied && model_.words != nullptr;
    Parameter& weight = shares ? store().add_tied(*model_.words) : store().add(table().parameter(name));
    if (tied && !shares) {
      weight.is_copy = true;
      model_.words = &weight;
    }
    add("head",
        std::make_unique<LmHead>(
            LmHead::Spec{
                .vocab_size = config_.vocab_size, .first_word = table().first_row, .loss_chunk_size = loss_chunk_size_},
            std::move(final_norm), weight, *rows_),
        current_unit(), SegmentModule::kHead);
  }

  const ModelConfig& config_;
  const RecomputeLayers& recompute_;
  const GptFactories& factories_;
  std::int64_t loss_chunk_size_;
  RowExchange* rows_;
  TensorSplit split_;
  std::vector<bool> moe_layers_;
  std::vector<std::int64_t> windows_;  // of each layer
  GptModel model_;
};

}  // namespace

Activation activation_of(const ModelConfig& config) {
  if (config.swiglu) return Activation::kSwiglu;
  if (config.squared_relu) return Activation::kSquaredRelu;
  return config.activation_func == ActivationFunction::kGelu ? Activation::kGeluExact : Activation::kGeluTanh;
}

GptModel build_gpt(const ModelConfig& config, const RecomputeLayers& recompute, const GptFactories& factories,
                   std::int64_t loss_chunk_size, const std::vector<GptPart>& parts) {
  const std::vector<GptPart> whole{{.num_layers = config.num_layers, .has_embedding = true, .has_head = true}};
  return GptBuilder(config, recompute, factories, loss_chunk_size).build(parts.empty() ? whole : parts);
}

}  // namespace megalith
