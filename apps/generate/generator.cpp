#include "apps/generate/generator.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <numeric>

#include "apps/config/memory_options.h"
#include "apps/config/program_options.h"
#include "apps/config/training_options.h"
#include "core/base/error.h"
#include "core/base/seconds_since.h"
#include "core/device/copy.h"
#include "core/instruments/timeline.h"
#include "core/model/config.h"
#include "core/ops/token/sampling.h"
#include "parallel/comm/plan_communicator.h"

namespace megalith {

namespace {

constexpr std::int64_t kUntimedTokens = 3;  // of the prefill, the eager step and the captured step

std::size_t bytes_of(std::int64_t tokens) { return static_cast<std::size_t>(tokens) * sizeof(std::int32_t); }

}  // namespace

Generator::Generator(const Options& options, DeviceType device, const Sizes& most, Communicator* ranks,
                     Instruments instruments)
    : options_(options),
      most_(most),
      model_(options, device, ranks, instruments),
      numbers_(static_cast<Numbers*>(model_.pool().allocate(sizeof(Numbers), MemoryCategory::kOther, "generation"))),
      drawn_(model_.pool().allocate(bytes_of(most.sequences), MemoryCategory::kOther, "generation"), DType::kInt32,
             {most.sequences}),
      streams_(model_.pool().allocate(bytes_of(most.sequences), MemoryCategory::kOther, "generation"), DType::kInt32,
               {most.sequences}),
      host_(device, bytes_of(most.sequences * (most.prompt + 3)) + 5 * 256, "generation"),
      host_numbers_(host_.allocate_as<Numbers>(1)),
      host_prompts_(host_.allocate_as<std::int32_t>(static_cast<std::size_t>(most.sequences * most.prompt))),
      host_streams_(host_.allocate_as<std::int32_t>(static_cast<std::size_t>(most.sequences))),
      host_drawn_{host_.allocate_as<std::int32_t>(static_cast<std::size_t>(most.sequences)),
                  host_.allocate_as<std::int32_t>(static_cast<std::size_t>(most.sequences))} {
  const ModelConfig& model = options.model;
  const Shape shape{most.sequences, most.tokens, model.num_query_groups, model.kv_channels};
  const auto bytes = static_cast<std::size_t>(shape.numel()) * size_of(model.params_dtype);
  for (std::int64_t layer = 0; layer < model.num_layers; ++layer) {
    for (std::vector<Tensor>* cache : {&keys_, &values_})
      cache->emplace_back(model_.pool().allocate(bytes, MemoryCategory::kOther, "KV cache"), model.params_dtype, shape);
  }
  if (device == DeviceType::kPlan) return;
  // The arena allocates its memory once.
  prefill_plan_ = plan(most, true);
  const ArenaPlan step = plan(most, false);
  model_.arena().use(step.peak_bytes > prefill_plan_.peak_bytes ? step : prefill_plan_);
  model_.arena().use(prefill_plan_);
}

Generator::~Generator() {
  try {
    compute().synchronize();  // the copy may read what precedes it
  } catch (const std::exception&) {
  }
}

InferenceBytes Generator::bytes(const Options& options, const Sizes& most, int ranks) {
  Timeline timeline;
  PlanCommunicator group("generate", {.rank = 0, .size = ranks});
  Generator recording(options, DeviceType::kPlan, most, &group, {.timeline = &timeline});
  InferenceBytes bytes = lasting_bytes(recording.model_.pool());
  for (const bool prefill : {true, false})
    bytes.arena = std::max(bytes.arena, recording.plan(most, prefill).peak_bytes);
  return bytes;
}

const Graph* Generator::graph(std::int64_t sequences) const {
  const auto batch = batches_.find(sequences);
  return batch == batches_.end() ? nullptr : batch->second.graph.get();
}

Generator::Batch& Generator::batch_of(std::int64_t sequences) {
  const auto [it, added] = batches_.try_emplace(sequences);
  Batch& batch = it->second;
  if (!added) return batch;
  for (std::size_t layer = 0; layer < keys_.size(); ++layer) {
    batch.cache.keys.push_back(keys_[layer].slice(0, 0, sequences));
    batch.cache.values.push_back(values_[layer].slice(0, 0, sequences));
  }
  batch.cache.start = &numbers_->start;
  if (!model_.is_plan()) batch.plan = plan({.sequences = sequences}, false);
  return batch;
}

ArenaPlan Generator::plan(const Sizes& sizes, bool prefill) const {
  Timeline timeline;
  Generator recording(options_, DeviceType::kPlan, most_, nullptr, {.timeline = &timeline});
  if (prefill) {
    recording.prefill(std::vector<std::int32_t>(static_cast<std::size_t>(sizes.sequences * sizes.prompt)), sizes, {});
  } else {
    recording.enqueue(sizes.sequences, 1, recording.drawn(sizes.sequences));
  }
  return plan_arena(timeline, recording.model_.arena());
}

void Generator::enqueue(std::int64_t sequences, std::int64_t length, const Tensor& tokens) {
  const Batch& batch = batch_of(sequences);
  const Tensor logits = model_.forward({.mode = Mode::kGenerate,
                                        .sequences = sequences,
                                        .seq_length = length,
                                        .tokens = tokens,
                                        .cache = &batch.cache})[0];
  const GenerateOptions& wanted = options_.generate;
  launch(model_.context(), Sample{.logits = logits,
                                  .vocab_size = options_.model.vocab_size,
                                  .temperature = wanted.top_k == 1 ? 1.0f : static_cast<float>(wanted.temperature),
                                  .top_k = static_cast<int>(wanted.top_k),
                                  .top_p = static_cast<float>(wanted.top_p),
                                  .seed = static_cast<std::uint64_t>(options_.train.seed),
                                  .position = &numbers_->position,
                                  .streams = streams_.slice(0, 0, sequences),
                                  .out = drawn(sequences),
                                  .workspace = {}});
  if (model_.shards() != nullptr) model_.shards()->agree(compute(), drawn(sequences));
  launch(compute(), NextPosition{.start = &numbers_->start, .position = &numbers_->position});
}

void Generator::prefill(std::span<const std::int32_t> prompts, const Sizes& sizes,
                        std::span<const std::int32_t> streams) {
  if (!model_.is_plan()) {  // nothing is in flight
    std::ranges::copy(prompts, host_prompts_);
    std::iota(host_streams_, host_streams_ + sizes.sequences, 0);
    std::ranges::copy(streams, host_streams_);
    *host_numbers_ = {.start = 0, .position = static_cast<std::int32_t>(sizes.prompt)};
  }
  model_.arena().begin_scope({});
  const Tensor tokens = model_.context().empty({sizes.sequences * sizes.prompt}, DType::kInt32, "tokens");
  copy_from_host(compute(), tokens.data, host_prompts_, tokens.bytes());
  copy_from_host(compute(), streams_.data, host_streams_, bytes_of(sizes.sequences));
  copy_from_host(compute(), &numbers_->start, &host_numbers_->start, sizeof(std::int32_t));
  copy_from_host(compute(), &numbers_->position, &host_numbers_->position, sizeof(std::int32_t));
  enqueue(sizes.sequences, sizes.prompt, tokens);
}

void Generator::step(std::int64_t sequences) {
  Batch& batch = batch_of(sequences);
  if (batch.graph != nullptr) return batch.graph->replay(compute());
  model_.arena().use(batch.plan);
  if (!batch.warm || model_.shards() != nullptr || options_.memory.cuda_graph_impl == CudaGraphImpl::kNone) {
    model_.arena().begin_scope({});
    enqueue(sequences, 1, drawn(sequences));
    batch.warm = true;
    return;
  }
  auto graph = std::make_unique<Graph>(fmt::format("decode step of {}", sequences));
  graph->begin_capture(compute());
  model_.arena().begin_scope({});
  enqueue(sequences, 1, drawn(sequences));
  graph->end_capture();
  batch.graph = std::move(graph);
  batch.graph->replay(compute());
}

void Generator::copy_drawn(std::int64_t sequences, std::int64_t turn) {
  copy_to_host(compute(), host_drawn_[turn % 2], drawn_.data, bytes_of(sequences));
  compute().record(read_[turn % 2]);
}

void Generator::generate(std::span<const std::int32_t> prompts, const Sizes& sizes, const Emit& emit,
                         std::span<const std::int32_t> streams) {
  const std::int64_t count = sizes.tokens - sizes.prompt;
  require(sizes.sequences > 0 && sizes.sequences <= most_.sequences && sizes.prompt > 0 &&
              sizes.prompt <= most_.prompt && count >= 0 && sizes.tokens <= most_.tokens &&
              std::ssize(prompts) == sizes.sequences * sizes.prompt &&
              (streams.empty() || std::ssize(streams) == sizes.sequences),
          "Generator::generate: prompts and new tokens do not fit");
  speed_ = {};
  if (count == 0) return;
  compute().synchronize();  // an earlier call may have left a step running when `emit` threw
  prefill_plan_ = plan(sizes, true);
  model_.arena().use(prefill_plan_);
  prefill(prompts, sizes, streams);
  copy_drawn(sizes.sequences, 0);
  std::chrono::steady_clock::time_point begun;
  for (std::int64_t i = 0; i < count; ++i) {
    if (i + 1 < count) {  // while the host waits for token i and shows it
      step(sizes.sequences);
      copy_drawn(sizes.sequences, i + 1);
    }
    compute().synchronize_host(read_[i % 2]);
    if (i + 1 == kUntimedTokens) begun = std::chrono::steady_clock::now();
    if (i >= kUntimedTokens) {
      speed_ = {.tokens = (i + 1 - kUntimedTokens) * sizes.sequences, .seconds = seconds_since(begun)};
    }
    if (!emit({host_drawn_[i % 2], static_cast<std::size_t>(sizes.sequences)})) break;
  }
  compute().synchronize();  // a step may be running
}

void check_memory(const Options& options, const Generator::Sizes& most, int ranks, std::size_t free) {
  check_memory([&](int number) { return Generator::bytes(options, most, number); }, ranks, free,
               options.generate.prompt_file.empty() ? "lower --num-samples or --max-new-tokens, or shorten the prompt"
                                                    : "lower --prompts-per-batch, --num-samples or --max-new-tokens");
}

}  // namespace megalith
