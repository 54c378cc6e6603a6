#include "apps/metrics/tensorboard.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <utility>

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
  void add_experts(const ExpertLoad& load) {
    const auto add_of_layer = [&](const char* what, double value) {
      add(fmt::format("moe/{}_layer_{}", what, load.layer), value);
    };
    add_of_layer("load_min", static_cast<double>(load.min));
    add_of_layer("load_max", static_cast<double>(load.max));
    add_of_layer("load_mean", load.mean);
    add_of_layer("load_entropy", load.entropy);
    add_of_layer("dropped_rows", static_cast<double>(load.dropped));
    if (load.rank_max_over_mean) add_of_layer("load_rank_max_over_mean", *load.rank_max_over_mean);
    if (load.rows_sent) add_of_layer("rows_sent", static_cast<double>(*load.rows_sent));
    if (load.load_balancing_loss) add_of_layer("load_balancing_loss", static_cast<double>(*load.load_balancing_loss));
    if (load.z_loss) add_of_layer("z_loss", static_cast<double>(*load.z_loss));
  }
  void add_offload(const StepMetrics::Offload& offload) {
    using Stage = StepMetrics::Offload::Stage;
    const auto bytes = [](std::int64_t count) { return static_cast<double>(count); };
    add("offload/bytes_out", bytes(offload.bytes_out));
    add("offload/bytes_back", bytes(offload.bytes_back));
    add("offload/saved_bytes", bytes(offload.saved_bytes));
    if (offload.saving_bytes > 0)
      add("offload/saved_of_possible", bytes(offload.saved_bytes) / bytes(offload.saving_bytes));
    if (offload.stages.empty()) return;
    for (const auto& [tag, duration] :
         {std::pair{"copy_out", &Stage::copy_out_ms}, std::pair{"copy_back", &Stage::copy_back_ms},
          std::pair{"wait_out", &Stage::wait_out_ms}, std::pair{"wait_back", &Stage::wait_back_ms}})
      add(fmt::format("offload/{}_seconds", tag), 1e-3 * offload.most_ms(duration));
  }
  void add_validation(double loss) {
    add_both("lm loss validation", loss);
    add_both("lm loss validation ppl", std::exp(loss));
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
  records.add_both("learning-rate", metrics.learning_rate);
  records.add_both("batch-size", static_cast<double>(metrics.global_batch_size));
  records.add_both("lm loss", static_cast<double>(metrics.lm_loss));
  if (metrics.load_balancing_loss)
    records.add_both("load_balancing_loss", static_cast<double>(*metrics.load_balancing_loss));
  if (metrics.z_loss) records.add_both("z_loss", static_cast<double>(*metrics.z_loss));
  records.add_both("grad-norm", static_cast<double>(metrics.grad_norm));
  records.add_both("iteration-time", metrics.step_ms * 1e-3);
  records.add("throughput", metrics.tflops_per_device);
  records.add("mem-max-allocated-bytes", static_cast<double>(metrics.memory_peak_bytes));
  const bool has_details = is_end || metrics.iteration % intervals_.details == 0;
  if (has_details) {
    for (const ExpertLoad& load : metrics.experts) records.add_experts(load);
    if (metrics.expert_room) {
      records.add("moe/room_used", metrics.expert_room->used);
      records.add("moe/room_regrows", static_cast<double>(metrics.expert_room->regrows));
    }
  }
  if (metrics.offload && (has_details || was_timed)) records.add_offload(*metrics.offload);
  if (metrics.validation_loss) records.add_validation(*metrics.validation_loss);
  steps_.write(records.by_step);
  samples_.write(records.by_samples);
}

void TensorBoardLog::write(const EvaluationMetrics& metrics) {
  Records records{.iteration = metrics.iteration, .consumed_samples = metrics.consumed_samples};
  records.add_validation(metrics.validation_loss);
  steps_.write(records.by_step);
  samples_.write(records.by_samples);
}

}  // namespace megalith
