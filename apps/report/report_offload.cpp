#include "apps/report/report_offload.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/report/report_chart.h"
#include "apps/report/report_lines.h"
#include "apps/report/report_page.h"

namespace megalith {

namespace {

MetricsField of(std::optional<double> OffloadRecord::*field) {
  return [field](const MetricsRecord& record) { return record.offload ? (*record.offload).*field : std::nullopt; };
}

std::optional<double> gib_moved(const MetricsRecord& record) {
  constexpr double kGib = 1024.0 * 1024 * 1024;
  if (!record.offload) return std::nullopt;
  return (record.offload->bytes_out + record.offload->bytes_back) / kGib;
}

std::string bytes_cell(double bytes) { return bytes_text(static_cast<std::int64_t>(bytes)); }

std::string ratio_cell(double saved, double possible) {
  return fmt::format("{:.4f}", possible > 0 ? saved / possible : 1);
}

// The last step of a run that has such activations and `is_wanted`; null of none.
template <class Wanted>
const OffloadRecord* last_of(const MetricsRun& run, const Wanted& is_wanted) {
  const auto last = std::find_if(run.records.rbegin(), run.records.rend(), [&](const MetricsRecord& record) {
    return record.offload.has_value() && is_wanted(*record.offload);
  });
  return last == run.records.rend() ? nullptr : &*last->offload;
}

std::string savings(const std::vector<MetricsRun>& runs, const std::vector<std::string>& names) {
  std::vector<std::vector<std::string>> rows;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const OffloadRecord* const offload = last_of(runs[i], [](const OffloadRecord&) { return true; });
    if (offload == nullptr) continue;
    rows.push_back({names[i].empty() ? "all ranks" : html_escaped(names[i]), bytes_cell(offload->saving_bytes),
                    bytes_cell(offload->saved_bytes), ratio_cell(offload->saved_bytes, offload->saving_bytes),
                    bytes_cell(offload->host_bytes)});
  }
  if (rows.empty()) return "";
  return html_table({"", "possible saving of devices", "saved by blocks", "R", "memory of hosts"}, rows);
}

// Of the rank in each stage that saves the least of what it could.
std::string savings_of_stages(const std::vector<MetricsRun>& runs, const std::vector<std::string>& names) {
  std::vector<std::vector<std::string>> rows;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const OffloadRecord* const timed = last_of(runs[i], [](const OffloadRecord& o) { return !o.stages.empty(); });
    if (timed == nullptr) continue;
    for (std::size_t s = 0; s < timed->stages.size(); ++s) {
      const auto& [possible, saved, driver] = timed->stages[s];
      rows.push_back({fmt::format("{}{}stage {}", html_escaped(names[i]), names[i].empty() ? "" : ", ", s),
                      bytes_cell(possible), bytes_cell(saved), ratio_cell(saved, possible),
                      driver ? bytes_cell(*driver) : "n/a", driver ? ratio_cell(*driver, possible) : "n/a"});
    }
  }
  if (rows.empty()) return "";
  return html_table({"", "possible saving", "saved by the block", "R", "by the driver", "R"}, rows);
}

}  // namespace

std::string offload_section(const std::vector<MetricsRun>& runs, const std::vector<std::string>& names) {
  std::string table = savings(runs, names);
  if (table.empty()) return "";
  table += savings_of_stages(runs, names);
  std::string charts = line_of_runs(runs, names, "Moved to the host and back", "GiB a step, all ranks", gib_moved);
  charts += line_of_runs(runs, names, "Computing waited for copies", "milliseconds a step, worst stage",
                         of(&OffloadRecord::wait_ms));
  charts += line_of_runs(runs, names, "Copies to the host", "milliseconds a step, worst stage",
                         of(&OffloadRecord::copy_out_ms));
  charts +=
      line_of_runs(runs, names, "Copies back", "milliseconds a step, worst stage", of(&OffloadRecord::copy_back_ms));
  return "<h2>Activations on the host</h2>\n" + table + "<div class=\"charts\">" + charts + "</div>\n";
}

}  // namespace megalith
