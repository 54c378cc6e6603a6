#include "apps/tensorboard.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <chrono>
#include <cmath>

#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/log.h"

namespace megalith {

namespace {

constexpr const char* kScope = "tensorboard";

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

TensorBoardLog::TensorBoardLog(const std::string& folder) : folder_(folder) {
  const FaultScope scope(kScope);
  try {
    Directory::create(folder);
    char host[256] = {};
    gethostname(host, sizeof(host) - 1);
    const double time = now();
    file_ = File::create(
        fmt::format("{}/events.out.tfevents.{:010d}.{}.{}", folder, static_cast<std::int64_t>(time), host, getpid()));
    std::string version = event(time, 0);
    append_bytes(version, 3, "brain.Event:2");
    file_.write(tensorboard_record(version));
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("--tensorboard-dir {}: {}", folder, error.what()));
  }
}

void TensorBoardLog::write(const StepMetrics& metrics) {
  if (!file_.is_open()) return;
  const double time = now();
  std::string records;
  const auto add = [&](std::string_view tag, double value, bool by_samples = false) {
    const auto scalar = static_cast<float>(value);
    records += tensorboard_record(tensorboard_scalar(time, metrics.iteration, tag, scalar));
    if (!by_samples) return;
    const std::string name = fmt::format("{} vs samples", tag);
    records += tensorboard_record(tensorboard_scalar(time, metrics.consumed_samples, name, scalar));
  };
  add("learning-rate", metrics.learning_rate, true);
  add("batch-size", static_cast<double>(metrics.global_batch_size), true);
  add("lm loss", static_cast<double>(metrics.lm_loss), true);
  add("grad-norm", static_cast<double>(metrics.grad_norm), true);
  add("iteration-time", metrics.step_ms * 1e-3, true);
  add("throughput", metrics.tflops_per_device);
  add("mem-max-allocated-bytes", static_cast<double>(metrics.memory_peak_bytes));
  if (metrics.validation_loss) {
    add("lm loss validation", *metrics.validation_loss, true);
    add("lm loss validation ppl", std::exp(*metrics.validation_loss), true);
  }
  const FaultScope scope(kScope);
  try {
    file_.write(records);
  } catch (const Error& error) {
    log_warning(fmt::format("--tensorboard-dir {}: nothing more is written: {}", folder_, error.what()));
    file_ = File();
  }
}

}  // namespace megalith
