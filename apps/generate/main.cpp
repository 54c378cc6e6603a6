// generate: continues a prompt with a checkpoint of train. Under mpirun its ranks shard the weights.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "apps/checkpoint/run_tokenizer.h"
#include "apps/checkpoint/training_checkpoint.h"
#include "apps/config/checkpoint_options.h"
#include "apps/config/data_options.h"
#include "apps/config/memory_options.h"
#include "apps/config/parallel_options.h"
#include "apps/config/program_options.h"
#include "apps/config/training_options.h"
#include "apps/flags/complete_options.h"
#include "apps/flags/flags.h"
#include "apps/generate/generator.h"
#include "apps/run/own_model.h"
#include "apps/run/ranks_program.h"
#include "core/base/counted.h"
#include "core/base/files/standard_files.h"
#include "core/base/log.h"
#include "core/base/machine/cpu_check.h"
#include "core/base/machine/host_memory.h"
#include "core/base/machine/launch.h"
#include "core/base/machine/program.h"
#include "core/base/text/utf8.h"
#include "core/device/cuda_device.h"
#include "core/device/cuda_memory.h"
#include "core/model/config.h"
#include "parallel/comm/mpi/mpi_runtime.h"
#include "parallel/comm/nccl/nccl_communicator.h"
#include "parallel/comm/on_all_ranks.h"
#include "parallel/comm/single_communicator.h"

namespace megalith {

namespace {

// Options with the model of the checkpoint and the sampling of the command line.
Options merge(const Options& command_line, const LoadedCheckpoint& checkpoint) {
  Options options = options_from_config(App::kPlan, checkpoint.state().config, own_options());
  options.parallel = {};  // one rank, for any layout of the checkpoint
  options.train.global_batch_size = 0;
  options.train.rampup_batch_size.clear();
  options.generate = command_line.generate;
  options.train.seed = command_line.train.seed;
  options.device = command_line.device;
  options.memory.cuda_graph_impl =
      command_line.is_default("cuda-graph-impl") ? CudaGraphImpl::kLocal : command_line.memory.cuda_graph_impl;
  take_copied_files(options.data, checkpoint);
  // Files without a copy may have moved.
  for (std::string DataOptions::*file :
       {&DataOptions::vocab_file, &DataOptions::merge_file, &DataOptions::tokenizer_model}) {
    if (!(command_line.data.*file).empty()) options.data.*file = command_line.data.*file;
  }
  if (options.generate.temperature == 0) options.generate.top_k = 1;
  return options;
}

// Tokenizer of the checkpoint. Other files give other ids even for a tokenizer of equal kind and size.
Tokenizer tokenizer_of_checkpoint(const Options& options, const LoadedCheckpoint& checkpoint) {
  Tokenizer tokenizer = run_tokenizer(options, &checkpoint).tokenizer;
  if (tokenizer.identity() == checkpoint.state().tokenizer) return tokenizer;
  refuse_usage("tokenizer of checkpoint " + checkpoint.path(),
               {.expected = checkpoint.state().tokenizer,
                .got = tokenizer.identity(),
                .remedy = "give the tokenizer files of its training, as the files have changed"});
}

// Number of tokens after a prompt of a given length: --max-new-tokens; by default up to the last position.
std::int64_t new_tokens(const Options& options, const Options& command_line, std::int64_t prompt) {
  const ModelConfig& model = options.model;
  const std::int64_t wanted = options.generate.max_new_tokens;
  if (model.position_embedding_type != PositionEmbedding::kLearnedAbsolute) return wanted;
  const std::int64_t most = model.max_position_embeddings - prompt;
  if (wanted <= most) return wanted;
  if (most > 0 && command_line.is_default("max-new-tokens")) return most;
  refuse_usage(most > 0 ? "--max-new-tokens" : "--prompt",
               {.expected = fmt::format("at most {}: the model has {}{}",
                                        counted(most > 0 ? most : model.max_position_embeddings - 1, "token"),
                                        counted(model.max_position_embeddings, "learned position"),
                                        most > 0 ? fmt::format(" and the prompt has {}", prompt) : ""),
                .got = std::to_string(most > 0 ? wanted : prompt),
                .remedy = most > 0 ? "lower it" : "shorten it"});
}

// Printer of continuations: the first token by token, the others after it. Text after the end of a document is left
// out.
class Continuations {
 public:
  // One of several ranks prints the tokens that all ranks sample.
  Continuations(const Options& options, const Tokenizer& tokenizer, bool shows)
      : shows_(shows),
        prompt_(options.generate.prompt),
        before_(options.data.tokenizer_type == TokenizerType::kNull ? " " : ""),
        tokenizer_(tokenizer),
        texts_(static_cast<std::size_t>(options.generate.num_samples)) {
    if (shows_) std::fputs(prompt_.c_str(), stdout);
  }

