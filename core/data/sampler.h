// Samples of a rank: the global index advances by micro_batch_size x data_parallel_size per microbatch. Data-parallel
// rank r reads the r-th micro_batch_size samples of them. The order depends only on consumed_samples, so a run resumes
// with any number of ranks.
#pragma once

#include <cstdint>

namespace megalith {

struct SampleRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;  // one past the last
  friend bool operator==(const SampleRange&, const SampleRange&) = default;
};

struct MicrobatchPlace {
  std::int64_t consumed_samples = 0;  // by all ranks in all earlier steps
  std::int64_t microbatch = 0;        // of this step, from 0
  std::int64_t micro_batch_size = 1;
  std::int64_t data_parallel_size = 1;
  std::int64_t data_parallel_rank = 0;
};

constexpr SampleRange microbatch_samples(const MicrobatchPlace& at) {
  const std::int64_t begin = at.consumed_samples + at.microbatch * at.micro_batch_size * at.data_parallel_size +
                             at.data_parallel_rank * at.micro_batch_size;
  return {.begin = begin, .end = begin + at.micro_batch_size};
}

struct SplitSamples {
  std::int64_t train = 0;
  std::int64_t valid = 0;
  std::int64_t test = 0;
};

}  // namespace megalith
