// A file of --metrics-jsonl, to the page that report makes of it.
#include "apps/metrics/metrics_reader.h"
#include "apps/report/report_page.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace megalith;
  static const fuzz::ScratchFile scratch("metrics.jsonl");
  const fuzz::Input input(data, size);
  scratch.assign(input.rest());
  fuzz::expect_result_or_error([&] {
    const MetricsRun run = read_metrics(scratch.path());
    for (std::size_t i = 1; i < run.records.size(); ++i) {
      if (run.records[i - 1].iteration >= run.records[i].iteration) fuzz::defect("steps that do not ascend");
    }
    const std::string page = report_page({run, run});
    if (!page.ends_with("</html>\n") || page.find("<script") != std::string::npos) fuzz::defect("a page that is none");
  });
  return 0;
}
