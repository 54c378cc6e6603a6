// Options that depend on the tokenizer and the number of ranks.
#pragma once

#include "apps/config/options.h"
#include "apps/config/run_config.h"
#include "core/tokenizer/tokenizer.h"

namespace megalith {

// Tokenizer options of the flags.
TokenizerOptions tokenizer_options(const Options& options);

// Sets what depends on the tokenizer and the number of ranks: vocabulary, global batch size, number of steps. Fails
// with exit code 2 if sizes and layout do not fit together.
RunConfig complete_options(Options& options, const Tokenizer& tokenizer, int world);

}  // namespace megalith
