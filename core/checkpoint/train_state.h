// State of a checkpoint other than tensors, stored as state.json: the values for a bit-equal resume, and the
// checkpoint's origin.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace megalith {

// Limit far beyond any run, so that sums and products with batch sizes fit in 64 bits.
inline constexpr std::int64_t kMaxSamples = std::int64_t{1} << 48;

struct TrainState {
  std::int64_t step = 0;              // completed steps, with skipped ones
  std::int64_t consumed_samples = 0;  // training samples
  std::int64_t consumed_validation_samples = 0;
  std::int64_t data_order_samples = 0;  // samples that the training order is built for; 0: not recorded
  std::int64_t passed_steps = 0;        // steps of --iterations-to-skip, as the next
  std::int64_t passed_samples = 0;
  std::int64_t skipped_steps = 0;               // steps without an update because of NaN or Inf
  std::int64_t adam_count = 0;                  // number of Adam updates: the exponent of the bias correction
  std::uint64_t seed = 0;                       // seed of Philox and of the data order
  std::map<std::string, std::string> schedule;  // of the learning rate; floating-point values as C99 %a
  std::string tokenizer;                        // identity of the checkpoint's tokenizer
  std::string program_version;                  // "0.1.0"
  std::string program_commit;
  std::map<std::string, std::string> config;           // effective value by flag name
  std::map<std::string, std::string> gemm_algorithms;  // by GEMM signature; empty on the CPU
};

// Returns the identity of an effective configuration: XXH3-128 in hex over its sorted keys and values.
std::string config_hash(const std::map<std::string, std::string>& config);

// Fails (kFormat) for values that reading would reject, such as a negative step.
std::string to_json(const TrainState& state);

// Parses strictly: all keys are required, unknown and duplicate keys are rejected, and integers must be in range.
// The configuration must match its hash. Fails with kFormat; `subject` is the file.
TrainState train_state_from_json(std::string_view text, const std::string& subject);

}  // namespace megalith
