#include "apps/metrics/tensorboard.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <utility>

#include "apps/metrics/metrics_schema.h"
#include "core/base/error.h"
#include "core/base/files/fault.h"

namespace megalith {

namespace {

constexpr const char* kTensorboardFlag = "--tensorboard-dir";
constexpr const char* kTensorboardScope = "tensorboard";

constexpr std::array<std::uint32_t, 256> kCrcTable = [] {
  constexpr std::uint32_t kPolynomial = 0x82f63b78;  // reflected
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? kPolynomial : 0);
    table[i] = value;
  }
  return table;
}();

template <class T>
void append_little_endian(std::string& out, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) out.push_back(static_cast<char>(value >> (8 * i) & 0xff));
}

std::uint32_t masked_crc(std::string_view bytes) { return std::rotr(crc32c(bytes), 15) + 0xa282ead8; }

// Protocol buffers: a key is field number << 3 | wire type.
enum WireType : std::uint8_t { kVarint = 0, kFixed64 = 1, kLengthDelimited = 2, kFixed32 = 5 };

void append_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>((value & 0x7f) | 0x80));
  out.push_back(static_cast<char>(value));
}

void append_key(std::string& out, unsigned field, WireType type) { append_varint(out, field << 3 | type); }

void append_bytes(std::string& out, unsigned field, std::string_view bytes) {
  append_key(out, field, kLengthDelimited);
  append_varint(out, bytes.size());
  out += bytes;
}

// Fields of tensorflow's event.proto and summary.proto.
std::string event(double wall_time, std::int64_t step) {
  std::string out;
  append_key(out, 1, kFixed64);
  append_little_endian(out, std::bit_cast<std::uint64_t>(wall_time));
  append_key(out, 2, kVarint);
  append_varint(out, static_cast<std::uint64_t>(step));
  return out;
}

double now() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t crc = 0xffffffff;
  for (const char byte : bytes) crc = kCrcTable[(crc ^ static_cast<unsigned char>(byte)) & 0xff] ^ (crc >> 8);
  return ~crc;
}

std::string tensorboard_record(std::string_view payload) {
  std::string out;
  append_little_endian(out, static_cast<std::uint64_t>(payload.size()));
  append_little_endian(out, masked_crc(out));
  out += payload;
  append_little_endian(out, masked_crc(payload));
  return out;
}

std::string tensorboard_scalar(double wall_time, std::int64_t step, std::string_view tag, float value) {
  std::string scalar;
  append_bytes(scalar, 1, tag);
  append_key(scalar, 2, kFixed32);
  append_little_endian(scalar, std::bit_cast<std::uint32_t>(value));
  std::string summary;
  append_bytes(summary, 1, scalar);
  std::string out = event(wall_time, step);
  append_bytes(out, 5, summary);
  return out;
}

std::string tensorboard_session_start(double wall_time, std::int64_t step) {
  constexpr std::uint64_t kStart = 1;
  std::string session;
  append_key(session, 1, kVarint);
  append_varint(session, kStart);
  std::string out = event(wall_time, step);
  append_bytes(out, 7, session);
  return out;
}

namespace {

// A new event file; `first_step`: from where on it takes the place of earlier ones, none if it does not.
File begin_file(const std::string& folder, double time, std::optional<std::int64_t> first_step) {
  const FaultScope scope(kTensorboardScope);
  try {
    const Directory directory = Directory::create(folder);
    char host[256] = {};
    gethostname(host, sizeof(host) - 1);
    std::string name =
        fmt::format("events.out.tfevents.{:010d}.{}.{}", static_cast<std::int64_t>(time), host, getpid());
    while (directory.contains(name)) name += ".1";  // containers may share a name and process ids
    File file = directory.create_file(name);
    std::string version = event(time, 0);
    append_bytes(version, 3, "brain.Event:2");
    file.write(tensorboard_record(version));
    if (first_step) file.write(tensorboard_record(tensorboard_session_start(time, *first_step)));
    return file;
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{} {}: {}", kTensorboardFlag, folder, error.what()));
  }
}

}  // namespace

