#include "tests/support/segment_harness.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "core/device/copy.h"
#include "core/layers/host_copy.h"
#include "core/ops/elementwise.h"
#include "core/tensor/bf16.h"

namespace megalith::test {

namespace {

// One rank's world for one segment, on the CPU or on the plan backend.
class Harness {
 public:
  Harness(const SegmentCase& test, DeviceType device, Timeline* timeline)
      : test_(test),
        pool_(device),
        stream_(device, "compute", {.timeline = timeline}),
        arena_(pool_, device == DeviceType::kPlan ? Arena::Mode::kRecording : Arena::Mode::kPlanned),
        ctx_{.compute = stream_, .arena = arena_, .mode = test.mode, .policies = test.policies, .seed = test.seed} {
    store_.begin_unit("test");
    segment_ = test.build(store_);
    store_.allocate(pool_, test.dtype);
    const std::int64_t tokens = test.sequences * test.seq_length;
    const auto persistent = [&](DType dtype, const Shape& shape) {
      return Tensor(
          pool_.allocate(static_cast<std::size_t>(shape.numel()) * size_of(dtype), MemoryCategory::kOther, "test"),
          dtype, shape);
    };
    ctx_.batch = {.tokens = persistent(DType::kInt32, {tokens}),
                  .labels = persistent(DType::kInt32, {tokens}),
                  .sequences = test.sequences,
                  .seq_length = test.seq_length};
    ctx_.loss_sum = persistent(DType::kFp32, {1});
    parameters_ = static_cast<MicrobatchParameters*>(
        pool_.allocate(sizeof(MicrobatchParameters), MemoryCategory::kOther, "test"));
    ctx_.microbatch = parameters_;
    for (const Shape& shape : test.inputs)
      inputs_.push_back(shape.rank() == 0 ? Tensor{} : persistent(test.dtype, shape));
  }

  // The whole life of one microbatch, in a scope of its own per verb.
  void step(const std::function<void(const char*, const std::function<void()>&)>& around) {
    around("forward", [&] {
      arena_.begin_scope({.segment = 0, .verb = 0});
      launch(stream_, Fill{.x = ctx_.loss_sum, .value = 0});
      outputs_ = segment_->forward(ctx_, inputs_, stash_);
    });
    if (test_.mode != Mode::kTrain) return;
    if (gradients_.size() == 0) make_gradients();
    around("backward_data", [&] {
      arena_.begin_scope({.segment = 0, .verb = 1});
      input_gradients_ = segment_->backward_data(ctx_, gradients_, stash_);
    });
    around("backward_weight", [&] {
      arena_.begin_scope({.segment = 0, .verb = 2});
      segment_->backward_weight(ctx_, stash_);
      // Gradients and outputs are read by the test: keep them alive to the end of the recorded step.
      keep(outputs_);
      keep(input_gradients_);
    });
  }

  void fill(SegmentResult& result) {
    std::mt19937 random(static_cast<unsigned>(test_.seed));
    std::normal_distribution<float> normal;
    const auto draw = [&](const Tensor& tensor, float std) {
      std::vector<float> values(static_cast<std::size_t>(tensor.numel()));
      for (float& value : values) value = std * normal(random);
      upload(stream_, values, tensor);
      return download(stream_, tensor);  // as rounded
    };
    store_.initialize(stream_, test_.seed);
    store_.zero_gradients(stream_);
    if (test_.weight_std >= 0) {
      for (ParameterUnit& unit : store_.units()) {
        for (Parameter* parameter : unit.parameters) draw(parameter->weight, test_.weight_std);
      }
    }
    for (int i = 0; i < inputs_.size(); ++i)
      result.inputs.push_back(inputs_[i] ? draw(inputs_[i], 1) : std::vector<float>{});
    make_gradients();
    for (int i = 0; i < gradients_.size(); ++i)
      result.output_gradients.push_back(gradients_[i] ? draw(gradients_[i], 1) : std::vector<float>{});
    const MicrobatchParameters parameters{.iteration = 3, .first_sample = 5, .loss_scale = 0.125f};
    copy_from_host(stream_, parameters_, &parameters, sizeof(parameters));
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(ctx_.batch.tokens.numel()), 0);
    if (test_.vocab > 0) {
      std::uniform_int_distribution<std::int32_t> token(0, static_cast<std::int32_t>(test_.vocab - 1));
      for (std::int32_t& t : tokens) t = token(random);
    }
    copy_from_host(stream_, ctx_.batch.tokens.data, tokens.data(), tokens.size() * 4);
    std::vector<std::int32_t> labels(tokens.rbegin(), tokens.rend());
    copy_from_host(stream_, ctx_.batch.labels.data, labels.data(), labels.size() * 4);
    stream_.synchronize();
  }

