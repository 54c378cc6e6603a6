#include "apps/flags/flags_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <variant>

#include "apps/config/layer_offload.h"
#include "apps/config/memory_options.h"
#include "apps/flags/flags_table.h"
#include "core/base/error.h"
#include "core/flags/binding.h"

namespace megalith {

namespace {

Binding binding_of(OwnFlag& flag) {
  if (bool* const value = std::get_if<bool>(&flag.value)) return toggle(value);
  if (std::int64_t* const value = std::get_if<std::int64_t>(&flag.value))
    return integer(value, {static_cast<std::int64_t>(flag.low), static_cast<std::int64_t>(flag.high)});
  if (double* const value = std::get_if<double>(&flag.value)) return real(value, {flag.low, flag.high});
  return text(std::get_if<std::string>(&flag.value));
}

// Binding that looks up the value at each call, since the list of flags moves with its Options.
Binding binding_of(Options& options, std::size_t index) {
  Binding binding = binding_of(options.own.flags[index]);
  binding.set = [&options, index](const std::vector<std::string>& texts) {
    return binding_of(options.own.flags[index]).set(texts);
  };
  binding.get = [&options, index] { return binding_of(options.own.flags[index]).get(); };
  return binding;
}

bool is_flag_name(std::string_view name) {
  constexpr std::string_view kAllowed = "abcdefghijklmnopqrstuvwxyz0123456789-";
  return !name.empty() && name.front() >= 'a' && name.front() <= 'z' &&
         name.find_first_not_of(kAllowed) == std::string_view::npos;
}

[[noreturn]] void refuse(const OwnFlag& flag, const char* expected, const char* got) {
  fail({.subject = fmt::format("own_flags(), flag --{}", flag.name),
        .expected = expected,
        .got = got,
        .remedy = "change its declaration in apps/own.cpp"});
}

}  // namespace

void check_own_defaults(const OwnOptions& declared) {
  for (const OwnFlag& flag : declared.flags) {
    const bool* const toggle = std::get_if<bool>(&flag.value);
    if (toggle != nullptr && *toggle) refuse(flag, "a toggle that is off by default", "a toggle that is on");
  }
}

void add_own(FlagTable& table, Options& options) {
  for (std::size_t i = 0; i < options.own.flags.size(); ++i) {
    const OwnFlag& flag = options.own.flags[i];
    const bool is_toggle = std::holds_alternative<bool>(flag.value);
    if (!is_flag_name(flag.name)) refuse(flag, "a name of lowercase letters, digits and dashes", "another name");
    if (std::ranges::any_of(table, [&](const Flag& other) { return is_named(other, flag.name); }))
      refuse(flag, "a unique name", "the name of another flag");
    if (is_toggle != flag.unit.empty()) refuse(flag, "a unit for a value, no unit for a toggle", "the opposite");
    table.push_back({.name = flag.name,
                     .group = FlagGroup::kOwn,
                     .apps = kShaped,
                     .unit = flag.unit,
                     .binding = binding_of(options, i),
                     .help = flag.help,
                     .traits = {.on_load = flag.on_load}});
  }
}

void check_own_flags(const Options& options) {
  if (options.own.check) options.own.check(options);
  for (const auto& [flag, modules] : {std::pair{"--cuda-graph-modules", &options.memory.cuda_graph_modules},
                                      {"--recompute-modules", &options.memory.recompute_modules}}) {
    if (std::ranges::find(*modules, "own") == modules->end() || std::ranges::count(layers_with_own(options), true) > 0)
      continue;
    refuse_usage(flag, {.expected = "own only with custom layers",
                        .got = "own without a custom layer",
                        .remedy = "remove it, or add a layer in apps/own.cpp and enable it"});
  }
}

}  // namespace megalith
