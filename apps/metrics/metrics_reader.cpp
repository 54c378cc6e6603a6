#include "apps/metrics/metrics_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "apps/metrics/metrics_schema.h"
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
// Bound beyond any run; sums and the conversion to double stay exact.
constexpr std::int64_t kMaxCount = std::int64_t{1} << 48;
constexpr std::size_t kMaxCategories = 1000;
constexpr double kMaxSigned = static_cast<double>(kMaxCount);
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

std::optional<Json> parse(std::string_view line) {
  try {
    return parse_strict_json(line, "", kMaxLineValues);
  } catch (const Error&) {
    return std::nullopt;  // reading the line will report the error
  }
}

std::optional<std::int64_t> iteration_in(const std::optional<Json>& line) {
  if (!line || !line->is_object()) return std::nullopt;
  const auto found = line->find("iteration");
  if (found == line->end() || !found->is_number_unsigned()) return std::nullopt;
  const auto step = found->get<std::uint64_t>();
  return step <= std::uint64_t{kMaxCount} ? std::optional(static_cast<std::int64_t>(step)) : std::nullopt;
}

// Members of a line; unknown keys belong to later versions.
class Line {
 public:
  Line(const Json& object, std::string place) : object_(object), place_(std::move(place)) {}

  std::optional<double> number(std::string_view key) const {
    const Json* const value = find(key);
    if (value == nullptr || value->is_null()) return std::nullopt;  // null: not finite
    if (!value->is_number()) refuse(key, "a number or null", *value);
    return value->get<double>();
  }
  std::int64_t count(std::string_view key, std::int64_t least) const {
    const Json* const value = find(key);
    return value == nullptr ? 0 : json_integer(*value, least, kMaxCount, place_of(key));
  }
  bool toggle(std::string_view key) const {
    const Json* const value = find(key);
    if (value != nullptr && !value->is_boolean()) refuse(key, "true or false", *value);
    return value != nullptr && value->get<bool>();
  }
  std::string text(std::string_view key) const {
    const Json* const value = find(key);
    return value == nullptr ? "" : json_text(*value, kMaxMetricsLineBytes, place_of(key));
  }
  // Numbers from 0 to `most`; with `allows_null` a null is NaN.
  std::vector<double> numbers(std::string_view key, bool allows_null, double most = kMaxSigned) const {
    const Json* const value = find(key);
    if (value == nullptr || !value->is_array())
      refuse_content(place_of(key), "an array", value == nullptr ? "nothing" : value->type_name());
    std::vector<double> numbers;
    for (const Json& one : *value) {
      const double number = one.is_number() ? one.get<double>() : -1;
      const bool is_null = allows_null && one.is_null();
      if (!is_null && !(number >= 0 && number <= most))
        refuse_content(place_of(key),
                       most == kMaxSigned ? fmt::format("numbers from 0 to {}", kMaxCount) : "numbers from 0",
                       printable(one.dump()));
      numbers.push_back(is_null ? kNan : number);
    }
    return numbers;
  }
  bool has(std::string_view key) const { return find(key) != nullptr; }
  // Members of the object under `key`; null without such an object.
  const Json* members(std::string_view key) const {
    const Json* const value = find(key);
    if (value != nullptr && !value->is_object()) refuse(key, "an object", *value);
    return value;
  }
  // Objects of the array under `key`; empty without such an array.
  std::vector<Line> objects(std::string_view key) const {
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
  const Json* find(std::string_view key) const {
    const auto found = object_.find(key);
    return found == object_.end() ? nullptr : &*found;
  }
  [[noreturn]] void refuse(std::string_view key, const char* expected, const Json& value) const {
    refuse_content(place_of(key), expected, value.type_name());
  }

  const Json& object_;
  std::string place_;
};

template <class Owner>
void read_rows(std::span<const Metric<Owner>> schema, const Line& line, Owner& owner);

// Visitor that reads a row's member from a line; an absent or null number is NaN.
struct Reading {
  const Line& line;
  std::string_view key;
  double scale = 1;
  std::int64_t least = 0;  // of a count

