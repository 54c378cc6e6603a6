// prepare: turns text into tokens for train, and shows them.
#pragma once

#include <cstdint>
#include <string>

#include "apps/config/options.h"
#include "core/tokenizer/tokenizer.h"

namespace megalith {

// Runs prepare --input FILE... --output-prefix PREFIX.
void prepare(const Options& options);

// Runs the same with --sft, which writes packs of conversations. The paths are checked.
void prepare_sft(const Options& options, const Tokenizer& tokenizer);

// Runs prepare inspect PREFIX...
void inspect(const Options& options);

// Prints the counts of a dataset of packs, and its first `packs`.
void show_packs(const std::string& prefix, const Tokenizer& tokenizer, std::int64_t packs);

}  // namespace megalith
