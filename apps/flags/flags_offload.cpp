#include "apps/flags/flags_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "apps/config/layer_offload.h"
#include "apps/config/memory_options.h"
#include "apps/config/offload_options.h"
#include "apps/config/pipeline_options.h"
#include "apps/config/program_options.h"
#include "apps/flags/flags_table.h"
#include "core/base/error.h"
#include "core/base/text/text.h"
#include "core/flags/binding.h"

namespace megalith {

namespace {

constexpr const char* kFlag = "--offload-modules";

std::vector<std::string_view> kind_names() {
  constexpr int kKinds = static_cast<int>(SlotKind::kOther);
  std::vector<std::string_view> names;
  names.reserve(kKinds);
  for (int kind = 0; kind < kKinds; ++kind) names.push_back(name_of(static_cast<SlotKind>(kind)));
  return names;
}

// Accepts KIND, KIND:LAYER or KIND:FIRST-LAST.
bool has_form(std::string_view word) {
  const std::size_t colon = std::min(word.find(':'), word.size());
  const std::string_view name = word.substr(0, colon);
  if (name != kFusedGroupMlp && !slot_kind_of(name)) return false;
  if (colon == word.size()) return true;
  const std::string_view range = word.substr(colon + 1);
  const std::size_t dash = std::min(range.find('-'), range.size());
  const auto is_number = [](std::string_view text) {
    return !text.empty() && text.size() <= 7 && text.find_first_not_of("0123456789") == std::string_view::npos;
  };
  return is_number(range.substr(0, dash)) && (dash == range.size() || is_number(range.substr(dash + 1)));
}

void check_form(const Options& options) {
  const std::vector<std::string>& words = options.offload.offload_modules;
  const std::int64_t layers = options.num_layers();
  for (const std::string& word : words) {
    if (word == kAutoOffload) {
      if (words.size() > 1)
        refuse_usage(kFlag, {.expected = "auto alone",
                             .got = fmt::format("{}", fmt::join(words, " ")),
                             .remedy = "remove auto or the other names"});
      continue;
    }
    if (!has_form(word)) {
      std::vector<std::string_view> names = kind_names();
      names.push_back(kFusedGroupMlp);
      names.push_back(kAutoOffload);
      refuse_usage(kFlag, {.expected = alternatives(names),
                           .got = escaped_short(word),
                           .remedy = "write layers after a colon, such as core_attn:3 or core_attn:0-10"});
    }
    const std::vector<OffloadModule> modules = offload_modules_of(word, layers);
    if (modules[0].first > modules[0].last || modules[0].last >= layers)
      refuse_usage(kFlag, {.expected = fmt::format("layers from 0 to {}, the first not above the last", layers - 1),
                           .got = word,
                           .remedy = "change the range or --num-layers"});
  }
}

// Flag that causes the recomputation of kinds.
std::string recomputing_flag(const Options& options) {
  return options.memory.recompute_granularity == RecomputeGranularity::kFull ? "--recompute-granularity full"
                                                                             : "--recompute-modules";
}

void check_kinds(const Options& options) {
  const PipelineLayout pipeline = pipeline_layout(options);
  std::vector<GptPart> parts;
  for (int stage = 0; stage < pipeline.placement.num_stages; ++stage) {
    for (const GptPart& part : pipeline.parts_of(stage)) parts.push_back(part);
  }
  const LayerKinds kinds(options, parts);
  const auto has = [&](const OffloadModule& module, KindState state) {
    for (std::int64_t layer = module.first; layer <= module.last; ++layer) {
      if (kinds.of(layer, module.kind) == state) return true;
    }
    return false;
  };
  const auto has_own = [&](const OffloadModule& module) {
    std::int64_t layer = module.first;
    while (layer <= module.last && !kinds.has_own(layer)) ++layer;
    return layer <= module.last;
  };
  const auto kept_of = [&](OffloadModule module) {
    std::vector<std::string_view> kept;
    for (int kind = 0; kind < static_cast<int>(SlotKind::kOther); ++kind) {
      module.kind = static_cast<SlotKind>(kind);
      if (has(module, KindState::kKept)) kept.push_back(name_of(module.kind));
    }
    return alternatives(kept);
  };
  for (const std::string& word : options.offload.offload_modules) {
    const std::vector<OffloadModule> modules = offload_modules_of(word, options.num_layers());
    const auto is_kept = [&](const OffloadModule& module) { return has(module, KindState::kKept); };
    for (const OffloadModule& module : modules) {
      if (is_kept(module)) continue;
      // A group moves those of its kinds that are kept.
      if (has(module, KindState::kRecomputed) && std::ranges::any_of(modules, is_kept)) continue;
      const std::string name(name_of(module.kind));
      if (has(module, KindState::kRecomputed)) {
        refuse_usage(fmt::format("{} and {}", kFlag, recomputing_flag(options)),
                     {.expected = fmt::format("a kind that is kept: {}", kept_of(module)),
                      .got = fmt::format("{}, which is recomputed: nothing {}",
                                         word == name ? name : fmt::format("{} in {}", name, word),
                                         module.kind == SlotKind::kOwn ? "that can move is kept" : "is kept"),
                      .remedy = "remove it from one of the two flags"});
      }
      if (has_own(module)) continue;  // the custom layer may keep the kind; the recording decides
      OffloadModule everywhere = module;
      everywhere.first = 0;
      everywhere.last = options.num_layers() - 1;
      refuse_usage(kFlag, {.expected = fmt::format("a kind of these layers: {}", kept_of(module)),
                           .got = word == name ? name : fmt::format("{} in {}", name, word),
                           .remedy = module.kind == SlotKind::kLayerInput
                                         ? "add --recompute-granularity full, which keeps layer_input, or remove it"
                                     : module.kind == SlotKind::kOwn
                                         ? "add a custom layer that keeps tensors (apps/own.cpp), or remove it"
                                     : has(everywhere, KindState::kKept) ? "choose one of them, or other layers"
                                                                         : "choose one of them"});
    }
  }
}

}  // namespace

void add_offload(FlagTable& t, OffloadOptions& o) {
  using enum FlagGroup;
  Section memory(t, kMemory, kShaped, {.suggested = false});
  Section offload(t, kMemory, kShaped,
                  {.at_default = true, .needs = {{"fine-grained-activation-offloading"}}, .suggested = false});
  memory.add("fine-grained-activation-offloading", "", toggle(&o.fine_grained_activation_offloading),
             "offload of --offload-modules to host memory after forward, and their reload ahead of backward",
             {.example = "--offload-modules core_attn:0-1 act"});
  offload.add("offload-modules", "NAME...", list(&o.offload_modules),
              "activations to offload: attn_norm, qkv_linear, core_attn, attn_proj, mlp_norm, fc1, act, fc2, "
              "expert_fc1, moe_act, expert_fc2, own (what custom layers keep), layer_input (what full recomputation "
              "keeps), fused_group_mlp (the kept ones of experts' three). Each may name its layers, such as "
              "moe_act:0-10. auto: "
              "what overlaps with compute by the forecast of --rates",
              {.shown = "none", .example = "core_attn:0-1 act"});
  offload.add("activation-offload-fraction", "X", real(&o.activation_offload_fraction, {0, 1}),
              "fraction of a chunk's groups that is offloaded; a group is a kind in a layer, the last groups stay",
              {.example = "0.5"});
  offload.add("offload-mb-per-layer", "MIB", integer(&o.offload_mb_per_layer, {0, 1'000'000'000}),
              "maximum size that is offloaded per layer and microbatch; 0: no limit", {.example = "12"});
  offload.add("offload-distance", "LAYERS", integer(&o.offload_distance, {-1, 100}),
              "layers that the copy of a buffer has after its last reader and ahead of its next reader. More layers "
              "hide longer copies, fewer save more memory. 0: the rest of the layer, if there is any. -1: by the "
              "forecast with --rates, else 1",
              {.example = "0"});
  offload.add("offload-slowdown", "X", real(&o.offload_slowdown, {0, 100}),
              "with --rates: fraction of the step's compute time that may wait for copies in the forecast. A larger "
              "fraction saves more memory. Buffers whose copies take longer stay on the device",
              {.example = "0.1 --rates rates.toml"});
  offload.add("min-offload-bytes", "BYTES", integer(&o.min_offload_bytes, {0, kMany}),
              "minimum size of an offloaded buffer",
              {.excludes = {{"min-offloaded-tensor-size", "above 0"}}, .example = "123"});
  offload.add("min-offloaded-tensor-size", "N", integer(&o.min_offloaded_tensor_size, {0, kMany}),
              "minimum size of an offloaded buffer in elements of the parameters' dtype, as in Megatron-LM; 0: "
              "--min-offload-bytes applies",
              {.example = "123"});
}

void check_offload(const Options& options) {
  const OffloadOptions& offload = options.offload;
  if (!offload.fine_grained_activation_offloading) return;
  const bool is_auto = std::ranges::find(offload.offload_modules, "auto") != offload.offload_modules.end();
  if (options.is_given("offload-slowdown") &&
      (options.forecast.rates.empty() || (offload.offload_distance >= 0 && !is_auto)))
    refuse_usage("--offload-slowdown",
                 {.expected = "--rates and no --offload-distance, as the forecast chooses the copies",
                  .got = options.forecast.rates.empty() ? "no --rates" : "--offload-distance",
                  .remedy = "add --rates FILE, or remove --offload-slowdown"});
  if (offload.offload_modules.empty())
    refuse_usage(kFlag, {.expected = fmt::format("kinds to offload: {}", alternatives(kind_names())),
                         .got = "none",
                         .remedy = "add kinds, such as core_attn attn_proj"});
  check_form(options);
  if (!offloads_by_forecast(options)) return check_kinds(options);
  if (options.forecast.rates.empty())
    refuse_usage("--offload-modules auto and --rates", {.expected = "--rates with auto, which uses the forecast",
                                                        .got = "auto alone",
                                                        .remedy = "add --rates FILE, such as configs/rates/h200.toml"});
}

}  // namespace megalith
