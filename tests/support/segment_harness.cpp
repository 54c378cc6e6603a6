#include "tests/support/segment_harness.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "core/device/copy.h"
#include "core/layers/hooks.h"
#include "core/ops/elementwise/elementwise.h"
#include "core/tensor/bf16.h"
#include "tests/support/download.h"

namespace megalith::test {

namespace {

// One rank's world for one segment, on the test's backend or on the plan backend.
class Harness {
 public:
  // `output_shapes` are known once a recording was made.
  Harness(const SegmentCase& test, DeviceType device, Timeline* timeline, std::vector<Shape> output_shapes = {})
      : test_(test),
        pool_(device),
        stream_(device, "compute", {.timeline = timeline}),
        arena_(pool_, device == DeviceType::kPlan ? Arena::Mode::kRecording : Arena::Mode::kPlanned),
        ctx_{.compute = stream_,
             .arena = arena_,
             .seed = test.seed,
             .planned_for = test.device,
             .deterministic = test.deterministic},
        microbatches_(static_cast<std::size_t>(test.microbatches)) {
    store_.begin_unit("test");
    segment_ = test.build(store_);
    store_.allocate(pool_, test.dtype, test.main_grads_dtype);
    sums_ = persistent(DType::kFp32, {num_step_sums(1)});
    if (test.experts > 0) balance_counts_ = persistent(DType::kInt32, {1, test.experts});
    const std::int64_t tokens = test.sequences * test.seq_length;
    for (InFlight& flight : microbatches_) {
      flight.parameters = static_cast<MicrobatchParameters*>(
          pool_.allocate(sizeof(MicrobatchParameters), MemoryCategory::kOther, "test"));
      flight.microbatch = {.mode = test.mode,
                           .sequences = test.sequences,
                           .seq_length = test.seq_length,
                           .tokens = persistent(DType::kInt32, {tokens}),
                           .labels = persistent(DType::kInt32, {tokens}),
                           .parameters = flight.parameters,
                           .sums = sums_,
                           .balance_counts = balance_counts_};
      flight.stash = Stash(test.policies);
      for (const Shape& shape : test.inputs)
        flight.inputs.push_back(shape.rank() == 0 ? Tensor{} : persistent(test.dtype, shape));
      if (!output_shapes.empty()) make_gradients(flight, output_shapes);
    }
  }

  using Around = std::function<void(const char*, const std::function<void()>&)>;

  void step(const Around& around) {
    launch(stream_, Fill{.x = sums_, .value = 0});
    if (balance_counts_) launch(stream_, Fill{.x = balance_counts_, .value = 0});
    for (int m = 0; m < test_.microbatches; ++m) {
      run(m, Verb::kForward, around);
      if (test_.mode != Mode::kTrain) continue;
      run(m, Verb::kBackwardData, around);
      if (!test_.delay_weights) run(m, Verb::kBackwardWeight, around);
    }
    for (int m = 0; test_.mode == Mode::kTrain && test_.delay_weights && m < test_.microbatches; ++m)
      run(m, Verb::kBackwardWeight, around);
  }

  // Results that the test reads later must outlive the recorded step.
  void keep_results() {
    arena_.begin_scope({.segment = 1});
    for (const InFlight& flight : microbatches_) {
      keep(flight.outputs);
      keep(flight.input_gradients);
    }
  }

  std::vector<Shape> output_shapes() const {
    std::vector<Shape> shapes;
    const TensorList& outputs = microbatches_[0].outputs;
    for (int i = 0; i < outputs.size(); ++i) shapes.push_back(outputs[i].shape);
    return shapes;
  }

  void fill(SegmentResult& result, std::uint64_t seed) {
    std::mt19937 random(static_cast<unsigned>(seed));
    store_.initialize(stream_, seed);
    store_.zero_gradients(stream_);
    if (test_.weight_std >= 0) {
      for (ParameterUnit& unit : store_.units()) {
        for (Parameter* parameter : unit.parameters) draw(parameter->weight, test_.weight_std, random);
      }
    }
    for (int m = 0; m < test_.microbatches; ++m) {
      const InFlight& flight = microbatches_[static_cast<std::size_t>(m)];
      for (int i = 0; i < flight.inputs.size(); ++i) result.inputs.push_back(draw(flight.inputs[i], 1, random));
      for (int i = 0; i < flight.gradients.size(); ++i)
        result.output_gradients.push_back(draw(flight.gradients[i], 1, random));
      fill_tokens(flight, m, random);
    }
  }