  bool add(std::span<const std::int32_t> drawn) {
    bool continues = false;
    for (std::size_t i = 0; i < texts_.size(); ++i) {
      Text& text = texts_[i];
      text.ended = text.ended || drawn[i] == tokenizer_.eod();
      if (text.ended) continue;
      continues = true;
      text.waiting += before_ + text.stream.push(tokenizer_.decode(drawn.subspan(i, 1)));
    }
    show(texts_.front());
    return continues;
  }

  void finish() {
    for (Text& text : texts_) {
      if (shows_ && &text != &texts_.front()) std::fputs(prompt_.c_str(), stdout);
      text.waiting += text.stream.flush() + "\n";
      show(text);
    }
  }

 private:
  struct Text {
    Utf8Stream stream;
    std::string waiting;  // text to be printed
    bool ended = false;
  };

  void show(Text& text) {
    if (shows_) {
      std::fwrite(text.waiting.data(), 1, text.waiting.size(), stdout);
      std::fflush(stdout);
    }
    text.waiting.clear();
  }

  const bool shows_;
  const std::string prompt_, before_;
  const Tokenizer& tokenizer_;
  std::vector<Text> texts_;
};

std::string speed_line(const Generator::Speed& speed) {
  if (speed.tokens == 0) return "too few tokens to measure the speed";
  return fmt::format("{} in {:.3f} s: {:.1f} tokens/s", counted(speed.tokens, "token"), speed.seconds,
                     static_cast<double>(speed.tokens) / speed.seconds);
}

// Request of the flags and the checkpoint.
struct Request {
  Options options;
  std::optional<LoadedCheckpoint> checkpoint;
  std::optional<Tokenizer> tokenizer;
  std::vector<std::int32_t> prompt;
  std::int64_t new_tokens = 0;

