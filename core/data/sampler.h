// Which samples a rank reads: the global index advances by micro_batch_size x data_parallel_size per microbatch, and
// data-parallel rank r takes the r-th micro_batch_size of them. The order depends on consumed_samples alone, so a run
// resumes with any number of ranks.
#pragma once

#include <cstdint>

namespace megalith {

struct SampleRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;  // one past the last
  friend bool operator==(const SampleRange&, const SampleRange&) = default;
};

struct MicrobatchPlace {
  std::int64_t consumed_samples = 0;  // by all ranks in all steps before this one
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

// How many samples a run reads of each split. Megatron evaluates after every eval_interval steps and at the end.
struct RunLength {
  std::int64_t train_samples = 0;  // train_iters x global_batch_size
  std::int64_t train_iters = 0;
  std::int64_t eval_interval = 0;  // 0: never during training
  std::int64_t eval_iters = 0;
  std::int64_t global_batch_size = 0;
};

struct SplitSamples {
  std::int64_t train = 0;
  std::int64_t valid = 0;
  std::int64_t test = 0;
};

constexpr SplitSamples samples_of_run(const RunLength& run) {
  const std::int64_t evaluations = run.eval_interval > 0 ? run.train_iters / run.eval_interval + 1 : 1;
  return {.train = run.train_samples,
          .valid = evaluations * run.eval_iters * run.global_batch_size,
          .test = run.eval_iters * run.global_batch_size};
}

}  // namespace megalith
