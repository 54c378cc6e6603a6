#include "apps/report_offload.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/report_chart.h"
#include "apps/report_lines.h"
#include "apps/report_page.h"

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

// Of each run's last step with such activations.
std::string savings(const std::vector<MetricsRun>& runs, const std::vector<std::string>& names) {
  std::vector<std::vector<std::string>> rows;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const auto last = std::find_if(runs[i].records.rbegin(), runs[i].records.rend(),
                                   [](const MetricsRecord& record) { return record.offload.has_value(); });
    if (last == runs[i].records.rend()) continue;
    const OffloadRecord& offload = *last->offload;
    const double ratio = offload.saving_bytes > 0 ? offload.saved_bytes / offload.saving_bytes : 1;
    rows.push_back({names[i].empty() ? "all ranks" : html_escaped(names[i]), bytes_cell(offload.saving_bytes),
                    bytes_cell(offload.saved_bytes), fmt::format("{:.4f}", ratio), bytes_cell(offload.host_bytes)});
  }
  if (rows.empty()) return "";
  return html_table({"", "possible saving of devices", "saved by blocks", "R", "memory of hosts"}, rows);
}

}  // namespace

std::string offload_section(const std::vector<MetricsRun>& runs, const std::vector<std::string>& names) {
  const std::string table = savings(runs, names);
  if (table.empty()) return "";
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
