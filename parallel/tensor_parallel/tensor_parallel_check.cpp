#include "parallel/tensor_parallel/tensor_parallel_check.h"

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/model/config.h"

namespace megalith {

namespace {

[[noreturn]] void refuse(const char* flag, const std::string& expected, std::int64_t value, std::int64_t size,
                         const std::string& remedy) {
  refuse_usage(fmt::format("--tensor-model-parallel-size and {}", flag),
               {.expected = expected,
                .got = fmt::format("--tensor-model-parallel-size {} and {} {}", size, flag, value),
                .remedy = remedy});
}

// "1 or 2 or 4": sizes up to 64 that divide `value`.
std::string divisors_of(std::int64_t value) {
  std::string list;
  for (std::int64_t size = 1; size <= 64; ++size) {
    if (value % size == 0) list += fmt::format("{}{}", list.empty() ? "" : " or ", size);
  }
  return list;
}

std::int64_t next_multiple(std::int64_t value, std::int64_t size) { return (value / size + 1) * size; }

// `may_grow`: the next multiple of `size` violates no other rule.
void check_divides(const char* flag, std::int64_t value, std::int64_t size, bool may_grow = true,
                   const char* where = "") {
  if (value % size == 0) return;
  refuse(flag, fmt::format("{}a size that divides the other", where), value, size,
         fmt::format("use --tensor-model-parallel-size {}{}", divisors_of(value),
                     may_grow ? fmt::format(", or {} {}", flag, next_multiple(value, size)) : ""));
}

}  // namespace

void check_tensor_parallel(const ModelConfig& config, std::int64_t size, bool sequence_parallel) {
  if (sequence_parallel && size == 1) {
    refuse_usage("--sequence-parallel and --tensor-model-parallel-size",
                 {.expected = "--sequence-parallel together with a --tensor-model-parallel-size above 1",
                  .got = "--tensor-model-parallel-size 1",
                  .remedy = "leave --sequence-parallel out, or use --tensor-model-parallel-size 2"});
  }
  if (size == 1) return;
  const std::int64_t heads = config.num_attention_heads, more_heads = next_multiple(heads, size);
  check_divides("--num-attention-heads", heads, size,
                config.hidden_size % more_heads == 0 &&
                    (config.num_query_groups == heads || more_heads % config.num_query_groups == 0));
  if (has_mlp(config, false)) check_divides("--ffn-hidden-size", config.ffn_hidden_size, size);
  const std::int64_t groups = config.num_query_groups;
  if (groups % size != 0 && size % groups != 0) {
    const std::int64_t more = next_multiple(groups, size);
    const bool fits = config.num_attention_heads % more == 0;
    refuse("--num-query-groups", "one that divides the other", groups, size,
           fmt::format("use --num-query-groups {}", fits ? more : size));
  }
  if (sequence_parallel) check_divides("--seq-length", config.seq_length, size, true, "with --sequence-parallel ");
}

}  // namespace megalith
