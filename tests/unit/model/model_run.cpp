#include "tests/unit/model/model_run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "core/device/copy.h"
#include "core/device/graph.h"
#include "core/ops/elementwise/elementwise.h"
#include "core/ops/optim/grad_norm.h"
#include "parallel/comm/memory_sharing.h"
#include "tests/reference/dropout_mask.h"
#include "tests/support/download.h"
#include "tests/support/reference_rope.h"

namespace megalith::test {

namespace {

constexpr std::int64_t kIteration = 3;
constexpr std::int64_t kFirstSample = 40;

std::vector<Action> actions_of(const ModelCase& test, int num_segments) {
  std::vector<Action> stage = make_schedule(ScheduleKind::k1F1B, test.in_flight, 1, test.microbatches).stages[0];
  if (test.mode == Mode::kEval) return lower_evaluation_step(stage, {num_segments});
  if (test.delay_weights) {
    std::stable_partition(stage.begin(), stage.end(),
                          [](const Action& a) { return a.kind != ActionKind::kBackwardWeight; });
  }
  const ReducePoints points{.segments_of_bucket = {},
                            .tied_segment = test.config.untie_embeddings_and_output_weights ? -1 : 0};
  return lower_training_step(stage, {num_segments}, points);
}

class ModelRun {
 public:
  ModelRun(const ModelCase& test, DeviceType device, Timeline* timeline)
      : test_(test),
        pool_(device),
        stream_(device, "compute", {.timeline = timeline}),
        arena_(pool_, device == DeviceType::kPlan ? Arena::Mode::kRecording : Arena::Mode::kPlanned),
        gpt_(build_gpt(test.config, test.recompute, test.factories_on ? test.factories_on(stream_) : test.factories,
                       test.loss_chunk_size)),
        ctx_{.compute = stream_,
             .arena = arena_,
             .seed = test.seed,
             .planned_for = test.device,
             .deterministic = test.deterministic},
        actions_(actions_of(test, static_cast<int>(gpt_.segments.size()))) {
    gpt_.parameters->allocate(pool_, test.config.params_dtype);
    const std::int64_t sums = num_step_sums(moe_layers_before(test.config, test.config.num_layers));
    sums_ = Tensor(pool_.allocate(4 * static_cast<std::size_t>(sums), MemoryCategory::kOther, "loss"), DType::kFp32,
                   {sums});
    std::vector<SegmentRunner::Entry> entries;
    for (const NamedSegment& named : gpt_.segments)
      entries.push_back({.name = named.name,
                         .segment = named.segment.get(),
                         .policies = test.policies,
                         .module = named.module,
                         .unit = named.layer_unit});
    runner_ = std::make_unique<SegmentRunner>(ctx_, std::move(entries));
    draw_tokens(test.seed + 1000);
  }

  void step(bool replay) {
    replay_ = replay;
    for (int round = 0; round < (replay ? 2 : 1); ++round) {  // the second replays the capture of the first
      losses_.clear();
      next_graph_ = 0;
      if (live()) launch(stream_, Fill{.x = sums_, .value = 0});
      const bool whole = replay && test_.replay_whole;
      if (whole) draw_tokens(test_.seed + (round == 0 ? 2000 : 1000));
      for (std::size_t i = 0; i < actions_.size();) i = whole && is_verb(actions_[i]) ? run_together(i) : run_one(i);
      stream_.synchronize();
    }
  }

  reference::GptTensors draw(std::uint64_t seed) { return draw_weights(stream_, *gpt_.parameters, seed); }

  void read(ModelResult& result) {
    for (const ParameterUnit& unit : gpt_.parameters->units()) {
      for (const Parameter* parameter : unit.parameters) {
        for (std::size_t i = 0; i < parameter->parts.size(); ++i) {
          const std::vector<float> values = download(stream_, parameter->part_of(parameter->main_grad, i));
          result.gradients[parameter->parts[i].name].assign(values.begin(), values.end());
        }
      }
    }
    result.losses = losses_;
    result.tokens.assign(tokens_.begin(), tokens_.end());
    result.labels.assign(labels_.begin(), labels_.end());
    result.columns = num_columns(actions_);
    result.touched_bytes = arena_.touched_bytes();
    result.graphs = static_cast<int>(graphs_.size());
    for (const auto& graph : graphs_) {
      result.captured_ops += graph->num_ops();
      result.replays += graph->num_replays();
    }
  }

  Arena& arena() { return arena_; }

 private:
  bool live() const { return stream_.device() != DeviceType::kPlan; }
  std::int64_t rows() const { return test_.sequences * test_.config.seq_length; }

  void draw_tokens(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    std::uniform_int_distribution<std::int32_t> token(0, static_cast<std::int32_t>(test_.config.vocab_size - 1));
    tokens_.resize(static_cast<std::size_t>(test_.microbatches * rows()));
    labels_.resize(tokens_.size());
    for (std::int32_t& t : tokens_) t = token(random);
    for (std::int32_t& label : labels_) label = token(random);
  }

