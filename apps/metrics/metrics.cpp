#include "apps/metrics/metrics.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <utility>

#include "apps/config/training_options.h"
#include "apps/metrics/metrics_reader.h"
#include "apps/metrics/metrics_schema.h"
#include "apps/program/version.h"
#include "core/base/error.h"
#include "core/base/files/fault.h"
#include "core/base/files/line_reader.h"
#include "core/base/files/output_file.h"
#include "core/base/log.h"
#include "core/base/text/text.h"

namespace megalith {

namespace {

constexpr const char* kFlag = "--metrics-jsonl";
constexpr const char* kScope = "metrics";

template <typename Float>
std::string number_or_null(Float value) {
  return std::isfinite(value) ? fmt::format("{}", value) : "null";
}

std::string hex(float value) {
  if (std::isnan(value)) return "\"nan\"";
  char text[40];
  std::snprintf(text, sizeof(text), "\"%a\"", static_cast<double>(value));
  return text;
}

class ObjectWriter {
 public:
  void add(std::string_view key, std::string_view value) {
    out_ += fmt::format("{}{}: {}", out_.empty() ? "" : ", ", escaped(key), value);
  }
  std::string text() const { return "{" + out_ + "}"; }

 private:
  std::string out_;
};

template <class Owner>
std::optional<std::string> text_of(const Metric<Owner>& row, const Owner& owner);

template <class Owner>
ObjectWriter object_of(std::span<const Metric<Owner>> schema, const Owner& owner, MetricPart part) {
  ObjectWriter object;
  for (const Metric<Owner>& row : schema) {
    if (row.key.empty() || (row.traits.parts & part) == 0) continue;
    if (const std::optional<std::string> text = text_of(row, owner)) object.add(row.key, *text);
    if (row.traits.exact)
      object.add(std::string(row.key) + "_hex", hex(static_cast<float>(number_of(row, owner).value_or(0))));
  }
  return object;
}

template <class Items, class Text>
std::string array_of(const Items& items, const Text& text) {
  std::string out;
  for (const auto& item : items) out.append(out.empty() ? "" : ", ").append(text(item));
  return "[" + out + "]";
}

// Visitor that prints a value as JSON; none for an absent value.
struct ValueText {
  bool rounds = false;  // doubles with six digits
  double scale = 1;