  void read(SegmentResult& result) {
    stream_.synchronize();
    for (int i = 0; i < outputs_.size(); ++i)
      result.outputs.push_back(outputs_[i] ? download(stream_, outputs_[i]) : std::vector<float>{});
    for (int i = 0; i < input_gradients_.size(); ++i) {
      result.input_gradients.push_back(input_gradients_[i] ? download(stream_, input_gradients_[i])
                                                           : std::vector<float>{});
    }
    for (const ParameterUnit& unit : store_.units()) {
      for (const Parameter* parameter : unit.parameters) {
        result.names.push_back(parameter->name());
        result.weights.push_back(download(stream_, parameter->weight));
        result.main_gradients.push_back(download(stream_, parameter->main_grad));
      }
    }
    result.loss = download(stream_, ctx_.loss_sum)[0];
  }

  Stream& stream() { return stream_; }
  Arena& arena() { return arena_; }

 private:
  // Output gradients have the outputs' shapes, which a recording shows; persistent, as an input of the test.
  void make_gradients() {
    if (gradients_.size() > 0 || test_.mode != Mode::kTrain) return;
    for (int i = 0; i < test_.gradients; ++i) {
      const Shape shape = test_.inputs.empty() || test_.inputs[0].rank() == 0 ? Shape{} : gradient_shape(i);
      if (shape.rank() == 0) {
        gradients_.push_back({});
        continue;
      }
      gradients_.push_back(Tensor(pool_.allocate(static_cast<std::size_t>(shape.numel()) * size_of(test_.dtype),
                                                 MemoryCategory::kOther, "test"),
                                  test_.dtype, shape));
    }
  }
  Shape gradient_shape(int i) const {
    return output_shapes_.empty() ? outputs_[i].shape : output_shapes_[static_cast<std::size_t>(i)];
  }

  void keep(const TensorList& tensors) {
    for (int i = 0; i < tensors.size(); ++i) {
      if (tensors[i])
        launch(stream_,
               Add{.a = tensors[i], .b = tensors[i], .y = ctx_.empty(tensors[i].shape, tensors[i].dtype, "kept")});
    }
  }

 public:
  std::vector<Shape> output_shapes() const {
    std::vector<Shape> shapes;
    for (int i = 0; i < outputs_.size(); ++i) shapes.push_back(outputs_[i].shape);
    return shapes;
  }
  void set_output_shapes(std::vector<Shape> shapes) { output_shapes_ = std::move(shapes); }

 private:
  const SegmentCase& test_;
  MemoryPool pool_;
  Stream stream_;
  Arena arena_;
  ParameterStore store_;
  std::unique_ptr<Segment> segment_;
  Context ctx_;
  Stash stash_;
  TensorList inputs_, outputs_, gradients_, input_gradients_;
  std::vector<Shape> output_shapes_;
  MicrobatchParameters* parameters_ = nullptr;
};

}  // namespace

SegmentResult run_segment(const SegmentCase& test, Run run) {
  Timeline timeline;
  ArenaPlan plan;
  std::vector<Shape> output_shapes;
  {
    Harness recording(test, DeviceType::kPlan, &timeline);
    recording.step([](const char*, const std::function<void()>& verb) { verb(); });
    plan = plan_arena(timeline, recording.arena());
    output_shapes = recording.output_shapes();
  }
  SegmentResult result;
  Harness harness(test, DeviceType::kCpu, nullptr);
  harness.set_output_shapes(std::move(output_shapes));
  harness.arena().use(plan);
  harness.fill(result);
  if (run == Run::kEager) {
    harness.step([](const char*, const std::function<void()>& verb) { verb(); });
  } else {
    std::vector<std::unique_ptr<Graph>> graphs;
    harness.step([&](const char* name, const std::function<void()>& verb) {
      graphs.push_back(std::make_unique<Graph>(name));
      graphs.back()->begin_capture(harness.stream());
      verb();
      graphs.back()->end_capture();
    });
    for (auto& graph : graphs) {
      result.captured_ops += graph->num_ops();
      graph->replay(harness.stream());
      result.replays += graph->num_replays();
    }
    harness.stream().synchronize();
  }
  harness.read(result);
  result.arena_bytes = plan.peak_bytes;
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
