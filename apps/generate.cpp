// generate: continues a prompt with a checkpoint of train.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "apps/flags.h"
#include "apps/host_memory.h"
#include "apps/program.h"
#include "apps/run_setup.h"
#include "apps/run_tokenizer.h"
#include "apps/training_checkpoint.h"
#include "core/base/counted.h"
#include "core/base/cpu_check.h"
#include "core/base/utf8.h"
#include "core/device/arena.h"
#include "core/device/copy.h"
#include "core/device/host_arena.h"
#include "core/device/memory_pool.h"
#include "core/device/stream.h"
#include "core/device/timeline.h"
#include "core/model/gpt.h"
#include "core/ops/sampling.h"
#include "parallel/pipeline_parallel/segment_runner.h"

namespace megalith {

namespace {

// With a KV cache: one prefill of the prompt, then one token a step, on the same segments as training.
class Generator {
 public:
  // `options.model` is resolved, vocabulary included. Room for `max_tokens` positions, prompt included.
  Generator(const Options& options, DeviceType device, std::int64_t max_tokens, Instruments instruments = {});

  ParameterStore& parameters() { return *gpt_.parameters; }
  Stream& compute() { return compute_; }

  // Continues `prompt` (at least one token) by up to `count` tokens; `emit` gets each and says whether to go on.
  void generate(std::span<const std::int32_t> prompt, std::int64_t count,
                const std::function<bool(std::int32_t)>& emit);

 private:
  // Runs `tokens` at positions start.. and draws the token that follows them.
  void step(std::span<const std::int32_t> tokens, std::int64_t start);
  std::int32_t drawn();
  ArenaPlan plan(std::int64_t tokens) const;

