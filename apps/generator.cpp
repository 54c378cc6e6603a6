#include "apps/generator.h"

#include <algorithm>

#include "apps/host_memory.h"
#include "core/device/copy.h"
#include "core/device/host_arena.h"
#include "core/device/timeline.h"
#include "core/ops/sampling.h"

namespace megalith {

// Host memory that the stream copies from and to.
struct Generator::HostBuffers {
  HostBuffers(DeviceType device, std::int64_t max_tokens)
      : arena(device, static_cast<std::size_t>(max_tokens) * sizeof(std::int32_t) + 4 * 256, "generation"),
        tokens(arena.allocate_as<std::int32_t>(static_cast<std::size_t>(max_tokens))),
        start(arena.allocate_as<std::int32_t>(1)),
        position(arena.allocate_as<std::int32_t>(1)),
        next(arena.allocate_as<std::int32_t>(1)) {}

  HostArena arena;
  std::int32_t* tokens;
  std::int32_t* start;
  std::int32_t* position;
  std::int32_t* next;
};

Generator::Generator(const Options& options, DeviceType device, std::int64_t max_tokens, Instruments instruments)
    : options_(options),
      max_tokens_(max_tokens),
      pool_(device, device == DeviceType::kCpu ? available_bytes() : 0),
      compute_(device, "compute", instruments),
      arena_(pool_, device == DeviceType::kPlan ? Arena::Mode::kRecording : Arena::Mode::kPlanned),
      gpt_(build_gpt(options.model)),
      ctx_{.compute = compute_, .arena = arena_, .planned_for = options.train.device},
      host_(std::make_unique<HostBuffers>(device, max_tokens)) {
  const ModelConfig& model = options.model;
  gpt_.parameters->allocate(pool_, model.params_dtype);
  const Shape cache_shape{1, max_tokens, model.num_query_groups, model.kv_channels};
  const auto bytes = static_cast<std::size_t>(cache_shape.numel()) * size_of(model.params_dtype);
  for (std::int64_t layer = 0; layer < model.num_layers; ++layer) {
    cache_.keys.emplace_back(pool_.allocate(bytes, MemoryCategory::kOther, "KV cache"), model.params_dtype,
                             cache_shape);
    cache_.values.emplace_back(pool_.allocate(bytes, MemoryCategory::kOther, "KV cache"), model.params_dtype,
                               cache_shape);
  }
  const auto one = [this](std::string_view owner) {
    return static_cast<std::int32_t*>(pool_.allocate(sizeof(std::int32_t), MemoryCategory::kOther, owner));
  };
  start_ = one("start");
  position_ = one("position");
  next_ = Tensor(one("next token"), DType::kInt32, {1});
  cache_.start = start_;
  std::vector<SegmentRunner::Entry> entries;
  for (const NamedSegment& named : gpt_.segments)
    entries.push_back({.name = named.name, .segment = named.segment.get()});
  runner_ = std::make_unique<SegmentRunner>(ctx_, std::move(entries));
}

Generator::~Generator() = default;

ArenaPlan Generator::plan(std::int64_t tokens) const {
  Timeline timeline;
  Generator recording(options_, DeviceType::kPlan, max_tokens_, {.timeline = &timeline});
  recording.step(std::vector<std::int32_t>(static_cast<std::size_t>(tokens)), 0);
  return plan_arena(timeline, recording.arena_);
}

void Generator::step(std::span<const std::int32_t> tokens, std::int64_t start) {
  const auto count = static_cast<std::int64_t>(tokens.size());
  if (pool_.device() != DeviceType::kPlan) {  // nothing is in flight: the last token was waited for
    std::copy(tokens.begin(), tokens.end(), host_->tokens);
    *host_->start = static_cast<std::int32_t>(start);
    *host_->position = static_cast<std::int32_t>(start + count);
  }
  arena_.begin_scope({});
  const Microbatch microbatch{.mode = Mode::kGenerate,
                              .sequences = 1,
                              .seq_length = count,
                              .tokens = ctx_.empty({count}, DType::kInt32, "tokens"),
                              .cache = &cache_};
  copy_from_host(compute_, microbatch.tokens.data, host_->tokens, microbatch.tokens.bytes());
  copy_from_host(compute_, start_, host_->start, sizeof(std::int32_t));
  copy_from_host(compute_, position_, host_->position, sizeof(std::int32_t));
  runner_->begin(0, microbatch);
  for (int s = 0; s < runner_->num_segments(); ++s) runner_->run({.kind = ActionKind::kForward, .segment = s});
  Sample sample{.logits = runner_->outputs(0)[0],
                .vocab_size = options_.model.vocab_size,
                .temperature = options_.generate.top_k == 1 ? 1.0f : static_cast<float>(options_.generate.temperature),
                .top_k = static_cast<int>(options_.generate.top_k),
                .top_p = static_cast<float>(options_.generate.top_p),
                .seed = static_cast<std::uint64_t>(options_.train.seed),
                .position = position_,
                .out = next_,
                .workspace = {}};
  launch(ctx_, sample);
}

std::int32_t Generator::drawn() {
  copy_to_host(compute_, host_->next, next_.data, sizeof(std::int32_t));
  compute_.synchronize();
  return *host_->next;
}

void Generator::generate(std::span<const std::int32_t> prompt, std::int64_t count,
                         const std::function<bool(std::int32_t)>& emit) {
  const auto length = static_cast<std::int64_t>(prompt.size());
  require(length > 0 && length + count <= max_tokens_, "Generator::generate: prompt and new tokens do not fit");
  if (count == 0) return;
  const ArenaPlan prefill = plan(length);
  const ArenaPlan decode = plan(1);
  arena_.use(prefill.peak_bytes > decode.peak_bytes ? prefill : decode);
  arena_.use(prefill);
  step(prompt, 0);
  arena_.use(decode);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int32_t token = drawn();
    if (!emit(token) || i + 1 == count) return;
    step(std::span(&token, 1), length + i);
  }
}

}  // namespace megalith
