// prepare: turns text into tokens for train, and shows them.
#pragma once

#include <cstdint>
#include <span>
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

// Prints the parts of a document, alternately trained and not by `marks`, up to 200 tokens.
void show_parts(std::span<const std::int32_t> ids, std::span<const std::int32_t> marks, const Tokenizer& tokenizer);

// Prints the first samples of the run: ids, or if documents are masked, the documents with the trained parts.
void show_samples(const Options& options, const Tokenizer& tokenizer);

}  // namespace megalith
