// TensorBoard event files: TensorFlow records, each an Event message in the protocol buffers wire format. The code
// writes its five fields without a library.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/files/file.h"

namespace megalith {

// CRC-32C (Castagnoli) of RFC 3720; crc32c("123456789") = 0xe3069283.
std::uint32_t crc32c(std::string_view bytes);
// Record: u64 length, masked CRC of the length, payload, masked CRC of the payload; little endian.
std::string tensorboard_record(std::string_view payload);
// Event of one scalar, without its record. `wall_time`: seconds since 1970.
std::string tensorboard_scalar(double wall_time, std::int64_t step, std::string_view tag, float value);

// Event that starts a session; it invalidates entries of other files in the folder at this step and later.
std::string tensorboard_session_start(double wall_time, std::int64_t step);

// Creates events.out.tfevents.TIME.HOST.PID in `folder`, which it creates if needed. `first_step`: step from which the
// file replaces earlier files; none: it replaces nothing. Fails with kFileIo and reports `flag`, the flag of the
// folder. Fault sites: those of "tensorboard".
File begin_event_file(const std::string& folder, double wall_time, std::optional<std::int64_t> first_step,
                      std::string_view flag);

}  // namespace megalith
