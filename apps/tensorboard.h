// An event file that TensorBoard reads (--tensorboard-dir), with Megatron's tags: each step's loss, learning rate,
// batch size, gradient norm, time, throughput and memory, and the validation loss where it was measured; the main ones
// also by consumed samples ("lm loss vs samples"). Rank 0 only.
//
// Format: records of TensorFlow's record writer, each an Event message in protocol buffers' wire format; written by
// hand because five fields need no library.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "apps/metrics.h"
#include "core/base/file.h"

namespace megalith {

// CRC-32C (Castagnoli) of RFC 3720, as crc32c("123456789") = 0xe3069283.
std::uint32_t crc32c(std::string_view bytes);
// u64 length, masked CRC of it, payload, masked CRC of that; little endian.
std::string tensorboard_record(std::string_view payload);
// The Event of one scalar, without the record around it. `wall_time` in seconds since 1970.
std::string tensorboard_scalar(double wall_time, std::int64_t step, std::string_view tag, float value);

class TensorBoardLog {
 public:
  // Makes the folder and a new file events.out.tfevents.TIME.HOST.PID in it. Fails with kFileIo; a failure to write
  // later is a warning, after which nothing more is written.
  explicit TensorBoardLog(const std::string& folder);
  TensorBoardLog(const TensorBoardLog&) = delete;
  TensorBoardLog& operator=(const TensorBoardLog&) = delete;

  void write(const StepMetrics& metrics);

 private:
  std::string folder_;
  File file_;  // closed after a failure
};

}  // namespace megalith