  Generator::Sizes sizes() const {
    const auto length = static_cast<std::int64_t>(prompt.size());
    return {.sequences = options.generate.num_samples, .prompt = length, .tokens = length + new_tokens};
  }
};

Request read_request(const Options& command_line, Communicator& world) {
  Request request;
  request.checkpoint = find_wanted(command_line.checkpoint, world.size() > 1 ? &world : nullptr);
  on_all_ranks(world, [&] {
    if (!request.checkpoint)
      refuse_no_checkpoint(command_line.checkpoint.load, "give the folder that train --save wrote");
    request.options = merge(command_line, *request.checkpoint);
    Options& options = request.options;
    request.tokenizer = tokenizer_of_checkpoint(options, *request.checkpoint);
    complete_options(options, *request.tokenizer, 1);
    request.tokenizer->encode(options.generate.prompt, request.prompt);
    // EOD precedes the first word of a document.
    if (request.prompt.empty()) request.prompt.push_back(request.tokenizer->eod());
    request.new_tokens = new_tokens(options, command_line, std::ssize(request.prompt));
  });
  return request;
}

// Runs one rank. For a single process `mpi` is null and `world` has one rank.
ExitCode generate(int argc, char** argv, Communicator& world, MpiRuntime* mpi) {
  const bool shows = world.rank() == 0;
  Parsed parsed;
  on_all_ranks(world, [&] {
    parsed = parse_flags(App::kGenerate, std::vector<std::string>(argv + std::min(argc, 1), argv + argc), world.rank());
  });
  if (!parsed.print.empty()) {
    if (shows) std::fputs(parsed.print.c_str(), stdout);
    return ExitCode::kOk;
  }
  Request request = read_request(parsed.options, world);
  const Options& options = request.options;
  if (shows && options.memory.cuda_graph_impl == CudaGraphImpl::kTransformerEngine)
    log_info("--cuda-graph-impl transformer_engine means local here");
  const Generator::Sizes sizes = request.sizes();
  const bool cuda = options.device == DeviceType::kCuda;
  const int neighbours = mpi == nullptr ? 1 : mpi->local_size();
  const int on_gpu = mpi == nullptr ? 1 : mpi->max_on_gpu();
  on_all_ranks(world, [&] {
    if (cuda && mpi != nullptr) select_cuda_device(mpi->gpu());
    check_memory(options, sizes, world.size(),
                 share_of_rank(cuda ? cuda_memory().free : available_bytes(),
                               static_cast<std::size_t>(cuda ? on_gpu : neighbours)));
  });
  std::unique_ptr<Communicator> gpus;
  if (mpi != nullptr) {
    mpi->watch({});
    if (cuda) gpus = gpu_world(*mpi);
  }
  Communicator& ranks = gpus ? *gpus : world;
  Generator generator(options, options.device, sizes, &ranks);
  const AbortOnUnwind guard(ranks);  // its streams may wait for peers
  load_tensors({.parameters = generator.parameters(), .stream = generator.compute()}, *request.checkpoint,
               LoadScope::kWeights);
  std::vector<std::int32_t> prompts;
  for (std::int64_t i = 0; i < sizes.sequences; ++i)
    prompts.insert(prompts.end(), request.prompt.begin(), request.prompt.end());
  Continuations shown(options, *request.tokenizer, shows);
  generator.generate(prompts, sizes, [&](std::span<const std::int32_t> drawn) { return shown.add(drawn); });
  shown.finish();
  if (options.generate.print_speed && shows) log_info(speed_line(generator.speed()));
  return ExitCode::kOk;
}

int generate_alone(int argc, char** argv) {
  return run_program("generate", [&] {
    SingleCommunicator world("generate");
    return generate(argc, argv, world, nullptr);
  });
}

int generate_together(int argc, char** argv, const Launch& launch) {
  guard_standard_files();
  set_mpi_environment();
  const std::string label = fmt::format("rank {}/{}", launch.rank, launch.ranks);
  std::unique_ptr<MpiRuntime> mpi;
  return run_ranks("generate", label, mpi, [&] {
    mpi = std::make_unique<MpiRuntime>(argc, argv);
    const std::unique_ptr<Communicator> world = mpi->world();
    if (world->size() == 1) {
      refuse_usage(launch.sign,
                   {.expected = fmt::format("a world of {} ranks in MPI", launch.ranks),
                    .got = "a world of 1 rank",
                    .remedy = fmt::format("start the ranks by mpirun -np {} of the Open MPI that generate was built "
                                          "with, or one process without a launcher",
                                          launch.ranks)});
    }
    const ExitCode code = generate(argc, argv, *world, mpi.get());
    check_standard_output();
    return code;
  });
}

}  // namespace

}  // namespace megalith

int main(int argc, char** argv) {
  using namespace megalith;
  require_cpu_baseline();
  const Launch launch = launch_of(LaunchSigns::kCertain);
  return launch.ranks == 1 ? generate_alone(argc, argv) : generate_together(argc, argv, launch);
}
