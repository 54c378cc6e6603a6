// report METRICS.jsonl... --output report.html: writes a page about one or more runs of train --metrics-jsonl.
// report TRACE.json --output step.svg: draws the last step of a trace of train --trace.
#include <fmt/format.h>

#include <cstdio>

#include "apps/config/program_options.h"
#include "apps/flags/flags.h"
#include "apps/metrics/metrics_reader.h"
#include "apps/report/report_page.h"
#include "apps/report/step_picture.h"
#include "core/base/error.h"
#include "core/base/machine/cpu_check.h"
#include "core/base/machine/program.h"
#include "core/reports/page.h"

int main(int argc, char** argv) {
  using namespace megalith;
  require_cpu_baseline();
  return run_program("report", [&] {
    const Options options = parse_options(App::kReport, argc, argv);
    const std::vector<std::string>& inputs = options.report.inputs;
    if (options.report.output.ends_with(".svg")) {
      if (inputs.size() > 1)
        refuse_usage("--output FILE.svg", {.expected = "one trace",
                                           .got = fmt::format("{} files", inputs.size()),
                                           .remedy = "draw each trace into its own file"});
      write_page(options.report.output, draw_timeline(picture_of_trace(inputs[0])));
    } else {
      std::vector<MetricsRun> runs;
      runs.reserve(inputs.size());
      for (const std::string& path : inputs) runs.push_back(read_metrics(path));
      write_page(options.report.output, report_page(runs));
    }
    std::printf("%s\n", options.report.output.c_str());
    return ExitCode::kOk;
  });
}