  void read(SegmentResult& result) {
    stream_.synchronize();
    for (const InFlight& flight : microbatches_) {
      read(flight.outputs, result.outputs);
      read(flight.input_gradients, result.input_gradients);
    }
    for (const ParameterUnit& unit : store_.units()) {
      for (const Parameter* parameter : unit.parameters) {
        result.names.push_back(parameter->name());
        result.weights.push_back(download(stream_, parameter->weight));
        result.main_gradients.push_back(download(stream_, parameter->main_grad));
      }
    }
    result.sums = download(stream_, sums_);
    result.loss = result.sums[0];
  }

  Stream& stream() { return stream_; }
  Arena& arena() { return arena_; }

 private:
  struct InFlight {
    TensorList inputs, outputs, gradients, input_gradients;
    Microbatch microbatch;
    MicrobatchParameters* parameters = nullptr;
    Stash stash;
  };

  Tensor persistent(DType dtype, const Shape& shape) {
    const std::size_t bytes = static_cast<std::size_t>(shape.numel()) * size_of(dtype);
    return Tensor(pool_.allocate(bytes, MemoryCategory::kOther, "test"), dtype, shape);
  }

  // Gradients of the outputs are an input of the test.
  void make_gradients(InFlight& flight, const std::vector<Shape>& output_shapes) {
    for (int i = 0; i < std::min(test_.gradients, static_cast<int>(output_shapes.size())); ++i) {
      const Shape& shape = output_shapes[static_cast<std::size_t>(i)];
      flight.gradients.push_back(shape.rank() == 0 ? Tensor{} : persistent(test_.dtype, shape));
    }
  }

  void run(int m, Verb verb, const Around& around) {
    InFlight& flight = microbatches_[static_cast<std::size_t>(m)];
    if (verb == Verb::kBackwardData && flight.gradients.size() == 0) make_gradients(flight, output_shapes());
    around(name_of(verb).data(), [&] {
      arena_.begin_scope({.column = m, .segment = 0, .verb = static_cast<std::int32_t>(verb)});
      switch (verb) {
        case Verb::kForward: forward(flight); break;
        case Verb::kBackwardData:
          flight.input_gradients = segment_->backward_data(ctx_, flight.microbatch, flight.gradients, flight.stash);
          break;
        case Verb::kBackwardWeight: segment_->backward_weight(ctx_, flight.microbatch, flight.stash); break;
      }
    });
  }

  // Same as in SegmentRunner.
  void forward(InFlight& flight) {
    flight.stash.clear();
    flight.outputs = segment_->forward(ctx_, flight.microbatch, flight.inputs, flight.stash);
    if (test_.mode != Mode::kTrain) return flight.stash.clear();
    flight.stash.for_each([this](const Stash::Slot& slot) {
      arena_.classify(slot.tensor.data, MemoryCategory::kActivations, name_of(slot.kind));
    });
  }

  // The values as the tensor's dtype rounds them.
  std::vector<float> draw(const Tensor& tensor, float std, std::mt19937& random) {
    if (!tensor) return {};
    std::normal_distribution<float> normal;
    std::vector<float> values(static_cast<std::size_t>(tensor.numel()));
    for (float& value : values) value = std * normal(random);
    upload(stream_, values, tensor);
    return download(stream_, tensor);
  }

