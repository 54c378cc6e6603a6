#include "apps/flags/complete_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "apps/config/data_options.h"
#include "apps/config/training_options.h"
#include "apps/flags/flags.h"
#include "core/base/error.h"
#include "core/model/config.h"
#include "parallel/mesh/mesh_sizes.h"

namespace megalith {

TokenizerOptions tokenizer_options(const Options& options) {
  const DataOptions& data = options.data;
  return {.type = std::string(tokenizer_types()[static_cast<std::size_t>(data.tokenizer_type)]),
          .vocab_size = options.model.vocab_size,
          .vocab_file = data.vocab_file,
          .merge_file = data.merge_file,
          .tokenizer_model = data.tokenizer_model,
          .tiktoken_pattern = data.tiktoken_pattern,
          .tiktoken_special_tokens = data.tiktoken_special_tokens,
          .eod_token = data.eod_token};
}

RunConfig complete_options(Options& options, const Tokenizer& tokenizer, int world) {
  ModelConfig& model = options.model;
  if (model.vocab_size != 0 && model.vocab_size < tokenizer.vocab_size() &&
      options.data.tokenizer_type != TokenizerType::kNull) {
    refuse_usage("--vocab-size", {.expected = fmt::format("0 or at least {}, the size of the tokenizer's vocabulary",
                                                          tokenizer.vocab_size()),
                                  .got = std::to_string(model.vocab_size),
                                  .remedy = "remove it to use the tokenizer's size"});
  }
  model.vocab_size = std::max(model.vocab_size, tokenizer.vocab_size());
  resolve(model);
  validate(model);
  if (options.train.global_batch_size == 0)
    options.train.global_batch_size = options.train.micro_batch_size * mesh_sizes_of(options.parallel, world).dp;
  RunConfig config = run_config(options, world);
  check_stages(options.train, config);
  // The flag excludes the id that the null tokenizer adds; checkpoints store the value of the flag.
  const std::int64_t added = options.data.tokenizer_type == TokenizerType::kNull ? 1 : 0;
  model.vocab_size -= added;
  update_effective(options);
  model.vocab_size += added;
  return config;
}

}  // namespace megalith
