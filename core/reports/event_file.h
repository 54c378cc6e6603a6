// Event files for TensorBoard: TensorFlow records, each an Event message in protocol buffers' wire format, by hand:
// five fields need no library.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/files/file.h"

namespace megalith {

// CRC-32C (Castagnoli) of RFC 3720, as crc32c("123456789") = 0xe3069283.
std::uint32_t crc32c(std::string_view bytes);
// u64 length, masked CRC of it, payload, masked CRC of that; little endian.
std::string tensorboard_record(std::string_view payload);
// The Event of one scalar, without the record around it. `wall_time` in seconds since 1970.
std::string tensorboard_scalar(double wall_time, std::int64_t step, std::string_view tag, float value);

// The Event that starts a session: what other files of the folder have at this step and later counts no more.
std::string tensorboard_session_start(double wall_time, std::int64_t step);

// A new file events.out.tfevents.TIME.HOST.PID in `folder`, which is made where it is not there. `first_step`: from
// where on it takes the place of earlier ones; none if it does not. Fails with kFileIo, naming `flag`, which says the
// folder. Fault sites: those of "tensorboard".
File begin_event_file(const std::string& folder, double wall_time, std::optional<std::int64_t> first_step,
                      std::string_view flag);

}  // namespace megalith