  void fill_tokens(const InFlight& flight, int m, std::mt19937& random) {
    const MicrobatchParameters parameters{
        .iteration = 3, .first_sample = 5 + m * test_.sequences, .loss_scale = 0.125f, .router_scale = 0.125f};
    copy_from_host(stream_, flight.parameters, &parameters, sizeof(parameters));
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(flight.microbatch.tokens.numel()), 0);
    if (test_.vocab > 0) {
      std::uniform_int_distribution<std::int32_t> token(0, static_cast<std::int32_t>(test_.vocab - 1));
      for (std::int32_t& t : tokens) t = token(random);
    }
    copy_from_host(stream_, flight.microbatch.tokens.data, tokens.data(), tokens.size() * 4);
    const std::vector<std::int32_t> labels(tokens.rbegin(), tokens.rend());
    copy_from_host(stream_, flight.microbatch.labels.data, labels.data(), labels.size() * 4);
    stream_.synchronize();
  }

  void keep(const TensorList& tensors) {
    for (int i = 0; i < tensors.size(); ++i) {
      if (!tensors[i]) continue;
      const Tensor copy = ctx_.empty(tensors[i].shape, tensors[i].dtype, "kept");
      launch(stream_, Add{.a = tensors[i], .b = tensors[i], .y = copy});
    }
  }

  void read(const TensorList& tensors, std::vector<std::vector<float>>& out) {
    for (int i = 0; i < tensors.size(); ++i)
      out.push_back(tensors[i] ? download(stream_, tensors[i]) : std::vector<float>{});
  }

  const SegmentCase& test_;
  MemoryPool pool_;
  Stream stream_;
  Arena arena_;
  ParameterStore store_;
  std::unique_ptr<Segment> segment_;
  const Context ctx_;
  Tensor sums_;
  Tensor balance_counts_;
  std::vector<InFlight> microbatches_;
};

}  // namespace

SegmentResult run_segment(const SegmentCase& test, RunMode run) {
  const auto eagerly = [](const char*, const std::function<void()>& verb) { verb(); };
  SegmentResult result;
  ArenaPlan plan;
  std::vector<Shape> output_shapes;
  {
    Timeline timeline;
    Harness recording(test, DeviceType::kPlan, &timeline);
    recording.step(eagerly);
    recording.keep_results();
    plan = plan_arena(timeline, recording.arena());
    output_shapes = recording.output_shapes();
  }
  for (const auto& [key, slot] : plan.slots) {
    if (slot.category == MemoryCategory::kActivations) result.activations[slot.owner] += slot.bytes;
  }
  result.arena_bytes = plan.peak_bytes;
  std::vector<std::unique_ptr<Graph>> graphs;
  Harness harness(test, test.device, nullptr, std::move(output_shapes));
  harness.arena().use(plan);
  if (run == RunMode::kEager) {
    harness.fill(result, test.seed);
    harness.step(eagerly);
  } else {
    if (test.device == DeviceType::kCuda) {
      SegmentResult of_no_meaning;
      harness.fill(of_no_meaning, test.seed + 1);
      harness.step(eagerly);
    }
    harness.step([&](const char* name, const std::function<void()>& verb) {
      graphs.push_back(std::make_unique<Graph>(name));
      graphs.back()->begin_capture(harness.stream());
      verb();
      graphs.back()->end_capture();
    });
    harness.fill(result, test.seed);  // a capture sees none of the values of the replay
    for (auto& graph : graphs) {
      result.captured_ops += graph->num_ops();
      graph->replay(harness.stream());
      result.replays += graph->num_replays();
    }
  }
  harness.read(result);
  return result;
}

void expect_same_bits(const SegmentResult& a, const SegmentResult& b) {
  const auto same = [](const std::vector<std::vector<float>>& x, const std::vector<std::vector<float>>& y,
                       const char* what) {
    ASSERT_EQ(x.size(), y.size()) << what;
    for (std::size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(x[i].size(), y[i].size()) << what << ' ' << i;
      EXPECT_TRUE(x[i].empty() || std::memcmp(x[i].data(), y[i].data(), x[i].size() * sizeof(float)) == 0)
          << what << ' ' << i;
    }
  };
  same(a.outputs, b.outputs, "output");
  same(a.input_gradients, b.input_gradients, "input gradient");
  same(a.main_gradients, b.main_gradients, "main gradient");
  EXPECT_EQ(std::memcmp(&a.loss, &b.loss, sizeof(float)), 0) << a.loss << " and " << b.loss;
}

}  // namespace megalith::test
