// report METRICS.jsonl... --output report.html: writes a page about one or more runs of train --metrics-jsonl.
#include <cstdio>

#include "apps/config/program_options.h"
#include "apps/flags/flags.h"
#include "apps/metrics/metrics_reader.h"
#include "apps/report/report_page.h"
#include "core/base/machine/cpu_check.h"
#include "core/base/machine/program.h"
#include "core/reports/page.h"

int main(int argc, char** argv) {
  using namespace megalith;
  require_cpu_baseline();
  return run_program("report", [&] {
    const Options options = parse_options(App::kReport, argc, argv);
    std::vector<MetricsRun> runs;
    for (const std::string& path : options.report.inputs) runs.push_back(read_metrics(path));
    write_page(options.report.output, report_page(runs));
    std::printf("%s\n", options.report.output.c_str());
    return ExitCode::kOk;
  });
}
