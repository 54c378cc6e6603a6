#include "apps/config/options.h"

#include <type_traits>
#include <utility>

#include "apps/config/checkpoint_options.h"
#include "apps/config/data_options.h"
#include "apps/config/logging_options.h"
#include "apps/config/machine_facts.h"
#include "apps/config/memory_options.h"
#include "apps/config/offload_options.h"
#include "apps/config/optimizer_options.h"
#include "apps/config/parallel_options.h"
#include "apps/config/program_options.h"
#include "apps/config/training_options.h"
#include "core/model/config.h"

namespace megalith {

const OwnFlag& Options::own_flag(std::string_view flag) const {
  const auto found = std::ranges::find(own.flags, flag, &OwnFlag::name);
  if (found == own.flags.end()) {
    fail({.subject = "flag --" + std::string(flag),
          .expected = "a flag that own_flags() declares",
          .got = "an undeclared name",
          .remedy = "declare it in apps/own.cpp"});
  }
  return *found;
}

struct Options::Sections {
  ModelConfig model;
  TrainingOptions train;
  OptimizerOptions optimizer;
  MemoryOptions memory;
  OffloadOptions offload;
  DataOptions data;
  CheckpointOptions checkpoint;
  ParallelOptions parallel;
  LoggingOptions logging;
  GenerateOptions generate;
  ReportOptions report;
  ForecastOptions forecast;
  ConvertOptions convert;
  PrepareOptions prepare;
  MachineFacts machine;
};

Options::Options(std::unique_ptr<Sections> sections)
    : sections_(std::move(sections)),
      model(sections_->model),
      train(sections_->train),
      optimizer(sections_->optimizer),
      memory(sections_->memory),
      offload(sections_->offload),
      data(sections_->data),
      checkpoint(sections_->checkpoint),
      parallel(sections_->parallel),
      logging(sections_->logging),
      generate(sections_->generate),
      report(sections_->report),
      forecast(sections_->forecast),
      convert(sections_->convert),
      prepare(sections_->prepare),
      machine(sections_->machine) {}
Options::Options() : Options(std::make_unique<Sections>()) {}
Options::~Options() = default;

Options::Options(const Options& other) : Options() { *this = other; }
// NOLINTNEXTLINE(performance-noexcept-move-constructor): allocates the sections
Options::Options(Options&& other) : Options() { *this = std::move(other); }

Options& Options::operator=(const Options& other) {
  *sections_ = *other.sections_;
  device = other.device;
  deterministic_mode = other.deterministic_mode;
  own = other.own;
  effective = other.effective;
  return *this;
}

Options& Options::operator=(Options&& other) noexcept {
  static_assert(std::is_nothrow_move_assignable_v<Sections> && std::is_nothrow_move_assignable_v<OwnOptions>);
  *sections_ = std::move(*other.sections_);
  device = other.device;
  deterministic_mode = other.deterministic_mode;
  own = std::move(other.own);
  effective = std::move(other.effective);
  return *this;
}

const MoeConfig& Options::moe() const { return model.moe; }
std::int64_t Options::num_layers() const { return model.num_layers; }
DType Options::params_dtype() const { return model.params_dtype; }
bool Options::ties_embeddings() const { return !model.untie_embeddings_and_output_weights; }

bool may_shard_ends(const Options& options) {
  const ParallelOptions& parallel = options.parallel;
  return parallel.sharding() == ShardingStrategy::kOptimGradsParams &&
         parallel.fsdp_embedding_and_head == EndUnits::kAuto && options.model.untie_embeddings_and_output_weights &&
         !options.deterministic_mode;
}

}  // namespace megalith
