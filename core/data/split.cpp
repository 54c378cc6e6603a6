#include "core/data/split.h"

#include <fmt/format.h>

#include <cmath>
#include <span>
#include <string_view>

#include "core/base/error.h"
#include "core/base/take_part.h"
#include "core/base/text/parse_number.h"

namespace megalith {

namespace {

[[noreturn]] void fail_split(const std::string& split) {
  refuse_usage("--split",
               {.expected = "one to three weights >= 0 for training, validation and test, not all 0, as 969,30,1",
                .got = fmt::format("'{}'", split),
                .remedy = "they are the shares of documents"});
}

std::vector<double> parse_weights(const std::string& split) {
  std::vector<double> weights;
  const std::string ended = split + ',';
  for (std::string_view rest = ended; !rest.empty();) {
    std::string_view part = take_part(rest, ',');
    part = part.substr(0, part.find_last_not_of(' ') + 1);
    part.remove_prefix(std::min(part.find_first_not_of(' '), part.size()));
    const std::optional<double> weight = parse_number<double>(part);
    if (!weight || !std::isfinite(*weight) || *weight < 0.0) fail_split(split);
    weights.push_back(*weight);
  }
  if (weights.size() > 3) fail_split(split);
  weights.resize(3, 0.0);
  const double sum = weights[0] + weights[1] + weights[2];
  if (!(sum > 0.0) || !std::isfinite(sum)) fail_split(split);
  return weights;
}

// Sums pairwise like numpy: up to 128 values in eight interleaved sums, more in halves.
double numpy_sum(std::span<const double> values) {
  const std::size_t n = values.size();
  if (n > 128) {
    const std::size_t half = n / 2 - (n / 2) % 8;
    return numpy_sum(values.first(half)) + numpy_sum(values.subspan(half));
  }
  std::size_t next = 0;
  double sum = 0.0;
  if (n >= 8) {
    std::array<double, 8> lanes{};
    for (; next + 8 <= n; next += 8) {
      for (std::size_t lane = 0; lane < 8; ++lane) lanes[lane] += values[next + lane];
    }
    sum = ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
  }
  for (; next < n; ++next) sum += values[next];
  return sum;
}

}  // namespace

std::vector<double> normalized(std::vector<double> weights) {
  const double sum = numpy_sum(weights);
  for (double& weight : weights) weight /= sum;
  return weights;
}

std::array<double, 3> split_shares(const std::string& split) {
  const std::vector<double> shares = normalized(parse_weights(split));
  return {shares[0], shares[1], shares[2]};
}

std::array<SequenceRange, 3> split_sequences(const std::string& split, std::int64_t num_sequences) {
  const std::array<double, 3> fractions = split_shares(split);
  std::array<SequenceRange, 3> ranges;
  double before = 0.0;
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const double after = before + fractions[i];
    // llrint rounds ties to even, like Python's round.
    ranges[i] = {.begin = std::llrint(before * static_cast<double>(num_sequences)),
                 .end = std::llrint(after * static_cast<double>(num_sequences))};
    before = after;
  }
  return ranges;
}

}  // namespace megalith
