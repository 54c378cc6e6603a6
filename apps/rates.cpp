#include "apps/rates.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>

#include "apps/flags_binding.h"
#include "apps/flags_source.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/file.h"

namespace megalith {

namespace {

constexpr std::size_t kMaxBytes = 1 << 16;
constexpr std::size_t kMaxPoints = 256;
constexpr double kGib = 1024.0 * 1024 * 1024;
constexpr const char* kForm = "tests/bench/rates.sh writes such a file, configs/rates has one";

struct Key {
  std::string_view name;
  bool is_list = false;
  double low = 0;  // of a number
  double high = 0;
  bool low_open = true;
  bool is_text = false;
};
constexpr double kHuge = 1e12;
constexpr std::array kRateKeys = {
    Key{.name = "device", .is_text = true},
    Key{.name = "device-memory-gib", .high = kHuge},
    Key{.name = "device-reserve-gib", .high = kHuge, .low_open = false},
    Key{.name = "gemm-size", .is_list = true, .high = kHuge},
    Key{.name = "gemm-tflops", .is_list = true, .high = kHuge},
    Key{.name = "attention-width", .is_list = true, .high = kHuge},
    Key{.name = "attention-length", .is_list = true, .high = kHuge},
    Key{.name = "attention-forward-tflops", .is_list = true, .high = kHuge},
    Key{.name = "attention-backward-tflops", .is_list = true, .high = kHuge},
    Key{.name = "memory-gbps", .high = kHuge},
    Key{.name = "kernel-names", .is_list = true, .is_text = true},
    Key{.name = "kernel-gbps", .is_list = true, .high = kHuge},
    Key{.name = "kernel-us", .high = kHuge, .low_open = false},
    Key{.name = "launch-us", .high = kHuge, .low_open = false},
    Key{.name = "host-ranks", .low = 1, .high = 1'000'000, .low_open = false},
    Key{.name = "host-link-gbps", .high = kHuge},
    Key{.name = "host-link-us", .high = kHuge, .low_open = false},
    Key{.name = "network-gbps", .high = kHuge},
    Key{.name = "network-us", .high = kHuge, .low_open = false},
    Key{.name = "overlap-share", .high = 1, .low_open = false},
};

double number_of(const RawValue& value, const Key& key, const std::string& text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool fits = error == std::errc() && end == text.data() + text.size() && number <= key.high &&
                    (key.low_open ? number > key.low : number >= key.low);
  if (!fits) {
    refuse_usage(prefix_of(value) + value.name,
                 {.expected = fmt::format("a number {} {}, at most {}", key.low_open ? "above" : "of at least", key.low,
                                          key.high),
                  .got = escaped_short(text),
                  .remedy = kForm});
  }
  return number;
}

class RatesFile {
 public:
  RatesFile(std::string_view text, const std::string& file) : file_(file) {
    for (RawValue& value : read_config_text(text, file)) {
      const auto key =
          std::find_if(kRateKeys.begin(), kRateKeys.end(), [&](const Key& k) { return k.name == value.name; });
      if (key == kRateKeys.end()) refuse_key(value);
      check_type(*key, value);
      const auto [place, is_new] = values_.emplace(key->name, std::move(value));
      if (!is_new)
        refuse_usage(prefix_of(value) + std::string(key->name),
                     {.expected = "each key once", .got = "a second one", .remedy = kForm});
    }
    for (const Key& key : kRateKeys) {
      if (!values_.contains(key.name)) refuse_usage(fmt::format("{}: {}: missing", file, key.name), {.remedy = kForm});
    }
  }

  const std::vector<std::string>& texts(std::string_view name) const { return values_.find(name)->second.items; }
  double number(std::string_view name) const { return numbers(name).front(); }
  std::vector<double> numbers(std::string_view name) const {
    const auto key = std::find_if(kRateKeys.begin(), kRateKeys.end(), [&](const Key& k) { return k.name == name; });
    const RawValue& value = values_.find(name)->second;
    std::vector<double> numbers;
    for (const std::string& text : value.items) numbers.push_back(number_of(value, *key, text));
    return numbers;
  }
  // One row of a table that stands as a list a column.
  void check_lengths(std::initializer_list<std::string_view> names) const {
    const std::size_t rows = texts(*names.begin()).size();
    for (const std::string_view name : names) {
      if (texts(name).size() == rows) continue;
      refuse(name, fmt::format("{} items, as {} has", rows, *names.begin()), fmt::format("{}", texts(name).size()));
    }
  }
  [[noreturn]] void refuse(std::string_view name, const std::string& expected, const std::string& got) const {
    refuse_usage(prefix_of(values_.find(name)->second) + std::string(name),
                 {.expected = expected, .got = got, .remedy = kForm});
  }

