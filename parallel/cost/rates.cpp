#include "parallel/cost/rates.h"

#include <fmt/format.h>

#include <cmath>
#include <cstddef>
#include <optional>

#include "core/base/error.h"
#include "core/base/files/fault.h"
#include "core/base/files/file.h"
#include "core/base/text/edit_distance.h"
#include "core/base/text/text.h"
#include "core/flags/binding.h"
#include "core/flags/values.h"

namespace megalith {

namespace {

constexpr std::size_t kMaxRatesBytes = 1 << 16;
constexpr std::size_t kMaxPoints = 256;
constexpr double kGib = 1024.0 * 1024 * 1024, kGiga = 1e9, kTera = 1e12, kMicro = 1e-6;
constexpr const char* kRatesForm = "tests/bench/rates.sh writes such a file, configs/rates has one";

constexpr double kHuge = 1e12;
constexpr RealRange kPositive{0, kHuge, true};
constexpr RealRange kNotNegative{0, kHuge};
constexpr double kMaxGib = 1e9;  // bytes fit into 64 bits
constexpr RealRange kMemoryGib{0, kMaxGib, true}, kReserve{0, kMaxGib};

// Lists of a file: columns of tables, with one item per row.
struct RateColumns {
  std::vector<double> gemm_size, gemm_tflops;
  std::vector<double> attention_width, attention_length, attention_forward, attention_backward;
  std::vector<std::string> kernel_names;
  std::vector<double> kernel_gbps;
  std::vector<std::string> start_names;
  std::vector<double> start_names_us;
};

struct Row {
  std::string_view name;
  Binding binding;
};

// Rows of the file; numbers are in the file's units.
std::vector<Row> rows_of(Rates& rates, std::int64_t& host_ranks, RateColumns& columns) {
  const auto column = [](std::vector<double>* field, std::size_t fewest = 1) {
    return reals(field, kPositive, fewest, kMaxPoints);
  };
  return {{"device", text(&rates.device)},
          {"device-memory-gib", real(&rates.device_memory, kMemoryGib)},
          {"device-reserve-gib", real(&rates.device_reserve, kReserve)},
          {"gemm-size", column(&columns.gemm_size)},
          {"gemm-tflops", column(&columns.gemm_tflops)},
          {"attention-width", column(&columns.attention_width)},
          {"attention-length", column(&columns.attention_length)},
          {"attention-forward-tflops", column(&columns.attention_forward)},
          {"attention-backward-tflops", column(&columns.attention_backward)},
          {"memory-gbps", real(&rates.memory, kPositive)},
          {"kernel-names", list(&columns.kernel_names)},
          {"kernel-gbps", column(&columns.kernel_gbps, 0)},
          {"kernel-us", real(&rates.kernel_seconds, kNotNegative)},
          {"graph-kernel-us", real(&rates.graph_kernel_seconds, kNotNegative)},
          {"start-us", real(&rates.start_seconds, kNotNegative)},
          {"start-names", list(&columns.start_names)},
          {"start-names-us", column(&columns.start_names_us, 0)},
          {"launch-us", real(&rates.launch_seconds, kNotNegative)},
          {"graph-launch-us", real(&rates.graph_launch_seconds, kNotNegative)},
          {"host-ranks", integer(&host_ranks, {1, 1'000'000})},
          {"host-memory-gib", real(&rates.host_memory, kMemoryGib)},
          {"host-link-gbps", real(&rates.host.bandwidth, kPositive)},
          {"host-link-us", real(&rates.host.latency, kNotNegative)},
          {"host-link-busy-gbps", real(&rates.busy, kPositive)},
          {"peer-gbps", real(&rates.peer.bandwidth, kPositive)},
          {"peer-us", real(&rates.peer.latency, kNotNegative)},
          {"unit-copies-gbps", real(&rates.units, kPositive)},
          {"network-gbps", real(&rates.network.bandwidth, kPositive)},
          {"network-us", real(&rates.network.latency, kNotNegative)},
          {"copy-to-host-gbps", real(&rates.alone.to_host, kPositive)},
          {"copy-from-host-gbps", real(&rates.alone.from_host, kPositive)},
          {"copy-to-host-all-gbps", real(&rates.all.to_host, kPositive)},
          {"copy-from-host-all-gbps", real(&rates.all.from_host, kPositive)},
          {"overlap-share", real(&rates.overlap, {0, 1})}};
}

// Positions of keys, for errors about several values.
class Places {
 public:
  // Sets the variables of `rows`.
  Places(std::string_view text, const std::string& file, const std::vector<Row>& rows) {
    std::vector<std::string> names;
    names.reserve(rows.size());
    for (const Row& row : rows) names.emplace_back(row.name);
    for (const RawValue& value : read_config_text(text, file)) {
      const auto row = std::ranges::find(rows, value.name, &Row::name);
      if (row == rows.end()) {
        refuse_usage(
            prefix_of(value) + escaped_short(value.name),
            {.expected = "a rates key", .got = "another name", .remedy = suggestion(value.name, names, kRatesForm)});
      }
      if (!places_.emplace(value.name, prefix_of(value) + value.name).second)
        refuse(value.name, "each key once", "a second one");
      if (!set_value(row->binding, value)) refuse(value.name, row->binding.expected, shown(value));
    }
    for (const std::string& name : names) {
      if (!places_.contains(name)) refuse_usage(fmt::format("{}: {}: missing", file, name), {.remedy = kRatesForm});
    }
  }

