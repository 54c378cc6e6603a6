// plan: forecast of a run on any number of ranks without running it. It prints layout, parameters, memory by owner,
// FLOPs and communication, and with a machine's rates the time of a step or the fastest layouts.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "apps/checkpoint/run_tokenizer.h"
#include "apps/config/logging_options.h"
#include "apps/config/machine_facts.h"
#include "apps/config/parallel_options.h"
#include "apps/config/program_options.h"
#include "apps/config/training_options.h"
#include "apps/flags/complete_options.h"
#include "apps/flags/flags.h"
#include "apps/forecast/forecast.h"
#include "apps/forecast/memory_fit.h"
#include "apps/forecast/suggest.h"
#include "apps/plan/plan_json.h"
#include "apps/plan/plan_page.h"
#include "apps/plan/plan_tables.h"
#include "apps/plan/plan_timeline.h"
#include "apps/plan/suggestion_text.h"
#include "apps/run/own_model.h"
#include "apps/summary/format_actions.h"
#include "apps/summary/planned_graphs.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/machine/cpu_check.h"
#include "core/base/machine/host_memory.h"
#include "core/base/machine/program.h"
#include "core/base/text/units.h"
#include "core/reports/page.h"
#include "parallel/cost/rates.h"

namespace megalith {

namespace {

// Decides as training does, by the device memory in --rates.
void decide_on_ends(Options& options, const Rates& rates, Forecast& forecast) {
  const auto room = static_cast<std::size_t>(rates.device_memory - rates.device_reserve);
  const std::size_t whole = forecast.step->max_memory;
  if (!may_shard_ends(options) || whole <= room) return;
  Options with_shards = options;
  with_shards.machine.ends_exceed_memory = true;
  Forecast sharded = make_forecast(with_shards, static_cast<int>(options.parallel.world_size), {.rates = &rates});
  if (sharded.step->max_memory >= whole) return;
  options = std::move(with_shards);
  forecast = std::move(sharded);
}

double device_memory(const Options& options, const Rates& rates) {
  constexpr double kGib = 1024.0 * 1024 * 1024;
  return options.forecast.device_memory_gib > 0 ? options.forecast.device_memory_gib * kGib : rates.device_memory;
}

// Fails if a rank does not fit the device, with the flags that change it.
void check_fit(const Options& options, const Rates& rates, const Forecast& forecast) {
  const double room = device_memory(options, rates) - rates.device_reserve;
  const auto largest =
      std::ranges::max_element(forecast.stages, {}, [](const StageForecast& stage) { return stage.memory.total(); });
  if (largest == forecast.stages.end() || static_cast<double>(largest->memory.total()) <= room) return;
  const int world = static_cast<int>(options.parallel.world_size);
  std::string remedy;
  for (const FittingFlags& fitting :
       find_fitting_flags(options, world, rates, static_cast<std::size_t>(std::max(room, 0.0)))) {
    remedy += fmt::format("{} {} ({:.2f} GiB)", remedy.empty() ? "add" : ", or", fitting.flags, gib(fitting.bytes));
  }
  if (remedy.empty()) remedy = "find a layout with --suggest, or use more ranks";
  fail({.code = ExitCode::kOutOfMemory,
        .subject = fmt::format("memory of a rank of stage {}", largest->stage),
        .expected = fmt::format("at most {:.2f} GiB, {:.2f} of {} without {:.2f} for libraries", gib(room),
                                gib(device_memory(options, rates)), rates.device, gib(rates.device_reserve)),
        .got = fmt::format("a forecast of {:.2f} GiB", gib(largest->memory.total())),
        .remedy = remedy,
        .show_place = false});
}

void print_suggestions(const Options& options, const Rates& rates, int argc, char** argv) {
  const double memory = device_memory(options, rates);
  if (memory <= rates.device_reserve) {
    refuse_usage("--device-memory-gib",
                 {.expected = fmt::format("more than the {:.1f} GiB of libraries", gib(rates.device_reserve)),
                  .got = fmt::format("{}", options.forecast.device_memory_gib),
                  .remedy = "raise it, or lower device-reserve-gib in --rates"});
  }
  const int world = static_cast<int>(options.parallel.world_size);
  const Suggestions found = suggest_layouts(options, world,
                                            {.rates = &rates,
                                             .max_memory = static_cast<std::size_t>(memory - rates.device_reserve),
                                             .progress = progress_line()});
  erase_status();
  fmt::print("{}", to_text(suggestion_tables(options, rates, memory, found)));
  if (found.best.empty()) return;
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  fmt::print("\n{}\n{}\n", to_text(reasons_table(found, rates, memory)),
             train_command(argv[0], arguments, found.best.front(), world, rates));
}

ExitCode forecast(int argc, char** argv) {
  Options options = parse_options(App::kPlan, argc, argv, own_options());
  const int world = static_cast<int>(options.parallel.world_size);
  std::optional<Rates> rates;
  if (!options.forecast.rates.empty()) {
    rates = read_rates(options.forecast.rates);
    if (options.is_default("device")) options.device = DeviceType::kCuda;  // most rates are of GPUs
    options.machine.host_share = share_of_rank(static_cast<std::size_t>(rates->host_memory),
                                               static_cast<std::size_t>(std::min(world, rates->host_ranks)));
  }
  if (options.forecast.suggest) {
    refuse_layout_flags(options);
    complete_options(options, tokenizer_of(options), 1);  // sizes of the model; the search chooses the layout
    print_suggestions(options, *rates, argc, argv);
    return ExitCode::kOk;
  }
  const RunConfig config = complete_options(options, tokenizer_of(options), world);
  Forecast forecast;
  if (rates || !options.logging.print_actions)
    forecast = make_forecast(options, world, {.rates = rates ? &*rates : nullptr});
  std::vector<StepGraphs> graphs;
  for (const StageForecast& stage : forecast.stages) graphs.push_back(stage.plans.graphs);
  if (!graphs.empty()) check_captured_modules(options, graphs);
  if (rates) decide_on_ends(options, *rates, forecast);
  if (options.logging.print_actions) {
    fmt::print("{}", format_actions(options, config));
    if (rates) fmt::print("{}", to_text(copies_table(forecast)));
    return ExitCode::kOk;
  }
  fmt::print("{}", to_text(plan_tables(options, forecast, rates ? &*rates : nullptr)));
  const auto write = [](const std::string& file, const std::string& text, const char* flag) {
    write_page(file, text, flag);
    fmt::print("{}\n", file);
  };
  if (!options.forecast.json.empty()) write(options.forecast.json, plan_json(options, forecast), "--json");
  if (!options.forecast.html.empty()) write(options.forecast.html, plan_page(options, forecast, *rates), "--html");
  if (!options.forecast.timeline.empty())
    write(options.forecast.timeline, draw_timeline(plan_timeline(options, world, *rates)), "--timeline");
  if (rates && options.device == DeviceType::kCuda) check_fit(options, *rates, forecast);
  return ExitCode::kOk;
}

}  // namespace

}  // namespace megalith

int main(int argc, char** argv) {
  megalith::require_cpu_baseline();
  return megalith::run_program("plan", [&] { return megalith::forecast(argc, argv); });
}