 private:
  [[noreturn]] static void refuse_key(const RawValue& value) {
    std::vector<std::string> names;
    for (const Key& key : kRateKeys) names.emplace_back(key.name);
    refuse_usage(prefix_of(value) + escaped_short(value.name), {.expected = "a key of a file of rates",
                                                                .got = "another name",
                                                                .remedy = suggestion(value.name, names, kForm)});
  }
  static void check_type(const Key& key, const RawValue& value) {
    const bool is_number = value.type == RawType::kInteger || value.type == RawType::kReal;
    const bool fits =
        key.is_list ? value.type == RawType::kArray : (key.is_text ? value.type == RawType::kText : is_number);
    const std::string expected =
        fmt::format("{}{}", key.is_list ? "a list of " : "a ", key.is_text ? "text" : "number");
    if (!fits)
      refuse_usage(prefix_of(value) + value.name, {.expected = expected, .got = "another type", .remedy = kForm});
    const bool may_be_empty = key.is_list && key.name.starts_with("kernel");
    if (key.is_list && (value.items.size() > kMaxPoints || (value.items.empty() && !may_be_empty))) {
      refuse_usage(prefix_of(value) + value.name,
                   {.expected = fmt::format("{} to {} items", may_be_empty ? 0 : 1, kMaxPoints),
                    .got = fmt::format("{}", value.items.size()),
                    .remedy = kForm});
    }
  }

  std::string file_;
  std::map<std::string, RawValue, std::less<>> values_;
};

void read_gemm(const RatesFile& file, Rates& rates) {
  file.check_lengths({"gemm-size", "gemm-tflops"});
  const std::vector<double> sizes = file.numbers("gemm-size"), tflops = file.numbers("gemm-tflops");
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (i > 0 && sizes[i] <= sizes[i - 1])
      file.refuse("gemm-size", "ascending sizes", fmt::format("{} after {}", sizes[i], sizes[i - 1]));
    rates.gemm.push_back({.size = sizes[i], .flops = tflops[i] * 1e12});
  }
}

void read_attention(const RatesFile& file, Rates& rates) {
  file.check_lengths({"attention-width", "attention-length", "attention-forward-tflops", "attention-backward-tflops"});
  const std::vector<double> widths = file.numbers("attention-width"), lengths = file.numbers("attention-length"),
                            forward = file.numbers("attention-forward-tflops"),
                            backward = file.numbers("attention-backward-tflops");
  for (std::size_t i = 0; i < widths.size(); ++i) {
    if (i > 0 && (widths[i] < widths[i - 1] || (widths[i] == widths[i - 1] && lengths[i] <= lengths[i - 1]))) {
      file.refuse(
          "attention-length", "ascending widths, and ascending lengths within a width",
          fmt::format("{} of width {} after {} of width {}", lengths[i], widths[i], lengths[i - 1], widths[i - 1]));
    }
    rates.attention.push_back(
        {.width = widths[i], .length = lengths[i], .forward = forward[i] * 1e12, .backward = backward[i] * 1e12});
  }
}

// Share of the way from `low` to `high`, both included, that `at` is along, in logarithms.
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
  if (text.size() > kMaxBytes)
    refuse_usage(path, {.expected = "a file of rates of at most 64 KiB", .got = "more", .remedy = kForm});
  const RatesFile file(text, path);
  constexpr double kGiga = 1e9, kMicro = 1e-6;
  Rates rates{.device = file.texts("device").front(),
              .device_memory = file.number("device-memory-gib") * kGib,
              .device_reserve = file.number("device-reserve-gib") * kGib,
              .gemm = {},
              .attention = {},
              .memory = file.number("memory-gbps") * kGiga,
              .kernels = {},
              .kernel_seconds = file.number("kernel-us") * kMicro,
              .launch_seconds = file.number("launch-us") * kMicro,
              .host_ranks = static_cast<int>(file.number("host-ranks")),
              .host = {file.number("host-link-gbps") * kGiga, file.number("host-link-us") * kMicro},
              .network = {file.number("network-gbps") * kGiga, file.number("network-us") * kMicro},
              .overlap = file.number("overlap-share")};
  if (rates.device_reserve >= rates.device_memory) {
    file.refuse("device-reserve-gib", fmt::format("less than device-memory-gib, {}", file.number("device-memory-gib")),
                fmt::format("{}", file.number("device-reserve-gib")));
  }
  if (rates.host_ranks != file.number("host-ranks"))
    file.refuse("host-ranks", "a whole number", fmt::format("{}", file.number("host-ranks")));
  if (!is_utf8(rates.device)) file.refuse("device", "a text in UTF-8", "another");
  read_gemm(file, rates);
  read_attention(file, rates);
  file.check_lengths({"kernel-names", "kernel-gbps"});
  const std::vector<double> speeds = file.numbers("kernel-gbps");
  for (std::size_t i = 0; i < speeds.size(); ++i) {
    if (!rates.kernels.emplace(file.texts("kernel-names")[i], speeds[i] * kGiga).second)
      file.refuse("kernel-names", "each name once", escaped_short(file.texts("kernel-names")[i]) + " twice");
  }
  return rates;
}

Rates read_rates(const std::string& path) {
  const FaultScope scope("config");
  try {
    return parse_rates(read_file_or_pipe(path, kMaxBytes), path);
  } catch (const Error& error) {
    if (error.code() == ExitCode::kFormat)
      refuse_usage(path, {.expected = "a file of rates of at most 64 KiB", .got = "more", .remedy = kForm});
    if (error.code() == ExitCode::kUsage) throw;
    throw Error(error.code(), fmt::format("--rates: {}", error.what()));
  }
}

}  // namespace megalith