  [[noreturn]] void refuse(const std::string& name, const std::string& expected, const std::string& got) const {
    refuse_usage(places_.at(name), {.expected = expected, .got = got, .remedy = kRatesForm});
  }
  void check_rows(const std::string& column, std::size_t rows, const char* other, std::size_t as_many) const {
    if (rows != as_many) refuse(column, fmt::format("{} items, as {} has", as_many, other), fmt::format("{}", rows));
  }

 private:
  std::map<std::string, std::string, std::less<>> places_;
};

void read_gemm(const RateColumns& columns, const Places& places, Rates& rates) {
  const std::vector<double>& sizes = columns.gemm_size;
  places.check_rows("gemm-tflops", columns.gemm_tflops.size(), "gemm-size", sizes.size());
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (i > 0 && sizes[i] <= sizes[i - 1])
      places.refuse("gemm-size", "ascending sizes", fmt::format("{} after {}", sizes[i], sizes[i - 1]));
    rates.gemm.push_back({.size = sizes[i], .flops = columns.gemm_tflops[i] * kTera});
  }
}

void read_attention(const RateColumns& columns, const Places& places, Rates& rates) {
  const std::vector<double>&widths = columns.attention_width, &lengths = columns.attention_length;
  for (const auto& [name, column] : {std::pair{"attention-length", &lengths},
                                     {"attention-forward-tflops", &columns.attention_forward},
                                     {"attention-backward-tflops", &columns.attention_backward}})
    places.check_rows(name, column->size(), "attention-width", widths.size());
  for (std::size_t i = 0; i < widths.size(); ++i) {
    if (i > 0 && std::pair(widths[i], lengths[i]) <= std::pair(widths[i - 1], lengths[i - 1])) {
      places.refuse(
          "attention-length", "ascending widths, and ascending lengths within a width",
          fmt::format("{} of width {} after {} of width {}", lengths[i], widths[i], lengths[i - 1], widths[i - 1]));
    }
    rates.attention.push_back({.width = widths[i],
                               .length = lengths[i],
                               .forward = columns.attention_forward[i] * kTera,
                               .backward = columns.attention_backward[i] * kTera});
  }
}

template <class T>
struct RateColumn {
  const char* key;
  const std::vector<T>& items;
};

std::map<std::string, double, std::less<>> by_name(const RateColumn<std::string>& names,
                                                   const RateColumn<double>& numbers, double unit,
                                                   const Places& places) {
  places.check_rows(numbers.key, numbers.items.size(), names.key, names.items.size());
  std::map<std::string, double, std::less<>> found;
  for (std::size_t i = 0; i < names.items.size(); ++i) {
    if (!found.emplace(names.items[i], numbers.items[i] * unit).second)
      places.refuse(names.key, "each name once", escaped_short(names.items[i]) + " twice");
  }
  return found;
}

// Position of `at` between `low` and `high`, 0 to 1, on a logarithmic scale.
double along(double at, double low, double high) {
  if (at <= low) return 0;
  return at >= high ? 1 : std::log(at / low) / std::log(high / low);
}

}  // namespace

