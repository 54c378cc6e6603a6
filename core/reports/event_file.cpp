#include "core/reports/event_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <bit>

#include "core/base/error.h"
#include "core/base/files/fault.h"
#include "core/reports/wire_format.h"

namespace megalith {

namespace {

std::uint32_t masked_crc(std::string_view bytes) { return std::rotr(crc32c(bytes), 15) + 0xa282ead8; }

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

std::uint32_t crc32c(std::string_view bytes) { return crc32_of<kCrc32c>(bytes); }

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
