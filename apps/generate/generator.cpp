#include "apps/generate/generator.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "apps/config/memory_options.h"
#include "apps/config/own.h"
#include "apps/config/program_options.h"
#include "apps/config/training_options.h"
#include "core/base/counted.h"
#include "core/base/error.h"
#include "core/base/machine/host_memory.h"
#include "core/base/seconds_since.h"
#include "core/base/text/units.h"
#include "core/device/copy.h"
#include "core/instruments/timeline.h"
#include "core/model/config.h"
#include "core/ops/token/sampling.h"
#include "moe/moe_layer.h"
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
      pool_(device, device == DeviceType::kCpu ? available_bytes() : 0),
      compute_(device, "compute", instruments),
      arena_(pool_, device == DeviceType::kPlan ? Arena::Mode::kRecording : Arena::Mode::kPlanned),
      gpt_(build_gpt(options.model, {}, {.own = own_segments(options), .moe = moe_factory()})),
      ctx_{.compute = compute_, .arena = arena_, .planned_for = options.device},
      numbers_(static_cast<Numbers*>(pool_.allocate(sizeof(Numbers), MemoryCategory::kOther, "generation"))),
      drawn_(pool_.allocate(bytes_of(most.sequences), MemoryCategory::kOther, "generation"), DType::kInt32,
             {most.sequences}),
      host_(device, bytes_of(most.sequences * (most.prompt + 2)) + 4 * 256, "generation"),
      host_numbers_(host_.allocate_as<Numbers>(1)),
      host_prompts_(host_.allocate_as<std::int32_t>(static_cast<std::size_t>(most.sequences * most.prompt))),
      host_drawn_{host_.allocate_as<std::int32_t>(static_cast<std::size_t>(most.sequences)),
                  host_.allocate_as<std::int32_t>(static_cast<std::size_t>(most.sequences))} {
  const bool shares = ranks != nullptr && ranks->size() > 1;
  CudaStream* const cuda = compute_.cuda();
  if (cuda != nullptr && !shares) cuda->let_start_early();  // most kernels of a step are short
  const ModelConfig& model = options.model;
  if (shares) shard_units(gpt_, *ranks);
  gpt_.parameters->allocate(pool_, model.params_dtype, std::nullopt);
  if (shares) shards_ = std::make_unique<ShardedForward>(gpt_, *ranks, compute_, pool_, instruments);
  const Shape shape{most.sequences, most.tokens, model.num_query_groups, model.kv_channels};
  const auto bytes = static_cast<std::size_t>(shape.numel()) * size_of(model.params_dtype);
  for (std::int64_t layer = 0; layer < model.num_layers; ++layer) {
    for (std::vector<Tensor>* cache : {&keys_, &values_})
      cache->emplace_back(pool_.allocate(bytes, MemoryCategory::kOther, "KV cache"), model.params_dtype, shape);
  }
  std::vector<SegmentRunner::Entry> entries;
  for (const NamedSegment& named : gpt_.segments)
    entries.push_back(
        {.name = named.name, .segment = named.segment.get(), .module = named.module, .unit = named.layer_unit});
  runner_ = std::make_unique<SegmentRunner>(ctx_, std::move(entries));
  if (device == DeviceType::kPlan) return;
  // The arena allocates its memory once.
  prefill_plan_ = plan(most, true);
  const ArenaPlan step = plan(most, false);
  arena_.use(step.peak_bytes > prefill_plan_.peak_bytes ? step : prefill_plan_);
  arena_.use(prefill_plan_);
}

Generator::~Generator() {
  try {
    compute_.synchronize();  // the copy may read what precedes it
  } catch (const std::exception&) {
  }
}

Generator::Bytes Generator::bytes(const Options& options, const Sizes& most, int ranks) {
  Timeline timeline;
  PlanCommunicator group("generate", {.rank = 0, .size = ranks});
  Generator recording(options, DeviceType::kPlan, most, &group, {.timeline = &timeline});
  const std::size_t weights =
      recording.pool_.allocated_by_category()[static_cast<std::size_t>(MemoryCategory::kParameters)];
  Bytes bytes{.weights = weights, .kv_cache = recording.pool_.allocated_bytes() - weights};
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
  if (pool_.device() != DeviceType::kPlan) batch.plan = plan({.sequences = sequences}, false);
  return batch;
}

ArenaPlan Generator::plan(const Sizes& sizes, bool prefill) const {
  Timeline timeline;
  Generator recording(options_, DeviceType::kPlan, most_, nullptr, {.timeline = &timeline});
  if (prefill) {
    recording.prefill(std::vector<std::int32_t>(static_cast<std::size_t>(sizes.sequences * sizes.prompt)), sizes);
  } else {
    recording.enqueue(sizes.sequences, 1, recording.drawn(sizes.sequences));
  }
  return plan_arena(timeline, recording.arena_);
}