struct TensorBoardLog::Records {
  std::int64_t iteration;
  std::int64_t consumed_samples;
  double time = now();
  std::string by_step{};
  std::string by_samples{};

  void add(std::string_view tag, double value) {
    by_step += tensorboard_record(tensorboard_scalar(time, iteration, tag, static_cast<float>(value)));
  }
  void add_both(std::string_view tag, double value) {
    add(tag, value);
    by_samples += tensorboard_record(
        tensorboard_scalar(time, consumed_samples, fmt::format("{} vs samples", tag), static_cast<float>(value)));
  }
  template <class Owner>
  void add(const Metric<Owner>& row, const std::string& name, std::optional<double> value) {
    if (!value) return;
    const double shown = row.traits.tag.scale * *value;
    row.traits.tag.by_samples ? add_both(name, shown) : add(name, shown);
  }
  void add_experts(const Tag& tag, const std::vector<ExpertLoad>& loads) {
    for (const ExpertLoad& load : loads)
      for (const Metric<ExpertLoad>* const row : in_order(expert_schema(), &MetricTraits::tag))
        add(*row, fmt::format("{}{}_layer_{}", tag.name, row->traits.tag.name, load.layer), number_of(*row, load));
  }
  // Sums, and of stages the most.
  void add_offload(const Tag& tag, const OffloadMetrics& offload) {
    for (const Metric<OffloadStats>* const row : in_order(offload_schema(), &MetricTraits::tag)) {
      std::optional<double> value;
      if ((row->traits.parts & kOfSums) != 0) value = number_of(*row, offload.sums);
      for (const OffloadStats& stage : offload.stages)
        if ((row->traits.parts & kOfSums) == 0) value = std::max(value.value_or(0), *number_of(*row, stage));
      add(*row, fmt::format("{}{}", tag.name, row->traits.tag.name), value);
    }
  }
  void add_step(const StepMetrics& metrics, MetricPart part, bool has_details, bool was_timed) {
    for (const Metric<StepMetrics>* const row : in_order(step_schema(), &MetricTraits::tag)) {
      const Tag& tag = row->traits.tag;
      if ((row->traits.parts & part) == 0) continue;
      if (row->key == "offload" && metrics.offload && (has_details || was_timed)) add_offload(tag, *metrics.offload);
      if (tag.is_detail && !has_details) continue;
      if (row->key == "experts") add_experts(tag, metrics.experts);
      add(*row, std::string(tag.name), number_of(*row, metrics));
    }
  }
};

TensorBoardLog::TensorBoardLog(const std::string& folder, std::optional<TensorBoardStart> start,
                               TensorBoardIntervals intervals)
    : steps_(begin_file(folder, now(), start ? std::optional(start->iteration + 1) : std::nullopt), kTensorboardFlag,
             kTensorboardScope),
      samples_(
          begin_file(folder + "/by-samples", now(), start ? std::optional(start->consumed_samples + 1) : std::nullopt),
          kTensorboardFlag, kTensorboardScope),
      intervals_(intervals) {}

void TensorBoardLog::write(const StepMetrics& metrics) {
  const bool is_end = std::exchange(is_first_, false) || metrics.iteration == metrics.train_iters;
  const bool was_timed = metrics.offload && !metrics.offload->stages.empty();
  if (!is_end && !was_timed && !metrics.validation_loss && metrics.iteration % intervals_.entries != 0) return;
  Records records{.iteration = metrics.iteration, .consumed_samples = metrics.consumed_samples};
  records.add_step(metrics, kOfStep, is_end || metrics.iteration % intervals_.details == 0, was_timed);
  steps_.write(records.by_step);
  samples_.write(records.by_samples);
}

void TensorBoardLog::write(const EvaluationMetrics& metrics) {
  Records records{.iteration = metrics.iteration, .consumed_samples = metrics.consumed_samples};
  records.add_step({.validation_loss = metrics.validation_loss}, kOfEvaluation, false, false);
  steps_.write(records.by_step);
  samples_.write(records.by_samples);
}

}  // namespace megalith
