#include "apps/generate/session.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/checkpoint/run_tokenizer.h"
#include "apps/checkpoint/training_checkpoint.h"
#include "apps/config/checkpoint_options.h"
#include "apps/config/data_options.h"
#include "apps/config/memory_options.h"
#include "apps/config/parallel_options.h"
#include "apps/config/program_options.h"
#include "apps/config/training_options.h"
#include "apps/flags/complete_options.h"
#include "apps/generate/inference_model.h"
#include "apps/run/own_model.h"
#include "core/base/counted.h"
#include "core/base/error.h"
#include "core/base/files/file.h"
#include "core/base/log.h"
#include "core/base/machine/host_memory.h"
#include "core/device/cuda_device.h"
#include "core/device/cuda_memory.h"
#include "parallel/checkpoint/model_state.h"
#include "parallel/comm/nccl/nccl_communicator.h"

namespace megalith {

namespace {

// Options with the model of the checkpoint and the sampling of the command line.
Options merge(const Options& command_line, const LoadedCheckpoint& checkpoint) {
  Options options = options_from_config(App::kPlan, checkpoint.state().config, own_options());
  options.parallel = {};  // one rank, for any layout of the checkpoint
  options.train.global_batch_size = 0;
  options.train.rampup_batch_size.clear();
  options.train.batch_stages.clear();
  options.generate = command_line.generate;
  options.prepare.chat_template = command_line.prepare.chat_template;
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

}  // namespace

Session::Session(App app, const std::vector<std::string>& arguments, Communicator& world, MpiRuntime* mpi)
    : world_(world), mpi_(mpi) {
  together([&] {
    Parsed parsed = parse_flags(app, arguments, world.rank());
    print_ = std::move(parsed.print);
    command_line_ = std::move(parsed.options);
  });
  if (print_.empty()) read_checkpoint();
}

void Session::read_checkpoint() {
  checkpoint_ = find_wanted(command_line_.checkpoint, world_.size() > 1 ? &world_ : nullptr);
  together([&] {
    if (!checkpoint_) refuse_no_checkpoint(command_line_.checkpoint.load, "give the folder that train --save wrote");
    options_ = merge(command_line_, *checkpoint_);
    tokenizer_ = tokenizer_of_checkpoint(options_, *checkpoint_);
    complete_options(options_, *tokenizer_, 1);
  });
  if (shows() && options_.memory.cuda_graph_impl == CudaGraphImpl::kTransformerEngine)
    log_info("--cuda-graph-impl transformer_engine means local here");
}

std::int64_t Session::new_tokens(std::int64_t prompt, const std::string& place) const {
  const std::int64_t wanted = options_.generate.max_new_tokens;
  const std::optional<std::int64_t> positions = max_positions(options_);
  if (!positions || wanted <= *positions - prompt) return wanted;
  const std::int64_t most = *positions - prompt;
  if (most > 0 && command_line_.is_default("max-new-tokens")) return most;
  const std::string expected =
      fmt::format("at most {}: the model has {}", counted(most > 0 ? most : *positions - 1, "token"),
                  counted(*positions, "learned position"));
  if (most > 0)
    refuse_usage("--max-new-tokens", {.expected = fmt::format("{} and the prompt has {}", expected, prompt),
                                      .got = std::to_string(wanted),
                                      .remedy = "lower it"});
  refuse_usage(place, {.expected = expected, .got = std::to_string(prompt), .remedy = "shorten it"});
}

std::string Session::tokenizer_folder() const {
  const std::string& model = command_line_.data.tokenizer_model;
  if (model.empty()) return checkpoint_->path();
  const std::optional<PathInfo> info = look_at(model);
  if (info && info->type == EntryType::kDirectory) return model;
  const std::size_t slash = model.rfind('/');
  return slash == std::string::npos ? "." : model.substr(0, std::max<std::size_t>(slash, 1));
}

std::size_t Session::free_bytes() const {
  const bool cuda = options_.device == DeviceType::kCuda;
  if (cuda && mpi_ != nullptr) select_cuda_device(mpi_->gpu());
  const int neighbors = mpi_ == nullptr ? 1 : cuda ? mpi_->max_on_gpu() : mpi_->local_size();
  return share_of_rank(cuda ? cuda_memory().free : available_bytes(), static_cast<std::size_t>(neighbors));
}

Communicator& Session::connect() {
  if (mpi_ != nullptr) {
    mpi_->watch({});
    if (options_.device == DeviceType::kCuda) gpus_ = gpu_world(*mpi_);
  }
  return gpus_ ? *gpus_ : world_;
}

void Session::load(ParameterStore& parameters, Stream& stream) {
  load_tensors({.parameters = parameters, .stream = stream}, *checkpoint_, LoadScope::kWeights);
}

}  // namespace megalith
