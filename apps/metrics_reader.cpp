#include "apps/metrics_reader.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "apps/flags_binding.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/file.h"

namespace megalith {

namespace {

using Json = nlohmann::ordered_json;

Json parse(std::string_view line) { return Json::parse(line, nullptr, /*allow_exceptions=*/false); }

std::optional<double> number(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number()) return std::nullopt;
  return found->get<double>();
}

std::optional<std::int64_t> whole(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number_integer()) return std::nullopt;
  return found->get<std::int64_t>();
}

std::string text(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string text_of(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() ? "" : text(*found);
}

MetricsRecord record_of(const Json& line, std::int64_t iteration) {
  return {.iteration = iteration,
          .consumed_samples = whole(line, "consumed_samples").value_or(0),
          .lm_loss = number(line, "lm_loss"),
          .grad_norm = number(line, "grad_norm"),
          .validation_loss = number(line, "validation_loss"),
          .learning_rate = number(line, "learning_rate").value_or(0),
          .tokens_per_second = number(line, "tokens_per_second").value_or(0),
          .tflops_per_device = number(line, "tflops_per_device").value_or(0),
          .step_ms = number(line, "step_ms").value_or(0),
          .memory_peak_bytes = whole(line, "memory_peak_bytes").value_or(0),
          .skipped = text_of(line, "skipped") == "true"};
}

void read_extras(const Json& line, MetricsRun& run) {
  if (const auto found = line.find("memory_bytes"); found != line.end() && found->is_object()) {
    run.memory_bytes.clear();
    for (const auto& [category, bytes] : found->items()) {
      if (bytes.is_number_integer()) run.memory_bytes.emplace_back(category, bytes.get<std::int64_t>());
    }
  }
  const auto found = line.find("run");
  if (found == line.end() || !found->is_object()) return;
  run.version = text_of(*found, "megalith");
  run.commit = text_of(*found, "commit");
  run.config.clear();
  const auto config = found->find("config");
  if (config == found->end() || !config->is_object()) return;
  for (const auto& [name, value] : config->items()) run.config.emplace_back(name, text(value));
}

}  // namespace

std::optional<std::int64_t> iteration_of(std::string_view line) {
  const Json object = parse(line);
  return object.is_object() ? whole(object, "iteration") : std::nullopt;
}

MetricsRun read_metrics(const std::string& path) {
  const FaultScope scope("report.input");
  const std::string all = read_whole_file(path, std::uint64_t{1} << 33);
  MetricsRun run{.path = path};
  std::int64_t number_of_line = 0;
  const auto refuse = [&](const std::string& expected, const std::string& got) {
    refuse_format(number_of_line == 0 ? path : fmt::format("{}:{}", path, number_of_line), expected, got,
                  "report draws files of train --metrics-jsonl");
  };
  for (std::string_view rest = all; !rest.empty();) {
    const std::size_t end = rest.find('\n');
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    ++number_of_line;
    const Json object = parse(line);
    const std::optional<std::int64_t> iteration = object.is_object() ? whole(object, "iteration") : std::nullopt;
    if (!iteration) {
      if (end == std::string_view::npos) break;  // the run was ended while it wrote
      refuse("a JSON object with an iteration", escaped_short(line));
    }
    if (object.contains("evaluation")) continue;  // of a run with --skip-train, at any step
    if (!run.records.empty() && *iteration <= run.records.back().iteration) {
      refuse(fmt::format("an iteration after {}", run.records.back().iteration), std::to_string(*iteration));
    }
    run.records.push_back(record_of(object, *iteration));
    read_extras(object, run);
  }
  if (run.records.empty()) refuse("at least one step", "none");
  return run;
}

}  // namespace megalith
