#include "apps/checkpoint/checkpoint_flags.h"

#include <fmt/format.h>

#include "apps/checkpoint/run_tokenizer.h"
#include "apps/config/checkpoint_options.h"
#include "apps/config/training_options.h"
#include "apps/run/own_model.h"
#include "core/base/log.h"
#include "core/model/config.h"
#include "parallel/comm/on_all_ranks.h"

namespace megalith {

namespace {

struct Difference {
  const ConfigEntry* now;
  std::string saved;
  std::string value = now->value;
};

bool changes_tensors(const ConfigEntry& entry, const ModelConfig& model) {
  const bool has_table = model.position_embedding_type == PositionEmbedding::kLearnedAbsolute;
  return entry.on_load == OnLoad::kTensors || (entry.on_load == OnLoad::kPositions && has_table);
}

std::string in_words(const std::vector<Difference>& differences) {
  std::string text;
  for (const auto& [now, saved, value] : differences)
    text += fmt::format("{}--{} {} (was {})", text.empty() ? "" : ", ", now->name, value, saved);
  return text;
}

// Meaning of a flag in a configuration; 0 combine groups mean the expert-parallel size.
std::string meant(const std::map<std::string, std::string>& config, const std::string& flag) {
  const std::string& value = config.at(flag);
  if (flag != "moe-combine-groups" || value != "0") return value;
  const auto size = config.find("expert-model-parallel-size");
  return size == config.end() ? "1" : size->second;
}

std::vector<bool> layers_with_experts(const Options& options) {
  return moe_layers(options.model.moe, options.model.num_layers);
}

[[noreturn]] void refuse(const Options& options, const std::string& path, const std::vector<Difference>& differences) {
  std::string expected, got;
  bool other_tensors = false;
  for (const auto& [now, saved, value] : differences) {
    const std::string_view separator = expected.empty() ? "" : ", ";
    expected += fmt::format("{}--{} {}", separator, now->name, saved);
    got += fmt::format("{}--{} {}", separator, now->name, value);
    other_tensors = other_tensors || changes_tensors(*now, options.model);
  }
  const std::string as_they_were = options.checkpoint.use_checkpoint_args
                                       ? "remove them, as --use-checkpoint-args uses the checkpoint's values"
                                       : "use the checkpoint's model flags, or add --use-checkpoint-args";
  refuse_usage(fmt::format("--load {}: {}", path, other_tensors ? "a different model" : "different from its training"),
               {.expected = expected,
                .got = got,
                .remedy = as_they_were + (other_tensors ? ", or load another checkpoint"
                                                        : ", or start a new run from these weights with --finetune")});
}

void find(const Options& options, Communicator& world, FoundCheckpoint& found) {
  // A failed search fails on all ranks.
  on_all_ranks(world, [&] { found.checkpoint = find_wanted(options.checkpoint, &world, &found.history); });
  found.searched = true;
}

}  // namespace

std::string check_same_model(const Options& options, const std::string& path,
                             const std::map<std::string, std::string>& saved) {
  const Options was = options_from_config(App::kPlan, saved, own_options());
  std::map<std::string, std::string> before;
  for (const ConfigEntry& entry : was.effective) before[entry.name] = entry.value;
  std::vector<Difference> tensors, all;
  for (const ConfigEntry& entry : options.effective) {
    const bool has_other_tensors = changes_tensors(entry, options.model);
    if (!has_other_tensors && entry.on_load != OnLoad::kComputes) continue;
    const auto found = before.find(entry.name);
    if (found == before.end() || found->second == entry.value) continue;
    const bool is_of_no_layer = !has_mlp(was.model, false) && !has_mlp(options.model, false);
    if (entry.name == "ffn-hidden-size" && is_of_no_layer) continue;
    if (entry.name == "moe-layer-freq" && layers_with_experts(was) == layers_with_experts(options)) continue;
    all.push_back({&entry, found->second});
    if (has_other_tensors) tensors.push_back(all.back());
  }
  if (!options.checkpoint.finetune && !all.empty()) refuse(options, path, all);
  if (!tensors.empty()) refuse(options, path, tensors);
  return in_words(all);
}

std::string changed_flags(const Options& options, const std::map<std::string, std::string>& saved) {
  const std::map<std::string, std::string> given = config_of(options);
  std::vector<Difference> changes;
  for (const ConfigEntry& entry : options.effective) {
    if (entry.on_load != OnLoad::kNoted || !saved.contains(entry.name)) continue;
    if (entry.name == "train-iters" && options.train.train_samples > 0) continue;  // follows from the samples
    const std::string before = meant(saved, entry.name), now = meant(given, entry.name);
    if (before != now) changes.push_back({&entry, before, now});
  }
  return in_words(changes);
}

Parsed finish_flags(FlagParser& parser, const Parsed& read, Communicator& world, FoundCheckpoint& found) {
  const CheckpointOptions& wanted = read.options.checkpoint;
  if (wanted.use_checkpoint_args && !wanted.load.empty()) find(read.options, world, found);
  Parsed parsed;
  on_all_ranks(world, [&] {
    if (!found.checkpoint) {
      if (wanted.use_checkpoint_args && !wanted.load.empty() && wanted.load != wanted.save)
        refuse_no_checkpoint(wanted.load, "give the folder that train --save or convert --save wrote");
      parsed = parser.finish();
      return;
    }
    std::map<std::string, std::string> config = found.checkpoint->state().config;
    for (const std::string& flag : copied_file_flags(*found.checkpoint)) config[flag] = "\"\"";
    parsed = parser.finish(&config);
    if (world.rank() != 0) return;
    const std::string& path = found.checkpoint->path();
    log_info(fmt::format("--use-checkpoint-args: flags of model, experts and tokenizer are those of {}", path));
    if (!parsed.replaced.empty())
      log_warning(fmt::format("--use-checkpoint-args: {} overrides values of files: {}", path, parsed.replaced));
  });
  return parsed;
}

void find_start(const Options& options, Communicator& world, FoundCheckpoint& found) {
  if (!options.checkpoint.load.empty() && !found.searched) find(options, world, found);
}

}  // namespace megalith
