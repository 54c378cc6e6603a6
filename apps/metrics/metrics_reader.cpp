#include "apps/metrics/metrics_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/files/fault.h"
#include "core/base/files/line_reader.h"
#include "core/base/log.h"
#include "core/base/text/text.h"
#include "core/checkpoint/printable.h"
#include "core/checkpoint/strict_json.h"

namespace megalith {

namespace {

using Json = nlohmann::json;

constexpr std::uint64_t kMaxFileBytes = std::uint64_t{1} << 31;
constexpr std::size_t kMaxLineValues = std::size_t{1} << 17;
constexpr std::size_t kMaxSteps = std::size_t{1} << 22;
// Far beyond any run, and small enough that sums and the conversion to double are exact.
constexpr std::uint64_t kMaxCount = std::uint64_t{1} << 48;
constexpr std::size_t kMaxCategories = 1000;
constexpr double kMaxLayer = 1e6;

std::optional<Json> parse(std::string_view line) {
  try {
    return parse_strict_json(line, "", kMaxLineValues);
  } catch (const Error&) {
    return std::nullopt;  // the line itself says what is wrong with it
  }
}

std::optional<std::int64_t> iteration_in(const std::optional<Json>& line) {
  if (!line || !line->is_object()) return std::nullopt;
  const auto found = line->find("iteration");
  if (found == line->end() || !found->is_number_unsigned()) return std::nullopt;
  const auto step = found->get<std::uint64_t>();
  return step <= kMaxCount ? std::optional(static_cast<std::int64_t>(step)) : std::nullopt;
}

// A line's members; keys that nobody asks for are left to later versions.
class Line {
 public:
  Line(const Json& object, std::string place) : object_(object), place_(std::move(place)) {}

  std::optional<double> number(const char* key) const {
    const Json* const value = find(key);
    if (value == nullptr || value->is_null()) return std::nullopt;  // null: not finite
    if (!value->is_number()) refuse(key, "a number or null", *value);
    return value->get<double>();
  }
  std::int64_t count(const char* key) const {
    const Json* const value = find(key);
    return value == nullptr ? 0 : json_integer(*value, 0, kMaxCount, place_of(key));
  }
  bool toggle(const char* key) const {
    const Json* const value = find(key);
    if (value != nullptr && !value->is_boolean()) refuse(key, "true or false", *value);
    return value != nullptr && value->get<bool>();
  }
  std::string text(const char* key) const {
    const Json* const value = find(key);
    return value == nullptr ? "" : json_text(*value, kMaxMetricsLineBytes, place_of(key));
  }
  // From 0 to kMaxCount each.
  std::vector<double> numbers(const char* key) const {
    const Json* const value = find(key);
    if (value == nullptr || !value->is_array())
      refuse_content(place_of(key), "an array", value == nullptr ? "nothing" : value->type_name());
    std::vector<double> numbers;
    for (const Json& one : *value) {
      const double number = one.is_number() ? one.get<double>() : -1;
      if (!(number >= 0 && number <= static_cast<double>(kMaxCount)))
        refuse_content(place_of(key), fmt::format("numbers from 0 to {}", kMaxCount), printable(one.dump()));
      numbers.push_back(number);
    }
    return numbers;
  }
  bool has(const char* key) const { return find(key) != nullptr; }
  // Of the object under `key`; null where there is none.
  const Json* members(const char* key) const {
    const Json* const value = find(key);
    if (value != nullptr && !value->is_object()) refuse(key, "an object", *value);
    return value;
  }
  // Of the array of objects under `key`; none where it is not there.
  std::vector<Line> objects(const char* key) const {
    const Json* const value = find(key);
    if (value == nullptr) return {};
    if (!value->is_array()) refuse(key, "an array", *value);
    std::vector<Line> lines;
    for (const Json& one : *value) {
      if (!one.is_object()) refuse(key, "objects", one);
      lines.emplace_back(one, place_of(key));
    }
    return lines;
  }
  std::string place_of(std::string_view key) const { return fmt::format("{}: {}", place_, key); }

 private:
  const Json* find(const char* key) const {
    const auto found = object_.find(key);
    return found == object_.end() ? nullptr : &*found;
  }
  [[noreturn]] void refuse(const char* key, const char* expected, const Json& value) const {
    refuse_content(place_of(key), expected, value.type_name());
  }