void Generator::enqueue(std::int64_t sequences, std::int64_t length, const Tensor& tokens) {
  const Batch& batch = batch_of(sequences);
  runner_->begin(
      0,
      {.mode = Mode::kGenerate, .sequences = sequences, .seq_length = length, .tokens = tokens, .cache = &batch.cache});
  if (shards_) {
    shards_->forward(*runner_);
  } else {
    for (int s = 0; s < runner_->num_segments(); ++s) runner_->run({.kind = ActionKind::kForward, .segment = s});
  }
  const GenerateOptions& wanted = options_.generate;
  launch(ctx_, Sample{.logits = runner_->outputs(0)[0],
                      .vocab_size = options_.model.vocab_size,
                      .temperature = wanted.top_k == 1 ? 1.0f : static_cast<float>(wanted.temperature),
                      .top_k = static_cast<int>(wanted.top_k),
                      .top_p = static_cast<float>(wanted.top_p),
                      .seed = static_cast<std::uint64_t>(options_.train.seed),
                      .position = &numbers_->position,
                      .out = drawn(sequences),
                      .workspace = {}});
  if (shards_) shards_->agree(compute_, drawn(sequences));
  launch(compute_, NextPosition{.start = &numbers_->start, .position = &numbers_->position});
}

void Generator::prefill(std::span<const std::int32_t> prompts, const Sizes& sizes) {
  if (pool_.device() != DeviceType::kPlan) {  // nothing is in flight
    std::ranges::copy(prompts, host_prompts_);
    *host_numbers_ = {.start = 0, .position = static_cast<std::int32_t>(sizes.prompt)};
  }
  arena_.begin_scope({});
  const Tensor tokens = ctx_.empty({sizes.sequences * sizes.prompt}, DType::kInt32, "tokens");
  copy_from_host(compute_, tokens.data, host_prompts_, tokens.bytes());
  copy_from_host(compute_, &numbers_->start, &host_numbers_->start, sizeof(std::int32_t));
  copy_from_host(compute_, &numbers_->position, &host_numbers_->position, sizeof(std::int32_t));
  enqueue(sizes.sequences, sizes.prompt, tokens);
}

void Generator::step(std::int64_t sequences) {
  Batch& batch = batch_of(sequences);
  if (batch.graph != nullptr) return batch.graph->replay(compute_);
  arena_.use(batch.plan);
  if (!batch.warm || shards_ || options_.memory.cuda_graph_impl == CudaGraphImpl::kNone) {
    arena_.begin_scope({});
    enqueue(sequences, 1, drawn(sequences));
    batch.warm = true;
    return;
  }
  auto graph = std::make_unique<Graph>(fmt::format("decode step of {}", sequences));
  graph->begin_capture(compute_);
  arena_.begin_scope({});
  enqueue(sequences, 1, drawn(sequences));
  graph->end_capture();
  batch.graph = std::move(graph);
  batch.graph->replay(compute_);
}

void Generator::copy_drawn(std::int64_t sequences, std::int64_t turn) {
  copy_to_host(compute_, host_drawn_[turn % 2], drawn_.data, bytes_of(sequences));
  compute_.record(read_[turn % 2]);
}

void Generator::generate(std::span<const std::int32_t> prompts, const Sizes& sizes, const Emit& emit) {
  const std::int64_t count = sizes.tokens - sizes.prompt;
  require(sizes.sequences > 0 && sizes.sequences <= most_.sequences && sizes.prompt > 0 &&
              sizes.prompt <= most_.prompt && count >= 0 && sizes.tokens <= most_.tokens &&
              static_cast<std::int64_t>(prompts.size()) == sizes.sequences * sizes.prompt,
          "Generator::generate: prompts and new tokens do not fit");
  speed_ = {};
  if (count == 0) return;
  compute_.synchronize();  // an earlier call may have left a step running when `emit` threw
  prefill_plan_ = plan(sizes, true);
  arena_.use(prefill_plan_);
  prefill(prompts, sizes);
  copy_drawn(sizes.sequences, 0);
  std::chrono::steady_clock::time_point begun;
  for (std::int64_t i = 0; i < count; ++i) {
    if (i + 1 < count) {  // while the host waits for token i and shows it
      step(sizes.sequences);
      copy_drawn(sizes.sequences, i + 1);
    }
    compute_.synchronize_host(read_[i % 2]);
    if (i + 1 == kUntimedTokens) begun = std::chrono::steady_clock::now();
    if (i >= kUntimedTokens) {
      speed_ = {.tokens = (i + 1 - kUntimedTokens) * sizes.sequences, .seconds = seconds_since(begun)};
    }
    if (!emit({host_drawn_[i % 2], static_cast<std::size_t>(sizes.sequences)})) break;
  }
  compute_.synchronize();  // a step may be running
}

void check_memory(const Options& options, const Generator::Sizes& most, int ranks, std::size_t free) {
  const Generator::Bytes bytes = Generator::bytes(options, most, ranks);
  if (free == 0 || bytes.total() <= free) return;
  constexpr int kMostRanks = 256;
  int enough = 2 * ranks;
  while (enough <= kMostRanks && Generator::bytes(options, most, enough).total() > free) enough *= 2;
  fail({.code = ExitCode::kOutOfMemory,
        .subject = fmt::format("generate on {}", counted(ranks, "rank")),
        .expected =
            fmt::format("{:.2f} GiB on each: {:.2f} GiB of weights, {:.2f} GiB of KV cache, {:.2f} GiB for a step",
                        gib(bytes.total()), gib(bytes.weights), gib(bytes.kv_cache), gib(bytes.arena)),
        .got = fmt::format("{:.2f} GiB free", gib(free)),
        .remedy = enough <= kMostRanks
                      ? fmt::format("shard the weights over more ranks: mpirun -np {} generate ...", enough)
                      : "lower --num-samples or --max-new-tokens, or shorten the prompt",
        .show_place = false});
}

}  // namespace megalith
