// A file of --metrics-jsonl, to the page that report makes of it.
#include <nlohmann/json.hpp>
#include <string_view>

#include "apps/metrics/metrics_reader.h"
#include "apps/report/report_page.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace megalith;
  constexpr std::string_view kData = "id=\"data\">";
  static const fuzz::ScratchFile scratch("metrics.jsonl");
  const fuzz::Input input(data, size);
  scratch.assign(input.rest());
  fuzz::expect_result_or_error([&] {
    const MetricsRun run = read_metrics(scratch.path());
    for (std::size_t i = 1; i < run.records.size(); ++i) {
      if (run.records[i - 1].iteration >= run.records[i].iteration) fuzz::defect("steps that do not ascend");
    }
    const std::string page = report_page({run, run});
    // The file's content stays within the data's script element.
    const std::size_t begin = page.find(kData) + kData.size(), end = page.find('<', begin);
    if (!page.ends_with("</html>\n") || page.compare(end, 9, "</script>") != 0) fuzz::defect("a page that is none");
    if (!nlohmann::json::accept(page.substr(begin, end - begin))) fuzz::defect("data that is no JSON");
  });
  return 0;
}