  static bool is_verb(const Action& action) { return action.segment >= 0; }

  // Both return the next action.
  std::size_t run_one(std::size_t i) {
    run(actions_[i]);
    return i + 1;
  }
  std::size_t run_together(std::size_t first) {
    std::size_t end = first;
    while (end < actions_.size() && is_verb(actions_[end])) ++end;
    if (next_graph_ == graphs_.size()) {
      graphs_.push_back(std::make_unique<Graph>("microbatch"));
      graphs_.back()->begin_capture(stream_);
      for (std::size_t i = first; i < end; ++i) carry_out(actions_[i]);
      graphs_.back()->end_capture();
    }
    graphs_[next_graph_++]->replay(stream_);
    read_loss();
    return end;
  }

  void read_loss() {
    losses_.push_back(download(stream_, sums_)[0]);
    launch(stream_, Fill{.x = sums_, .value = 0});
  }

  void run(const Action& action) {
    switch (action.kind) {
      case ActionKind::kZeroGradients: return gpt_.parameters->zero_gradients(stream_);
      case ActionKind::kLoad: return load(action);
      case ActionKind::kForward:
      case ActionKind::kBackwardData:
      case ActionKind::kBackwardWeight: return run_verb(action);
      case ActionKind::kTieGradients: return gpt_.parameters->add_tied_gradients(stream_);
      default: return;  // one rank has nothing to reduce
    }
  }

  void load(const Action& action) {
    arena_.begin_scope({.column = action.column, .segment = -1, .verb = 0});
    Microbatch mb{.mode = test_.mode,
                  .sequences = test_.sequences,
                  .seq_length = test_.config.seq_length,
                  .tokens = ctx_.empty({rows()}, DType::kInt32, "tokens"),
                  .labels = ctx_.empty({rows()}, DType::kInt32, "labels"),
                  .sums = sums_};
    const auto first = static_cast<std::size_t>(action.microbatch * rows());
    copy_from_host(stream_, mb.tokens.data, tokens_.data() + first, mb.tokens.bytes());
    copy_from_host(stream_, mb.labels.data, labels_.data() + first, mb.labels.bytes());
    MicrobatchParameters*& parameters = parameters_[action.column];
    if (parameters == nullptr) {
      parameters = static_cast<MicrobatchParameters*>(
          pool_.allocate(sizeof(MicrobatchParameters), MemoryCategory::kOther, "microbatch parameters"));
    }
    launch(stream_,
           WriteMicrobatchParameters{.value = {.iteration = kIteration,
                                               .first_sample = kFirstSample + action.microbatch * test_.sequences,
                                               .loss_scale = 1.0f / static_cast<float>(test_.microbatches * rows()),
                                               .router_scale = 1.0f / static_cast<float>(test_.microbatches * rows())},
                                     .out = parameters});
    mb.parameters = parameters;
    runner_->begin(action.column, mb);
  }

  // Waits for the returns of a backward_data at once: each verb may be a graph.
  void carry_out(const Action& action) {
    runner_->run(action);
    if (action.kind == ActionKind::kBackwardData) runner_->wait_exchange({.item = action.segment, .gradient = true});
  }

  void run_verb(const Action& action) {
    if (replay_) {
      if (next_graph_ == graphs_.size()) {
        graphs_.push_back(std::make_unique<Graph>(to_string(action)));
        graphs_.back()->begin_capture(stream_);
        carry_out(action);
        graphs_.back()->end_capture();
      }
      graphs_[next_graph_++]->replay(stream_);
    } else {
      carry_out(action);
    }
    if (live() && action.kind == ActionKind::kForward && action.segment + 1 == runner_->num_segments()) read_loss();
  }