double Rates::gemm_rate(double size) const {
  std::size_t next = 0;
  while (next < gemm.size() && gemm[next].size < size) ++next;
  if (next == 0) return gemm.front().flops;
  if (next == gemm.size()) return gemm.back().flops;
  const GemmPoint &a = gemm[next - 1], &b = gemm[next];
  return a.flops + along(size, a.size, b.size) * (b.flops - a.flops);
}

Rates::AttentionPoint Rates::attention_rate(double width, double length) const {
  double nearest = attention.front().width;
  for (const AttentionPoint& point : attention) {
    if (std::abs(std::log(point.width / width)) < std::abs(std::log(nearest / width))) nearest = point.width;
  }
  std::optional<AttentionPoint> below, above;
  for (const AttentionPoint& point : attention) {
    if (point.width != nearest) continue;
    if (point.length <= length) below = point;
    if (point.length >= length && !above) above = point;
  }
  if (!below) return *above;
  if (!above) return *below;
  const double share = below->length == above->length ? 0 : along(length, below->length, above->length);
  return {.width = nearest,
          .length = length,
          .forward = below->forward + share * (above->forward - below->forward),
          .backward = below->backward + share * (above->backward - below->backward)};
}

Rates parse_rates(std::string_view text, const std::string& path) {
  if (text.size() > kMaxRatesBytes)
    refuse_usage(path, {.expected = "a file of rates of at most 64 KiB", .got = "more", .remedy = kRatesForm});
  Rates rates;
  RateColumns columns;
  std::int64_t host_ranks = 0;
  const Places places(text, path, rows_of(rates, host_ranks, columns));
  if (rates.device_reserve >= rates.device_memory) {
    places.refuse("device-reserve-gib", fmt::format("less than device-memory-gib, {}", rates.device_memory),
                  fmt::format("{}", rates.device_reserve));
  }
  rates.host_ranks = static_cast<int>(host_ranks);
  for (double* gib : {&rates.device_memory, &rates.device_reserve, &rates.host_memory}) *gib *= kGib;
  for (double* gbps : {&rates.memory, &rates.host.bandwidth, &rates.busy, &rates.peer.bandwidth, &rates.units,
                       &rates.network.bandwidth, &rates.alone.to_host, &rates.alone.from_host, &rates.all.to_host,
                       &rates.all.from_host})
    *gbps *= kGiga;
  for (double* us : {&rates.kernel_seconds, &rates.graph_kernel_seconds, &rates.start_seconds, &rates.launch_seconds,
                     &rates.graph_launch_seconds, &rates.host.latency, &rates.peer.latency, &rates.network.latency})
    *us *= kMicro;
  read_gemm(columns, places, rates);
  read_attention(columns, places, rates);
  rates.kernels = by_name({"kernel-names", columns.kernel_names}, {"kernel-gbps", columns.kernel_gbps}, kGiga, places);
  rates.starts =
      by_name({"start-names", columns.start_names}, {"start-names-us", columns.start_names_us}, kMicro, places);
  return rates;
}

Rates read_rates(const std::string& path) {
  const FaultScope scope("config");
  try {
    return parse_rates(read_file_or_pipe(path, kMaxRatesBytes), path);
  } catch (const Error& error) {
    if (error.code() == ExitCode::kFormat)
      refuse_usage(path, {.expected = "a file of rates of at most 64 KiB", .got = "more", .remedy = kRatesForm});
    if (error.code() == ExitCode::kUsage) throw;
    throw Error(error.code(), fmt::format("--rates: {}", error.what()));
  }
}

}  // namespace megalith
