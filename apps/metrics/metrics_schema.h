// Tables of a run's measurements: a row gives the key, member, unit, TensorBoard tag, log line field and chart of a
// measurement. --metrics-jsonl and its reader, TensorBoard, the log line, `report` and docs/metrics.md use these
// tables. A new measurement is a member of StepMetrics (or of a nested struct) and a row.
#pragma once

#include <algorithm>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "apps/metrics/step_metrics.h"

namespace megalith {

// Source of a value. A function derives its value from other rows: shown, but without a key.
template <class Owner>
using Member =
    std::variant<std::int64_t Owner::*, bool Owner::*, float Owner::*, double Owner::*,
                 std::optional<std::int64_t> Owner::*, std::optional<float> Owner::*, std::optional<double> Owner::*,
                 std::vector<ExpertLoad> Owner::*, std::optional<OffloadMetrics> Owner::*, NamedBytes Owner::*,
                 std::optional<double> (*)(const Owner&)>;

// Scalar of TensorBoard; `place` orders the scalars of a step.
struct Tag {
  std::string_view name = {};
  int place = 0;
  bool by_samples = false;  // also as "NAME vs samples"
  bool is_detail = false;   // only in steps with a log line
  double scale = 1;         // of the JSON value
};

// Field of the log line over the steps since the last line; a mean skips values that are not finite.
enum class Over : std::uint8_t { kLast, kMean, kMeanOverTime, kSum };
struct LogField {
  std::string_view name = {};
  int place = 0;  // order of the field
  std::string (*show)(double) = nullptr;
  Over over = Over::kLast;
};

// Field of the short log line: its text with {} for the value. `show` returns no text for a value that is left out.
struct ShortField {
  std::string_view name = {};  // "{} ms"
  int place = 0;
  std::string (*show)(double) = nullptr;
};

// Line chart of `report`; left out if no step has a value other than zero.
enum class ChartSection : std::uint8_t { kSteps, kExperts, kOffload };
struct ChartRow {
  std::string_view title = {};
  ChartSection section = ChartSection::kSteps;
};

// Objects that contain a row, as bits.
enum MetricPart : std::uint8_t { kOfStep = 1, kOfEvaluation = 2, kOfSums = 4, kOfStage = 8, kOfAll = 15 };

inline constexpr std::string_view kAlways = "always";

struct MetricTraits {
  std::string_view when = kAlways;
  unsigned parts = kOfAll & ~kOfEvaluation;
  double scale = 1;    // from the member to its unit
  bool exact = false;  // KEY_hex has the bits
  Tag tag = {};
  LogField log = {};
  ShortField brief = {};
  ChartRow chart = {};
};

template <class Owner>
struct Metric {
  std::string_view key;  // empty: not in --metrics-jsonl
  Member<Owner> member;
  std::string_view unit;
  std::string_view help;
  MetricTraits traits;
  constexpr Metric(std::string_view k, Member<Owner> m, std::string_view u, std::string_view h, MetricTraits t = {})
      : key(k), member(m), unit(u), help(h), traits(t) {}
};

std::span<const Metric<StepMetrics>> step_schema();
std::span<const Metric<ExpertLoad>> expert_schema();     // arrays of "experts", one entry per layer
std::span<const Metric<OffloadStats>> offload_schema();  // "offload" (kOfSums) and its "stages" (kOfStage)

std::string scientific(double value);  // "3.000000E-04"
std::string token_rate(double tokens_per_second);

template <class Value>
std::optional<double> number_in(const Value& value) {
  if constexpr (std::is_arithmetic_v<Value>) return static_cast<double>(value);
  return std::nullopt;
}
template <class Value>
std::optional<double> number_in(const std::optional<Value>& value) {
  return value ? number_in(*value) : std::nullopt;
}

// Number in the row's unit; none if absent or not a number.
template <class Owner>
std::optional<double> number_of(const Metric<Owner>& metric, const Owner& owner) {
  const std::optional<double> number =
      std::visit([&](const auto member) { return number_in(std::invoke(member, owner)); }, metric.member);
  return number ? std::optional(metric.traits.scale * *number) : std::nullopt;
}

// Rows with a name or label in `column` (MetricTraits::tag, log or brief), ordered by `place`.
template <class Owner, class Column>
std::vector<const Metric<Owner>*> in_order(std::span<const Metric<Owner>> schema, Column MetricTraits::*column) {
  std::vector<const Metric<Owner>*> rows;
  for (const Metric<Owner>& metric : schema)
    if (!(metric.traits.*column).name.empty()) rows.push_back(&metric);
  std::ranges::stable_sort(rows, {}, [column](const Metric<Owner>* row) { return (row->traits.*column).place; });
  return rows;
}

}  // namespace megalith
