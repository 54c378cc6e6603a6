// Options that are set once the tokenizer and the number of ranks are known.
#pragma once

#include "apps/config/options.h"
#include "apps/config/run_config.h"
#include "core/tokenizer/tokenizer.h"

namespace megalith {

// What the flags say of the tokenizer.
TokenizerOptions tokenizer_options(const Options& options);

// Sets what depends on the tokenizer and on the number of ranks: vocabulary, global batch size, number of steps. Errors
// (exit code 2) say what of the sizes and the layout does not fit.
RunConfig complete_options(Options& options, const Tokenizer& tokenizer, int world);

}  // namespace megalith