  const Json& object_;
  std::string place_;
};

MetricsRecord record_of(const Line& line, std::int64_t iteration) {
  return {.iteration = iteration,
          .consumed_samples = line.count("consumed_samples"),
          .lm_loss = line.number("lm_loss"),
          .grad_norm = line.number("grad_norm"),
          .validation_loss = line.number("validation_loss"),
          .load_balancing_loss = line.number("load_balancing_loss"),
          .z_loss = line.number("z_loss"),
          .learning_rate = line.number("learning_rate").value_or(0),
          .tokens_per_second = line.number("tokens_per_second").value_or(0),
          .tflops_per_device = line.number("tflops_per_device").value_or(0),
          .step_ms = line.number("step_ms").value_or(0),
          .memory_peak_bytes = line.count("memory_peak_bytes"),
          .skipped = line.toggle("skipped"),
          .rows_sent = {},
          .room_used = line.number("expert_room_used"),
          .room_regrows = line.number("expert_room_regrows"),
          .offload = {}};
}

void read_offload(const Line& line, MetricsRecord& record) {
  const Json* const object = line.members("offload");
  if (object == nullptr) return;
  const Line members(*object, line.place_of("offload"));
  const auto bytes = [&](const char* key) { return members.number(key).value_or(0); };
  OffloadRecord& offload = record.offload.emplace(OffloadRecord{.bytes_out = bytes("bytes_out"),
                                                                .bytes_back = bytes("bytes_back"),
                                                                .host_bytes = bytes("host_bytes"),
                                                                .saving_bytes = bytes("saving_bytes"),
                                                                .saved_bytes = bytes("saved_bytes")});
  for (const Line& stage : members.objects("stages")) {
    const auto take = [](std::optional<double>& most, double ms) { most = std::max(most.value_or(0), ms); };
    const auto ms = [&](const char* key) { return stage.number(key).value_or(0); };
    take(offload.copy_out_ms, ms("copy_out_ms"));
    take(offload.copy_back_ms, ms("copy_back_ms"));
    take(offload.wait_ms, ms("wait_out_ms") + ms("wait_back_ms"));
    const std::optional<double> saving = stage.number("saving_bytes");
    if (!saving) continue;  // as earlier versions wrote it
    offload.stages.push_back({.saving_bytes = *saving,
                              .saved_bytes = stage.number("saved_bytes").value_or(0),
                              .saved_driver_bytes = stage.number("saved_driver_bytes")});
  }
}

// Arrays of one number a layer, all as long as that of the layers.
void read_experts(const Line& line, MetricsRecord& record) {
  const Json* const object = line.members("experts");
  if (object == nullptr) return;
  const Line members(*object, line.place_of("experts"));
  const std::vector<double> layers = members.numbers("layer");
  const auto column = [&](const char* key) {
    std::vector<double> values = members.numbers(key);
    if (values.size() != layers.size()) {
      refuse_content(members.place_of(key), fmt::format("{} numbers, as many as layers", layers.size()),
                     std::to_string(values.size()));
    }
    return values;
  };
  const std::vector<double> min = column("min"), max = column("max"), mean = column("mean"),
                            entropy = column("entropy"), dropped = column("dropped");
  const auto over_mean = [&](const std::vector<double>& rows, std::size_t i) {
    return mean[i] > 0 ? static_cast<float>(rows[i] / mean[i]) : 1;
  };
  for (std::size_t i = 0; i < layers.size(); ++i) {
    record.experts.push_back({.layer = static_cast<std::int32_t>(std::min(layers[i], kMaxLayer)),
                              .min_over_mean = over_mean(min, i),
                              .max_over_mean = over_mean(max, i),
                              .entropy = static_cast<float>(entropy[i])});
    record.dropped_rows += static_cast<std::int64_t>(dropped[i]);
  }
  if (!members.has("rows_sent")) return;
  record.rows_sent = 0;
  for (const double rows : column("rows_sent")) *record.rows_sent += rows;
}

void read_memory(const Line& line, MetricsRun& run) {
  const Json* const memory = line.members("memory_bytes");
  if (memory == nullptr) return;
  if (memory->size() > kMaxCategories) {
    refuse_content(line.place_of("memory_bytes"), fmt::format("at most {} categories", kMaxCategories),
                   std::to_string(memory->size()));
  }
  run.memory_bytes.clear();
  for (const auto& [category, bytes] : memory->items()) {
    const std::string place = line.place_of("memory_bytes: " + printable(category));
    run.memory_bytes.emplace_back(category, json_integer(bytes, 0, kMaxCount, place));
  }
}

void read_run(const Line& line, MetricsRun& run) {
  const Json* const object = line.members("run");
  if (object == nullptr) return;
  const Line members(*object, line.place_of("run"));
  run.version = members.text("megalith");
  run.commit = members.text("commit");
  run.config.clear();
  const Json* const config = members.members("config");
  if (config == nullptr) return;
  for (const auto& [name, value] : config->items()) {
    run.config.emplace_back(name, value.is_string() ? value.get<std::string>() : value.dump());
  }
}

}  // namespace

std::optional<std::int64_t> iteration_of(std::string_view line) { return iteration_in(parse(line)); }

MetricsRun read_metrics(const std::string& path) {
  const FaultScope scope("report.input");
  LineReader lines(path, {.line_bytes = kMaxMetricsLineBytes, .file_bytes = kMaxFileBytes});
  MetricsRun run{.path = path};
  std::string place = path;
  const auto refuse = [&](const std::string& expected, const std::string& got) {
    refuse_format(place, expected, got, "report draws files of train --metrics-jsonl");
  };
  bool has_evaluations = false;
  while (const std::optional<LineReader::Line> text = lines.next()) {
    place = fmt::format("{}:{}", path, lines.number());
    // A torn line may be long: after a power loss the end of a file may be zeros.
    if (text->is_too_long && (run.records.empty() || lines.has_end()))
      refuse(fmt::format("a line of at most {} bytes", kMaxMetricsLineBytes), "more");
    const std::optional<Json> object = text->is_too_long ? std::nullopt : parse(text->text);
    const std::optional<std::int64_t> iteration = iteration_in(object);
    if (!iteration && !lines.has_end()) {
      log_warning(place + ": the last line is torn and left out: the run was ended while it wrote it, or still writes");
      break;
    }
    if (!iteration) refuse("a JSON object with an iteration", escaped_short(text->text));
    if (object->contains("evaluation")) {  // of a run with --skip-train, at any step
      has_evaluations = true;
      continue;
    }
    if (!run.records.empty() && *iteration <= run.records.back().iteration) {
      refuse(fmt::format("an iteration after {}", run.records.back().iteration), std::to_string(*iteration));
    }
    if (run.records.size() == kMaxSteps) refuse(fmt::format("at most {} steps", kMaxSteps), "more");
    const Line line(*object, place);
    run.records.push_back(record_of(line, *iteration));
    read_experts(line, run.records.back());
    read_offload(line, run.records.back());
    read_memory(line, run);
    read_run(line, run);
  }
  place = path;
  if (run.records.empty()) refuse("at least one step", has_evaluations ? "evaluations of --skip-train alone" : "none");
  return run;
}

}  // namespace megalith