  void operator()(std::int64_t& value) const { value = line.count(key, least); }
  void operator()(bool& value) const { value = line.toggle(key); }
  void operator()(float& value) const { value = static_cast<float>(line.number(key).value_or(kNan)); }
  void operator()(double& value) const { value = line.number(key).value_or(kNan) / scale; }
  template <class Value>
  void operator()(std::optional<Value>& value) const {
    if (const std::optional<double> number = line.number(key)) value = bounded<Value>(*number);
  }
  // Reads arrays of one number per layer, all as long as the array of layers.
  void operator()(std::vector<ExpertLoad>& loads) const {
    const Json* const object = line.members(key);
    if (object == nullptr) return;
    const Line members(*object, line.place_of(key));
    loads.resize(members.numbers("layer", false).size());
    for (const Metric<ExpertLoad>& row : expert_schema()) {
      const auto read = [&](const auto member) {
        if constexpr (std::is_member_pointer_v<decltype(member)>) read_column(members, row.key, member, loads);
      };
      std::visit(read, row.member);
    }
  }
  void operator()(std::optional<OffloadMetrics>& offload) const {
    const Json* const object = line.members(key);
    if (object == nullptr) return;
    const Line members(*object, line.place_of(key));
    read_rows(offload_schema(), members, offload.emplace().sums);
    for (const Line& stage : members.objects("stages"))
      read_rows(offload_schema(), stage, offload->stages.emplace_back());
  }
  void operator()(NamedBytes& named) const {
    const Json* const object = line.members(key);
    if (object == nullptr) return;
    const std::string place = line.place_of(key);
    if (object->size() > kMaxCategories)
      refuse_content(place, fmt::format("at most {} categories", kMaxCategories), std::to_string(object->size()));
    for (const auto& [name, bytes] : object->items())
      named.emplace_back(name, json_integer(bytes, 0, kMaxCount, place + ": " + printable(name)));
  }

 private:
  template <class Value>
  static Value bounded(double number) {
    if constexpr (std::is_floating_point_v<Value>) return static_cast<Value>(number);
    return static_cast<Value>(std::clamp(number, -kMaxSigned, kMaxSigned));
  }
  // Reads a loss of the router, which has no upper bound.
  template <class Value>
  static constexpr double max_of() {
    if constexpr (!std::is_arithmetic_v<Value>) {
      using Number = typename Value::value_type;
      if constexpr (std::is_floating_point_v<Number>) return static_cast<double>(std::numeric_limits<Number>::max());
    }
    return kMaxSigned;
  }
  template <class Value>
  static void read_column(const Line& members, std::string_view key, Value ExpertLoad::*member,
                          std::vector<ExpertLoad>& loads) {
    constexpr bool kIsOptional = !std::is_arithmetic_v<Value>;
    if (kIsOptional && !members.has(key)) return;
    const std::vector<double> values = members.numbers(key, kIsOptional, max_of<Value>());
    if (values.size() != loads.size()) {
      refuse_content(members.place_of(key), fmt::format("{} numbers, as many as layers", loads.size()),
                     std::to_string(values.size()));
    }
    for (std::size_t i = 0; i < loads.size(); ++i) {
      if constexpr (std::is_arithmetic_v<Value>) {
        loads[i].*member = static_cast<Value>(values[i]);
      } else if constexpr (std::is_arithmetic_v<typename Value::value_type>) {
        if (!std::isnan(values[i])) loads[i].*member = static_cast<typename Value::value_type>(values[i]);
      }
    }
  }
};

template <class Owner>
void read_rows(std::span<const Metric<Owner>> schema, const Line& line, Owner& owner) {
  const std::int64_t least = std::is_same_v<Owner, OffloadStats> ? -kMaxCount : 0;
  for (const Metric<Owner>& row : schema) {
    const auto read = [&](const auto member) {
      if constexpr (std::is_member_pointer_v<decltype(member)>)
        Reading{.line = line, .key = row.key, .scale = row.traits.scale, .least = least}(owner.*member);
    };
    std::visit(read, row.member);
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
    refuse_format(place, expected, got, "give a file of train --metrics-jsonl");
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
      log_warning(place +
                  ": the last line is incomplete and skipped: the run ended while writing it, or is still writing");
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
    StepMetrics& step = run.records.emplace_back();
    read_rows(step_schema(), line, step);
    if (NamedBytes memory = std::exchange(step.memory_bytes, {}); !memory.empty()) run.memory_bytes = std::move(memory);
    read_run(line, run);
  }
  place = path;
  if (run.records.empty()) refuse("at least one step", has_evaluations ? "only evaluations of --skip-train" : "none");
  return run;
}

}  // namespace megalith
