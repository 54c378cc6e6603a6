// What a checkpoint holds beside tensors: everything that a resumed run needs to continue bit for bit, and where the
// checkpoint came from. Stored as state.json.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace megalith {

// Far beyond any run, yet small enough that sums and products with batch sizes stay within 64 bits.
inline constexpr std::int64_t kMaxSamples = std::int64_t{1} << 48;

struct TrainState {
  std::int64_t step = 0;              // completed steps, skipped ones included
  std::int64_t consumed_samples = 0;  // training samples
  std::int64_t consumed_validation_samples = 0;
  std::int64_t data_order_samples = 0;          // training data has the order for so many samples; 0: not recorded
  std::int64_t skipped_steps = 0;               // steps whose update was skipped because of NaN or Inf
  std::int64_t adam_count = 0;                  // updates Adam has done: the exponent of its bias correction
  std::uint64_t seed = 0;                       // of Philox and of the data order
  std::map<std::string, std::string> schedule;  // of the learning rate; floating values as C99 %a
  std::string tokenizer;                        // its identity: a checkpoint belongs to one
  std::string program_version;                  // "0.1.0"
  std::string program_commit;
  std::map<std::string, std::string> config;           // effective value by flag name
  std::map<std::string, std::string> gemm_algorithms;  // by GEMM signature; empty on the CPU
};

// Identity of an effective configuration: XXH3-128 in hex over its sorted keys and values.
std::string config_hash(const std::map<std::string, std::string>& config);

// Fails (kFormat) for values that reading would refuse, such as a negative step.
std::string to_json(const TrainState& state);

// Strict: every key is wanted, unknown and duplicate keys are refused, numbers are integers in range, the configuration
// must match its hash. Fails with kFormat; `subject` names the file.
TrainState train_state_from_json(std::string_view text, const std::string& subject);

}  // namespace megalith
