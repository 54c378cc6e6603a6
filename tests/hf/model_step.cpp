#include "tests/hf/model_step.h"

#include <map>

#include "core/device/copy.h"
#include "core/model/gpt.h"
#include "core/ops/elementwise/elementwise.h"
#include "core/ops/optim/grad_norm.h"
#include "moe/moe_layer.h"
#include "tests/support/download.h"

namespace megalith::test {

namespace {

class Run {
 public:
  explicit Run(const ModelStepCase& test) : test_(test) {
    gpt_.parameters->allocate(pool_, test.config.params_dtype);
    import_weights(stream_, *gpt_.parameters, test.config, test.weights);
    microbatch_ = {.sequences = test.sequences,
                   .seq_length = test.config.seq_length,
                   .tokens = integers(test.tokens),
                   .labels = integers(test.labels)};
  }

  // Same as for generation, but the head treats every token as a sequence's last one.
  std::vector<double> logits() {
    Microbatch mb = microbatch_;
    mb.mode = Mode::kGenerate;
    TensorList hidden;
    std::map<int, Stash> of_layers;
    for (const NamedSegment& named : gpt_.segments) {
      if (&named == &gpt_.segments.back()) mb = {.mode = Mode::kGenerate, .sequences = rows(), .seq_length = 1};
      Stash stash;
      stash.set_layer(of_layers[named.layer_unit]);
      hidden = named.segment->forward(ctx_, mb, hidden, stash);
    }
    const std::vector<float> padded = download(stream_, hidden[0]);
    std::vector<double> logits;
    for (std::int64_t row = 0; row < rows(); ++row) {
      const auto first = padded.begin() + row * test_.config.padded_vocab_size;
      logits.insert(logits.end(), first, first + test_.config.vocab_size);
    }
    return logits;
  }

  double train() {
    Microbatch mb = microbatch_;
    auto* parameters = static_cast<MicrobatchParameters*>(
        pool_.allocate(sizeof(MicrobatchParameters), MemoryCategory::kOther, "microbatch parameters"));
    mb.parameters = parameters;
    const std::int64_t sums = num_step_sums(moe_layers_before(test_.config, test_.config.num_layers));
    mb.sums = Tensor(pool_.allocate(4 * static_cast<std::size_t>(sums), MemoryCategory::kOther, "loss"), DType::kFp32,
                     {sums});
    launch(stream_, Fill{.x = mb.sums, .value = 0});
    launch(stream_, WriteMicrobatchParameters{.value = {.loss_scale = 1.0f / static_cast<float>(rows()),
                                                        .router_scale = 1.0f / static_cast<float>(rows())},
                                              .out = parameters});
    gpt_.parameters->zero_gradients(stream_);
    std::vector<Stash> stashes(gpt_.segments.size());
    std::map<int, Stash> of_layers;
    TensorList hidden, gradients;
    for (std::size_t s = 0; s < stashes.size(); ++s) {
      stashes[s].set_layer(of_layers[gpt_.segments[s].layer_unit]);
      hidden = gpt_.segments[s].segment->forward(ctx_, mb, hidden, stashes[s]);
    }
    for (std::size_t s = stashes.size(); s-- > 0;) {
      gradients = gpt_.segments[s].segment->backward_data(ctx_, mb, gradients, stashes[s]);
      gpt_.segments[s].segment->backward_weight(ctx_, mb, stashes[s]);
    }
    gpt_.parameters->add_tied_gradients(stream_);
    return static_cast<double>(download(stream_, mb.sums)[0]) / static_cast<double>(rows());
  }

  void read_gradients(ModelStep& result) {
    for (const ParameterUnit& unit : gpt_.parameters->units()) {
      for (const Parameter* parameter : unit.parameters) {
        for (std::size_t i = 0; i < parameter->parts.size(); ++i) {
          const LogicalTensor& part = parameter->parts[i];
          result.gradients[part.name] = download(stream_, parameter->part_of(parameter->main_grad, i));
          result.shapes[part.name] = part.global_shape;
        }
      }
    }
  }

 private:
  std::int64_t rows() const { return test_.sequences * test_.config.seq_length; }

  Tensor integers(const std::vector<std::int32_t>& values) {
    require(static_cast<std::int64_t>(values.size()) == rows(), "tokens [B, S]");
    const Tensor tensor(pool_.allocate(values.size() * 4, MemoryCategory::kOther, "tokens"), DType::kInt32, {rows()});
    copy_from_host(stream_, tensor.data, values.data(), tensor.bytes());
    stream_.synchronize();
    return tensor;
  }

  const ModelStepCase& test_;
  MemoryPool pool_{test_.device};
  Stream stream_{test_.device, "compute"};
  Arena arena_{pool_, Arena::Mode::kUnplanned};
  GptModel gpt_ = build_gpt(test_.config, {}, {.moe = moe_factory()});
  const Context ctx_{.compute = stream_, .arena = arena_};
  Microbatch microbatch_;
};

}  // namespace

ModelStep run_model_step(const ModelStepCase& test) {
  Run run(test);
  ModelStep result;
  result.logits = run.logits();
  result.loss = run.train();
  run.read_gradients(result);
  return result;
}

}  // namespace megalith::test
