// convert: weights between a folder of Hugging Face transformers and a checkpoint of train. Weights and tables are
// copied bit by bit. Rows that pad the vocabulary are dropped for transformers, and are zeros in a checkpoint.
#pragma once

#include <string>

#include "apps/config/options.h"

namespace megalith {

// Converts by options.convert, options.checkpoint and, for a native checkpoint, the tokenizer flags. Returns a line for
// the user about the output. Errors: kFormat with file, key and tensors of the input; kNoCheckpoint; kUsage if a format
// cannot express the model or --save is not empty; kFileIo.
std::string convert(const Options& options);

}  // namespace megalith
