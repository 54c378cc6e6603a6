// The layouts of configs/layouts fit on the H200s that their names and comments say.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "apps/forecast/forecast.h"
#include "tests/unit/plan/plan_support.h"

namespace megalith::test {
namespace {

const std::string kConfigs = MEGALITH_SOURCE_DIR "/configs/";

std::vector<std::string> layouts() {
  std::vector<std::string> names;
  for (const auto& file : std::filesystem::directory_iterator(kConfigs + "layouts"))
    if (file.path().extension() == ".toml") names.push_back(file.path().stem().string());
  std::ranges::sort(names);
  return names;
}

// GiB per rank in the file's first line.
double gib_of(const std::string& layout) {
  std::string line;
  std::getline(std::ifstream(kConfigs + "layouts/" + layout + ".toml"), line);
  const std::size_t unit = line.find(" GiB per rank");
  return unit == std::string::npos ? 0 : std::stod(line.substr(line.rfind(' ', unit - 1)));
}

class ShippedLayouts : public testing::TestWithParam<std::string> {};

TEST_P(ShippedLayouts, FitsInTheMemoryThatItsCommentGives) {
  const std::string& layout = GetParam();
  const std::size_t last = layout.rfind('_');
  const int ranks = std::stoi(layout.substr(last + 1));
  const Rates rates = read_rates(kConfigs + "rates/h200.toml");
  const auto room = static_cast<std::size_t>(rates.device_memory - rates.device_reserve);
  const Options options = complete({"--config", kConfigs + layout.substr(0, last) + ".toml", "--config",
                                    kConfigs + "layouts/" + layout + ".toml", "--device", "cuda"},
                                   ranks);
  const Forecast forecast =
      make_forecast(options, ranks, {.rates = &rates, .one_of_equal = true, .max_recorded = 0, .max_memory = room});
  ASSERT_TRUE(forecast.step.has_value()) << "does not fit";
  EXPECT_NEAR(static_cast<double>(forecast.step->max_memory) / (1 << 30), gib_of(layout), 0.05 + 0.02 * gib_of(layout));
}

INSTANTIATE_TEST_SUITE_P(Files, ShippedLayouts, testing::ValuesIn(layouts()), [](const auto& layout) {
  std::string name = layout.param;
  std::ranges::replace(name, '.', '_');
  return name;
});

}  // namespace
}  // namespace megalith::test
