// convert: weights between a folder of Hugging Face transformers and a checkpoint of train. Weights and tables are
// copied bit by bit; rows that pad the vocabulary are left out on the way to transformers and zeros on the way back.
#pragma once

#include <string>

#include "apps/config/options.h"

namespace megalith {

// As options.convert, options.checkpoint and, for a native checkpoint, the tokenizer flags say. Returns a line for the
// user: what was written. Errors: kFormat for what is wrong in the folder that is read, naming file, key and tensors;
// kNoCheckpoint; kUsage where the formats cannot say the model or --save is not empty; kFileIo.
std::string convert(const Options& options);

}  // namespace megalith