  const Options& options_;
  std::int64_t max_tokens_;
  MemoryPool pool_;
  Stream compute_;
  Arena arena_;
  GptModel gpt_;
  KvCache cache_;
  const Context ctx_;
  std::unique_ptr<SegmentRunner> runner_;
  // What the stream copies from and to.
  struct Numbers {
    std::int32_t start;     // position of the step's first token
    std::int32_t position;  // of the token to be drawn
    std::int32_t next;      // the token drawn
  };
  Numbers* numbers_;  // device
  HostArena host_;
  Numbers* host_numbers_;
  std::int32_t* host_tokens_;  // [max_tokens]
};

Generator::Generator(const Options& options, DeviceType device, std::int64_t max_tokens, Instruments instruments)
    : options_(options),
      max_tokens_(max_tokens),
      pool_(device, device == DeviceType::kCpu ? available_bytes() : 0),
      compute_(device, "compute", instruments),
      arena_(pool_, device == DeviceType::kPlan ? Arena::Mode::kRecording : Arena::Mode::kPlanned),
      gpt_(build_gpt(options.model, {}, default_factories())),
      ctx_{.compute = compute_, .arena = arena_, .planned_for = options.train.device},
      numbers_(static_cast<Numbers*>(pool_.allocate(sizeof(Numbers), MemoryCategory::kOther, "generation"))),
      host_(device, static_cast<std::size_t>(max_tokens) * sizeof(std::int32_t) + 2 * 256, "generation"),
      host_numbers_(host_.allocate_as<Numbers>(1)),
      host_tokens_(host_.allocate_as<std::int32_t>(static_cast<std::size_t>(max_tokens))) {
  const ModelConfig& model = options.model;
  gpt_.parameters->allocate(pool_, model.params_dtype);
  const Shape cache_shape{1, max_tokens, model.num_query_groups, model.kv_channels};
  const auto bytes = static_cast<std::size_t>(cache_shape.numel()) * size_of(model.params_dtype);
  for (std::int64_t layer = 0; layer < model.num_layers; ++layer) {
    for (std::vector<Tensor>* cache : {&cache_.keys, &cache_.values}) {
      void* memory = pool_.allocate(bytes, MemoryCategory::kOther, "KV cache");
      cache->emplace_back(memory, model.params_dtype, cache_shape);
    }
  }
  cache_.start = &numbers_->start;
  std::vector<SegmentRunner::Entry> entries;
  for (const NamedSegment& named : gpt_.segments)
    entries.push_back({.name = named.name, .segment = named.segment.get()});
  runner_ = std::make_unique<SegmentRunner>(ctx_, std::move(entries));
}

ArenaPlan Generator::plan(std::int64_t tokens) const {
  Timeline timeline;
  Generator recording(options_, DeviceType::kPlan, max_tokens_, {.timeline = &timeline});
  recording.step(std::vector<std::int32_t>(static_cast<std::size_t>(tokens)), 0);
  return plan_arena(timeline, recording.arena_);
}

void Generator::step(std::span<const std::int32_t> tokens, std::int64_t start) {
  const auto count = static_cast<std::int64_t>(tokens.size());
  if (pool_.device() != DeviceType::kPlan) {  // nothing is in flight: the last token was waited for
    std::ranges::copy(tokens, host_tokens_);
    host_numbers_->start = static_cast<std::int32_t>(start);
    host_numbers_->position = static_cast<std::int32_t>(start + count);
  }
  arena_.begin_scope({});
  const Microbatch microbatch{.mode = Mode::kGenerate,
                              .sequences = 1,
                              .seq_length = count,
                              .tokens = ctx_.empty({count}, DType::kInt32, "tokens"),
                              .cache = &cache_};
  copy_from_host(compute_, microbatch.tokens.data, host_tokens_, microbatch.tokens.bytes());
  copy_from_host(compute_, &numbers_->start, &host_numbers_->start, sizeof(std::int32_t));
  copy_from_host(compute_, &numbers_->position, &host_numbers_->position, sizeof(std::int32_t));
  runner_->begin(0, microbatch);
  for (int s = 0; s < runner_->num_segments(); ++s) runner_->run({.kind = ActionKind::kForward, .segment = s});
  Sample sample{.logits = runner_->outputs(0)[0],
                .vocab_size = options_.model.vocab_size,
                .temperature = options_.generate.top_k == 1 ? 1.0f : static_cast<float>(options_.generate.temperature),
                .top_k = static_cast<int>(options_.generate.top_k),
                .top_p = static_cast<float>(options_.generate.top_p),
                .seed = static_cast<std::uint64_t>(options_.train.seed),
                .position = &numbers_->position,
                .out = Tensor(&numbers_->next, DType::kInt32, {1}),
                .workspace = {}};
  launch(ctx_, sample);
}

std::int32_t Generator::drawn() {
  copy_to_host(compute_, &host_numbers_->next, &numbers_->next, sizeof(std::int32_t));
  compute_.synchronize();
  return host_numbers_->next;
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

// The model as the checkpoint describes it; sampling as the command line says.
Options merge(const Options& command_line, const LoadedCheckpoint& checkpoint) {
  Options options = options_from_config(App::kPlan, checkpoint.state().config);
  options.parallel = {};  // one rank, whatever the layout was
  options.train.global_batch_size = 0;
  options.generate = command_line.generate;
  options.train.seed = command_line.train.seed;
  options.train.device = command_line.train.device;
  take_copied_files(options.data, checkpoint);
  // What has no copy may have moved since.
  for (std::string DataOptions::*file :
       {&DataOptions::vocab_file, &DataOptions::merge_file, &DataOptions::tokenizer_model}) {
    if (!(command_line.data.*file).empty()) options.data.*file = command_line.data.*file;
  }
  if (options.generate.temperature == 0) options.generate.top_k = 1;
  return options;
}

// Also where a tokenizer's size and kind are the same, other files give other ids.
Tokenizer tokenizer_of_checkpoint(const Options& options, const LoadedCheckpoint& checkpoint) {
  Tokenizer tokenizer = run_tokenizer(options, &checkpoint).tokenizer;
  if (tokenizer.identity() == checkpoint.state().tokenizer) return tokenizer;
  refuse_usage("tokenizer of checkpoint " + checkpoint.path(), checkpoint.state().tokenizer, tokenizer.identity(),
               "the tokenizer's files have changed; name the ones it was trained with");
}

// How many tokens to add to a prompt of so many: as --max-new-tokens says; its default ends where the positions do.
std::int64_t new_tokens(const Options& options, const Options& command_line, std::int64_t prompt) {
  const ModelConfig& model = options.model;
  const std::int64_t wanted = options.generate.max_new_tokens;
  if (model.position_embedding_type != PositionEmbedding::kLearnedAbsolute) return wanted;
  const std::int64_t most = model.max_position_embeddings - prompt;
  const auto flag = std::find_if(command_line.effective.begin(), command_line.effective.end(),
                                 [](const ConfigEntry& entry) { return entry.name == "max-new-tokens"; });
  if (wanted <= most) return wanted;
  if (most > 0 && flag->origin == "default") return most;
  refuse_usage(most > 0 ? "--max-new-tokens" : "--prompt",
               fmt::format("at most {}: the model has {}{}",
                           counted(most > 0 ? most : model.max_position_embeddings - 1, "token"),
                           counted(model.max_position_embeddings, "learned position"),
                           most > 0 ? fmt::format(" and the prompt takes {}", prompt) : ""),
               std::to_string(most > 0 ? wanted : prompt), most > 0 ? "lower it" : "shorten it");
}

ExitCode generate(int argc, char** argv) {
  const Options command_line = parse_options(App::kGenerate, argc, argv);
  LoadedCheckpoint checkpoint = load_wanted(command_line.checkpoint);
  Options options = merge(command_line, checkpoint);
  const Tokenizer tokenizer = tokenizer_of_checkpoint(options, checkpoint);
  complete_options(options, tokenizer, 1);
  std::vector<std::int32_t> tokens;
  tokenizer.encode(options.generate.prompt, tokens);
  if (tokens.empty()) tokens.push_back(tokenizer.eod());  // what stands before the first word of a document

  const auto prompt = static_cast<std::int64_t>(tokens.size());
  const std::int64_t count = new_tokens(options, command_line, prompt);
  Generator generator(options, options.train.device, prompt + count);
  load_tensors({.parameters = generator.parameters(), .stream = generator.compute()}, checkpoint, LoadScope::kWeights);
  std::fputs(options.generate.prompt.c_str(), stdout);
  const std::string_view before = options.data.tokenizer_type == TokenizerType::kNull ? " " : "";
  Utf8Stream shown;
  generator.generate(tokens, count, [&](std::int32_t token) {
    if (token == tokenizer.eod()) return false;
    fmt::print("{}{}", before, shown.push(tokenizer.decode(std::span(&token, 1))));
    std::fflush(stdout);
    return true;
  });
  fmt::print("{}\n", shown.flush());
  return ExitCode::kOk;
}

}  // namespace

}  // namespace megalith

int main(int argc, char** argv) {
  megalith::require_cpu_baseline();
  return megalith::run_program("generate", [&] { return megalith::generate(argc, argv); });
}
