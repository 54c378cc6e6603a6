#include "core/reports/event_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <bit>

#include "core/base/error.h"
#include "core/base/files/fault.h"

namespace megalith {

namespace {

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

// Wire types of protocol buffers; a key is field number << 3 | wire type.
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

// Event with the fields of tensorflow's event.proto and summary.proto.
std::string event(double wall_time, std::int64_t step) {
  std::string out;
  append_key(out, 1, kFixed64);
  append_little_endian(out, std::bit_cast<std::uint64_t>(wall_time));
  append_key(out, 2, kVarint);
  append_varint(out, static_cast<std::uint64_t>(step));
  return out;
}

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

File begin_event_file(const std::string& folder, double time, std::optional<std::int64_t> first_step,
                      std::string_view flag) {
  const FaultScope scope("tensorboard");
  try {
    const Directory directory = Directory::create(folder);
    char host[256] = {};
    gethostname(host, sizeof(host) - 1);
    std::string name =
        fmt::format("events.out.tfevents.{:010d}.{}.{}", static_cast<std::int64_t>(time), host, getpid());
    while (directory.contains(name)) name += ".1";  // containers may share names and process ids
    File file = directory.create_file(name);
    std::string version = event(time, 0);
    append_bytes(version, 3, "brain.Event:2");
    file.write(tensorboard_record(version));
    if (first_step) file.write(tensorboard_record(tensorboard_session_start(time, *first_step)));
    return file;
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{} {}: {}", flag, folder, error.what()));
  }
}

}  // namespace megalith