  const ModelCase& test_;
  MemoryPool pool_;
  Stream stream_;
  Arena arena_;
  GptModel gpt_;
  const Context ctx_;
  std::vector<Action> actions_;
  std::unique_ptr<SegmentRunner> runner_;
  Tensor sums_;
  std::size_t next_graph_ = 0;
  std::vector<std::int32_t> tokens_, labels_;
  std::map<int, MicrobatchParameters*> parameters_;
  std::vector<float> losses_;
  bool replay_ = false;
  std::vector<std::unique_ptr<Graph>> graphs_;
};

}  // namespace

reference::GptTensors draw_weights(Stream& stream, ParameterStore& store, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  reference::GptTensors weights;
  for (ParameterUnit& unit : store.units()) {
    for (const Parameter* parameter : unit.parameters) {
      const bool matrix = parameter->shape.rank() > 1;
      const float mean = parameter->initializer == Initializer::kOnes ? 1.0f : 0.0f;
      for (std::size_t i = 0; i < parameter->parts.size(); ++i) {
        const Tensor part = parameter->part_of(parameter->weight, i);
        std::vector<float> values(static_cast<std::size_t>(part.numel()));
        for (float& value : values) value = mean + (matrix ? 0.2f : 0.3f) * normal(random);
        upload(stream, values, part);
        const std::vector<float> rounded = download(stream, part);
        weights[parameter->parts[i].name].assign(rounded.begin(), rounded.end());
      }
    }
  }
  return weights;
}

ModelResult run_model(const ModelCase& test) {
  ModelResult result;
  {
    Timeline timeline;
    ModelRun recording(test, DeviceType::kPlan, &timeline);
    recording.step(false);
    result.plan = plan_arena(timeline, recording.arena());
    for (const Timeline::Entry& entry : timeline.entries()) {
      if (entry.kind != Timeline::Kind::kOp) continue;
      ++result.planned_ops;
      for (const AccessRange& range : entry.access.ranges()) result.accessed_bytes += range.bytes;
    }
  }
  ModelRun run(test, test.device, nullptr);
  run.arena().use(result.plan);
  if (test.shares_memory) {
    EXPECT_TRUE(test.shares_memory->share_memory(run.arena().block(), run.arena().block_bytes(), 0));
  }
  if (test.replay &&
      test.device == DeviceType::kCuda) {  // libraries make their plans at the first call: no capture yet
    run.draw(test.seed + 1);
    run.step(false);
  }
  result.weights = run.draw(test.seed);
  run.step(test.replay);
  run.read(result);
  if (test.shares_memory) test.shares_memory->unshare_memory();
  return result;
}

void expect_same_bits(const ModelResult& a, const ModelResult& b) {
  ASSERT_EQ(a.losses.size(), b.losses.size());
  EXPECT_EQ(std::memcmp(a.losses.data(), b.losses.data(), a.losses.size() * sizeof(float)), 0) << "losses";
  ASSERT_EQ(a.gradients.size(), b.gradients.size());
  for (const auto& [name, values] : a.gradients) {
    const auto other = b.gradients.find(name);
    ASSERT_NE(other, b.gradients.end()) << name;
    ASSERT_EQ(values.size(), other->second.size()) << name;
    EXPECT_EQ(std::memcmp(values.data(), other->second.data(), values.size() * sizeof(double)), 0) << name;
  }
}

reference::GptConfig reference_config(const ModelConfig& c) {
  const auto size = [](std::int64_t n) { return static_cast<std::size_t>(n); };
  using reference::GptActivation;
  const GptActivation gelu = c.activation_func == ActivationFunction::kGelu ? GptActivation::kGeluExact  // exact form
                                                                            : GptActivation::kGeluTanh;
  const std::vector<std::int64_t> windows = attention_windows(c);
  return {.layers = size(c.num_layers),
          .hidden = size(c.hidden_size),
          .heads = size(c.num_attention_heads),
          .groups = size(c.num_query_groups),
          .head_dim = size(c.kv_channels),
          .ffn = size(c.ffn_hidden_size),
          .vocab = size(c.vocab_size),
          .padded_vocab = size(c.padded_vocab_size),
          .rotary_dim = size(c.rotary_dim()),
          .rotary_base = c.rotary_base,
          .rope_scaling = reference_scaling(c.rotary_scaling()),
          .windows = {windows.begin(), windows.end()},
          .rms_norm = c.normalization == Normalization::kRmsNorm,
          .zero_centered = c.apply_layernorm_1p,
          .epsilon = static_cast<double>(static_cast<float>(c.norm_epsilon)),
          .activation = c.swiglu         ? GptActivation::kSwiglu
                        : c.squared_relu ? GptActivation::kSquaredRelu
                                         : gelu};
}

reference::GptBatch reference_batch(const ModelCase& test, const ModelResult& result) {
  const ModelConfig& c = test.config;
  reference::GptBatch batch{.sequences = static_cast<std::size_t>(test.sequences * test.microbatches),
                            .length = static_cast<std::size_t>(c.seq_length),
                            .tokens = result.tokens,
                            .labels = result.labels,
                            .loss_scale = 0,
                            .dropout = {}};
  batch.loss_scale = 1.0f / static_cast<float>(batch.tokens.size());
  if (c.hidden_dropout == 0) return batch;
  reference::DropoutMask mask{.p = static_cast<float>(c.hidden_dropout),
                              .seed = test.seed,
                              .iteration = kIteration,
                              .layer = -1,
                              .site = 0,
                              .first_sample = kFirstSample,
                              .sequences = batch.sequences,
                              .length = batch.length,
                              .columns = static_cast<std::size_t>(c.hidden_size)};
  batch.dropout.push_back(reference::dropout_mask(mask));
  for (mask.layer = 0; mask.layer < c.num_layers; ++mask.layer) {
    for (mask.site = 1; mask.site <= 2; ++mask.site) batch.dropout.push_back(reference::dropout_mask(mask));
  }
  return batch;
}

}  // namespace megalith::test
