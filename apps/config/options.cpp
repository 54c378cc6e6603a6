#include "apps/config/options.h"

#include <utility>

#include "core/model/config.h"

namespace megalith {

const OwnFlag& RunOptions::own_flag(std::string_view flag) const {
  const auto found = std::ranges::find(own.flags, flag, &OwnFlag::name);
  if (found == own.flags.end()) {
    fail({.subject = "flag --" + std::string(flag),
          .expected = "a flag that own_flags() declares",
          .got = "none of that name",
          .remedy = "declare it in apps/own.cpp"});
  }
  return *found;
}

Options::Options() : owned_(std::make_unique<ModelConfig>()), model(*owned_) {}
Options::Options(const Options& other)
    : RunOptions(other), owned_(std::make_unique<ModelConfig>(other.model)), model(*owned_) {}
Options::Options(Options&& other)
    : RunOptions(std::move(other)), owned_(std::make_unique<ModelConfig>(std::move(other.model))), model(*owned_) {}
Options::~Options() = default;

Options& Options::operator=(const Options& other) {
  RunOptions::operator=(other);
  model = other.model;
  return *this;
}

Options& Options::operator=(Options&& other) {
  RunOptions::operator=(std::move(other));
  model = std::move(other.model);
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
         !options.train.deterministic_mode;
}

}  // namespace megalith
