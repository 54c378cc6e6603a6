// Tests that docs/metrics.md equals the tables of metrics_schema.h, and that each row can be read back.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <set>
#include <string>

#include "apps/metrics/metrics.h"
#include "apps/metrics/metrics_reader.h"
#include "apps/metrics/metrics_schema.h"
#include "tests/support/test_folder.h"
#include "tests/unit/apps/step_metrics_support.h"

namespace megalith::test {
namespace {

constexpr const char* kMetricsPage = MEGALITH_SOURCE_DIR "/docs/metrics.md";
constexpr const char* kMetricsUpdate = "MEGALITH_UPDATE_DOCS=1 unit_apps --gtest_filter='MetricsPage.*'";

// `prefix` and `suffix` are those of the tags of an object.
template <class Owner>
std::string table_of(const char* title, std::span<const Metric<Owner>> schema, std::string_view prefix,
                     std::string_view suffix) {
  std::string text = fmt::format("\n## {}\n\n| key | unit | value | when | TensorBoard | log line | report |\n", title);
  text += "|---|---|---|---|---|---|---|\n";
  const auto quoted = [](std::string_view name) { return name.empty() ? "" : fmt::format("`{}`", name); };
  for (const Metric<Owner>& row : schema) {
    const MetricTraits& traits = row.traits;
    std::string when(traits.when),
        tag = quoted(traits.tag.name.empty() ? "" : fmt::format("{}{}{}", prefix, traits.tag.name, suffix));
    if ((traits.parts & (kOfSums | kOfStage)) == kOfSums) when = "sums";
    if ((traits.parts & (kOfSums | kOfStage)) == kOfStage) when = "stages";
    if (traits.tag.by_samples) tag += ", also ` vs samples`";
    if (traits.tag.is_detail) tag += ", every --log-interval";
    text += fmt::format("| {}{} | {} | {} | {} | {} | {} | {} |\n", quoted(row.key),
                        traits.exact ? fmt::format(", `{}_hex`", row.key) : "", row.unit, row.help, when, tag,
                        quoted(traits.log.name), traits.chart.title);
  }
  return text;
}

std::string metrics_page() {
  return fmt::format(
             "# Metrics\n\nThis page lists every measurement of `--metrics-jsonl`, TensorBoard, the log line and "
             "`report`.\n\n"
             "The tables in `apps/metrics/metrics_schema.cpp` generate it by\n`{}`.\n\n"
             "`--metrics-jsonl FILE` writes one JSON object per step, with these keys in this order. Rows without a "
             "key "
             "are\nderived. `KEY_hex` is the fp32 value as C99 `%a` prints it (`nan`, `inf`, `-inf`), for comparisons "
             "bit for bit.\nAbsent keys were not measured.\n\n"
             "The first line of a run, and of a resumed run, also has `run`: `{{\"megalith\": VERSION, \"commit\": "
             "COMMIT,\n\"config\": {{FLAG: VALUE}}}}`. A run with `--skip-train` writes one line: `iteration`, "
             "`evaluation`\n(`validation`), `consumed_samples`, `validation_loss` and `run`.\n",
             kMetricsUpdate) +
         table_of("A step", step_schema(), "", "") +
         table_of("`experts`: arrays with one entry per MoE layer", expert_schema(), "moe/", "_layer_N") +
         table_of("`offload`: sums over all ranks; `stages`: the rank in each stage that waited the longest",
                  offload_schema(), "offload/", "");
}

TEST(MetricsPage, HasEveryRowOfTheSchema) {
  const std::string now = metrics_page();
  if (std::getenv("MEGALITH_UPDATE_DOCS") != nullptr) std::ofstream(kMetricsPage) << now;
  EXPECT_TRUE(read_bytes(kMetricsPage) == now) << "docs/metrics.md differs from the schema; run " << kMetricsUpdate;
}

template <class Owner, class Column>
void expect_distinct(std::span<const Metric<Owner>> schema, Column MetricTraits::*column) {
  std::set<int> places;
  std::set<std::string_view> names;
  for (const Metric<Owner>* const row : in_order(schema, column)) {
    const Column& field = row->traits.*column;
    EXPECT_TRUE(names.insert(field.name).second) << field.name;
    EXPECT_TRUE(field.place == 0 || places.insert(field.place).second) << field.name << ": its place is taken";
  }
}

// Fields of the log line and tags of a step are ordered by places, so no two may have the same.
TEST(MetricsSchema, KeysNamesAndPlacesAreDistinct) {
  expect_distinct(step_schema(), &MetricTraits::log);
  expect_distinct(step_schema(), &MetricTraits::tag);
  expect_distinct(expert_schema(), &MetricTraits::tag);
  expect_distinct(offload_schema(), &MetricTraits::tag);
  std::set<std::string_view> keys;
  for (const Metric<StepMetrics>& row : step_schema())
    EXPECT_TRUE(row.key.empty() || keys.insert(row.key).second) << row.key;
}

StepMetrics step_with_all() {
  StepMetrics metrics = step_metrics(2);
  metrics.skipped = true;
  metrics.skipped_steps = 3;
  metrics.load_balancing_loss = 1.5f;
  metrics.z_loss = 0.25f;
  metrics.validation_loss = 2.25;
  metrics.trained_tokens = 100;
  metrics.fill = 0.5;
  metrics.imbalance = 1.25;
  metrics.checkpoint_stall_ms = 7.5;
  metrics.skipped_samples = 12;
  metrics.num_zeros = 5;
  metrics.params_norm = 3.25;
  metrics.compute_ms = metrics.communication_ms = metrics.copies_ms = metrics.host_ms = 0.5;
  metrics.forward_ms = metrics.backward_ms = metrics.optimizer_ms = 0.25;
  metrics.experts = {{.layer = 1,
                      .min = 2,
                      .max = 9,
                      .mean = 4.5,
                      .entropy = 0.5,
                      .dropped = 3,
                      .rank_max_over_mean = 1.25,
                      .rows_sent = 8,
                      .load_balancing_loss = 1.5f,
                      .z_loss = 0.25f}};
  metrics.expert_room_used = 0.75;
  metrics.expert_room_regrows = 2;
  metrics.offload = {.sums = {.slots = 4, .bytes_out = 100, .host_bytes = 80, .saving_bytes = 70, .saved_bytes = -60},
                     .stages = {{.slots = 4, .copy_out = 0.5, .wait_back = 0.25, .step = 2, .saved_bytes = -7},
                                {.bytes_back = 9, .copy_back = 1, .wait_out = 4, .saved_driver_bytes = 6}}};
  return metrics;
}

// Each row of the schema is written under its key, and read back to its member.
TEST(MetricsSchema, ReadingAndWritingAreInverse) {
  const std::string line = to_json_line(step_with_all());
  const auto expect_keys = [&line](const auto& schema) {
    for (const auto& row : schema) {
      const std::string key = fmt::format("\"{}\": ", row.key);
      EXPECT_TRUE(row.key.empty() || row.key == "memory_bytes" || line.find(key) != line.npos) << key;
    }
  };
  expect_keys(step_schema());
  expect_keys(expert_schema());
  expect_keys(offload_schema());
  const TestFolder folder;
  write_bytes(folder / "m.jsonl", line + "\n");
  EXPECT_EQ(to_json_line(read_metrics(folder / "m.jsonl").records.at(0)), line);
}

}  // namespace
}  // namespace megalith::test