  std::optional<std::string> operator()(std::int64_t value) const { return fmt::to_string(value); }
  std::optional<std::string> operator()(bool value) const { return fmt::to_string(value); }
  std::optional<std::string> operator()(float value) const { return number_or_null(value); }
  std::optional<std::string> operator()(double value) const {
    return rounds && std::isfinite(value) ? fmt::format("{:.6g}", scale * value) : number_or_null(value);
  }
  template <class Value>
  std::optional<std::string> operator()(const std::optional<Value>& value) const {
    return value ? (*this)(*value) : std::nullopt;
  }
  // Prints an array for each row of which the first layer has a value.
  std::optional<std::string> operator()(const std::vector<ExpertLoad>& loads) const {
    if (loads.empty()) return std::nullopt;
    ObjectWriter object;
    for (const Metric<ExpertLoad>& row : expert_schema()) {
      if (!text_of(row, loads.front())) continue;
      object.add(row.key, array_of(loads, [&](const ExpertLoad& load) { return text_of(row, load).value_or("0"); }));
    }
    return object.text();
  }
  std::optional<std::string> operator()(const std::optional<OffloadMetrics>& offload) const {
    if (!offload) return std::nullopt;
    ObjectWriter object = object_of(offload_schema(), offload->sums, kOfSums);
    const auto stage_text = [](const OffloadStats& stage) {
      return object_of(offload_schema(), stage, kOfStage).text();
    };
    if (!offload->stages.empty()) object.add("stages", array_of(offload->stages, stage_text));
    return object.text();
  }
  std::optional<std::string> operator()(const NamedBytes& named) const {
    if (named.empty()) return std::nullopt;
    ObjectWriter object;
    for (const auto& [name, bytes] : named) object.add(name, fmt::to_string(bytes));
    return object.text();
  }
};

template <class Owner>
std::optional<std::string> text_of(const Metric<Owner>& row, const Owner& owner) {
  const ValueText text{.rounds = !std::is_same_v<Owner, StepMetrics>, .scale = row.traits.scale};
  return std::visit([&](const auto member) { return text(std::invoke(member, owner)); }, row.member);
}

// Moves an earlier run's file to the first free PATH.N.
void move_away(const std::string& path) {
  for (int n = 1;; ++n) {
    const std::string target = fmt::format("{}.{}", path, n);
    if (look_at(target)) continue;
    rename_file(path, target);
    log_info("the metrics of an earlier run were moved to " + target);
    return;
  }
}

// Removes the lines after `last_step`. Writes a second file, so that a crash loses nothing.
void keep_until(const std::string& path, std::int64_t last_step) {
  LineReader lines(path, {.line_bytes = kMaxMetricsLineBytes});
  OutputFile out(path, kScope);
  while (const std::optional<LineReader::Line> line = lines.next()) {
    const std::optional<std::int64_t> iteration = line->is_too_long ? std::nullopt : iteration_of(line->text);
    const std::string got = iteration ? "" : escaped_short(std::string(line->text));
    if (!lines.has_end()) break;  // torn line
    if (!iteration) {
      refuse_format(fmt::format("{}:{}", path, lines.number()), "a line of --metrics-jsonl", got,
                    "give another file; this file is unchanged");
    }
    if (*iteration > last_step) continue;
    out.write(line->text);
    out.write("\n");
  }
  out.commit();
}

// True if the file, which is not empty, ends within a line.
bool is_torn(const std::string& path) {
  const File file = File::open(path);
  std::byte last{};
  file.read_at(file.size() - 1, {&last, 1});
  return last != std::byte{'\n'};
}

File open_log(const std::string& path, bool evaluates_only, std::int64_t resumed_step) {
  const FaultScope scope(kScope);
  try {
    const std::optional<PathInfo> before = look_at(path);
    if (before && before->type == EntryType::kFile && before->size > 0) {
      if (evaluates_only) {  // must not replace the file, which a training run may be writing
        if (is_torn(path)) keep_until(path, std::numeric_limits<std::int64_t>::max());
      } else if (resumed_step > 0) {
        keep_until(path, resumed_step);
      } else {
        move_away(path);
      }
    }
    return File::append(path);
  } catch (const Error& error) {
    if (error.code() != ExitCode::kFileIo) throw;
    throw Error(error.code(), fmt::format("{}: {}", kFlag, error.what()));
  }
}

}  // namespace

std::string to_json_line(const StepMetrics& metrics, std::string_view run) {
  ObjectWriter line = object_of(step_schema(), metrics, kOfStep);
  if (!run.empty()) line.add("run", run);
  return line.text();
}

std::string to_json_line(const EvaluationMetrics& metrics, std::string_view run) {
  ObjectWriter line;
  line.add("iteration", fmt::to_string(metrics.iteration));
  line.add("evaluation", escaped(std::string(metrics.split)));
  line.add("consumed_samples", fmt::to_string(metrics.consumed_samples));
  line.add(fmt::format("{}_loss", metrics.split), number_or_null(metrics.loss));
  if (!run.empty()) line.add("run", run);
  return line.text();
}

std::string run_json(const Options& options) {
  ObjectWriter config, run;
  for (const ConfigEntry& entry : options.effective) config.add(entry.name, entry.value);
  run.add("megalith", escaped(program_version()));
  run.add("commit", escaped(program_commit()));
  run.add("config", config.text());
  return run.text();
}

MetricsLog::MetricsLog(const std::string& path, const Options& options, std::int64_t resumed_step)
    : run_(run_json(options)), file_(open_log(path, options.train.skip_train, resumed_step), kFlag, kScope) {}

void MetricsLog::write(const StepMetrics& metrics) {
  file_.write(to_json_line(metrics, std::exchange(run_, "")) + "\n");
}

void MetricsLog::write(const EvaluationMetrics& metrics) {
  file_.write(to_json_line(metrics, std::exchange(run_, "")) + "\n");
}

}  // namespace megalith
