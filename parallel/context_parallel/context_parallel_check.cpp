#include <fmt/format.h>
#include <fmt/ranges.h>

#include <numeric>

#include "core/base/error.h"
#include "core/model/config.h"
#include "parallel/context_parallel/context_parallel.h"

namespace megalith {

namespace {

// "1 or 2 or 4": sizes up to 64 for which `fits` holds.
template <class Fits>
std::string fitting_sizes(Fits&& fits) {
  std::string list;
  for (std::int64_t size = 1; size <= 64; ++size) {
    if (fits(size)) list += fmt::format("{}{}", list.empty() ? "" : " or ", size);
  }
  return list;
}

// Required divisor of the length: chunks of the sequence, and with sequence parallelism the split of a rank's tokens.
std::int64_t divisor_of(std::int64_t context, const ContextParallelSizes& sizes) {
  if (context == 1) return 1;
  return std::lcm(2 * context, sizes.sequence_parallel ? context * sizes.tensor : 1);
}

void check_length(const ModelConfig& config, const ContextParallelSizes& sizes) {
  const std::int64_t divisor = divisor_of(sizes.context, sizes), length = config.seq_length;
  if (length % divisor == 0) return;
  const bool splits = sizes.sequence_parallel && sizes.tensor > 1;
  const std::int64_t below = length / divisor * divisor;
  refuse_usage(
      fmt::format("--context-parallel-size and --seq-length{}", splits ? " with --sequence-parallel" : ""),
      {.expected = fmt::format("a length that is a multiple of {}: {}{}", divisor, "2 chunks a context-parallel rank",
                               splits ? ", and as many tokens on each tensor-parallel rank" : ""),
       .got = fmt::format("--context-parallel-size {}{} and --seq-length {}", sizes.context,
                          splits ? fmt::format(", --tensor-model-parallel-size {}", sizes.tensor) : "", length),
       .remedy = fmt::format("use --seq-length {}{}, or --context-parallel-size {}",
                             below > 0 ? fmt::format("{} or ", below) : "", below + divisor,
                             fitting_sizes([&](std::int64_t size) { return length % divisor_of(size, sizes) == 0; }))});
}

void check_heads(const ModelConfig& config, const ContextParallelSizes& sizes) {
  if (sizes.communication != ContextCommunication::kAllToAll) return;
  const std::int64_t ranks = sizes.context * sizes.tensor;
  for (const auto& [flag, heads] : {std::pair("--num-attention-heads", config.num_attention_heads),
                                    std::pair("--num-query-groups", config.num_query_groups)}) {
    if (heads % ranks == 0) continue;
    const std::int64_t tensor = sizes.tensor, count = heads;
    const auto fits = [&](std::int64_t size) { return count % (size * tensor) == 0; };
    const std::string fitting = fitting_sizes(fits);
    refuse_usage(
        fmt::format("--cp-comm-type a2a, --context-parallel-size and {}", flag),
        {.expected = fmt::format("a multiple of {}, the context-parallel times the tensor-parallel ranks", ranks),
         .got = fmt::format("--context-parallel-size {}, --tensor-model-parallel-size {} and {} {}", sizes.context,
                            sizes.tensor, flag, heads),
         .remedy = fmt::format("{}or --cp-comm-type p2p, which takes any number",
                               fitting.empty() ? "" : fmt::format("use --context-parallel-size {}, ", fitting))});
  }
}

// The other forms compute blocks of a rank's queries and another rank's keys, which a window would mask in part.
void check_windows(const ModelConfig& config, ContextCommunication communication) {
  if (communication == ContextCommunication::kAllToAll || !has_reached_window(config)) return;
  refuse_usage("--cp-comm-type and --window-size",
               {.expected = "--cp-comm-type a2a with a window that --seq-length exceeds",
                .got = fmt::format("--cp-comm-type {} and --window-size {}",
                                   communication == ContextCommunication::kP2p ? "p2p" : "all_gather",
                                   fmt::join(config.window_size, " ")),
                .remedy = "use --cp-comm-type a2a, whose ranks attend to unsplit sequences"});
}

}  // namespace

void check_context_parallel(const ModelConfig& config, const ContextParallelSizes& sizes) {
  if (sizes.context == 1) return;
  check_length(config, sizes);
  check_windows(config, sizes.communication);
  check_heads(config, sizes);
}

}  // namespace megalith
