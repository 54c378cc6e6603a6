#include "apps/flags/flags_table.h"

#include <algorithm>
#include <array>

#include "apps/config/training_options.h"

namespace megalith {

using enum FlagGroup;
using enum OnLoad;

void Section::add(std::string_view name, std::string_view unit, Binding binding, std::string_view help,
                  FlagTraits traits) {
  if (!traits.on_load) traits.on_load = shared_.on_load;
  if (!traits.suggested) traits.suggested = shared_.suggested;
  traits.needs.insert(traits.needs.begin(), shared_.needs.begin(), shared_.needs.end());
  traits.at_default |= shared_.at_default;
  table_.push_back({.name = name,
                    .group = group_,
                    .apps = traits.apps != 0 ? traits.apps : apps_,
                    .unit = unit,
                    .binding = std::move(binding),
                    .help = help,
                    .traits = std::move(traits)});
}

std::string_view title_of(FlagGroup group) {
  constexpr std::array<std::string_view, 19> kTitles = {"model",   "moe",        "own",        "training", "optimizer",
                                                        "data",    "evaluation", "checkpoint", "parallel", "memory",
                                                        "logging", "generate",   "report",     "convert",  "forecast",
                                                        "prepare", "inspect",    "testing",    "program"};
  static_assert(kTitles.size() == static_cast<std::size_t>(kProgram) + 1);
  return kTitles[static_cast<std::size_t>(group)];
}

OnLoad on_load(const Flag& flag) {
  if (flag.traits.on_load) return *flag.traits.on_load;
  if (flag.group == kModel || flag.group == kMoe) return kComputes;
  return flag.group == kTraining || flag.group == kOptimizer || flag.group == kData ? kNoted : kFree;
}

FlagTable make_table(Options& options, Requests& requests) {
  FlagTable table;
  add_model(table, options.model);
  add_training(table, options);
  add_optimizer(table, options.optimizer, options.train.schedule);
  add_data_and_evaluation(table, options);
  add_checkpoint(table, options.checkpoint);
  add_parallel(table, options.parallel);
  add_memory(table, options.memory);
  add_offload(table, options.offload);
  add_logging(table, options.logging);
  add_other_programs(table, options);
  add_prepare(table, options);
  add_testing(table, options.train);
  add_program(table, requests);
  add_own(table, options);  // last, so that a duplicate name is found
  std::ranges::stable_sort(table, {}, &Flag::group);
  return table;
}

}  // namespace megalith
