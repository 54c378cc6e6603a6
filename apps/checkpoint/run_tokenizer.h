// Tokenizer of the flags, from its files or from the copies in a checkpoint.
#pragma once

#include <string>
#include <vector>

#include "apps/config/options.h"
#include "core/tokenizer/tokenizer.h"
#include "parallel/checkpoint/checkpoint.h"

namespace megalith {

struct RunTokenizer {
  Tokenizer tokenizer;
  std::vector<SmallFile> files;  // its sources, for checkpoints and exports
  std::string note;              // for a warning: the file that is not at its path
};

// Tokenizer of the run. A file that is not given, or not at its path, comes from the checkpoint if that has a copy. The
// caller compares the tokenizer's identity with the checkpoint's.
RunTokenizer run_tokenizer(const Options& options, const LoadedCheckpoint* checkpoint = nullptr);
inline Tokenizer tokenizer_of(const Options& options) { return run_tokenizer(options).tokenizer; }

// Field of the file of "--vocab-file", "--merge-file" or "--tokenizer-model".
std::string& tokenizer_path(DataOptions& data, std::string_view flag);
// Flags whose files the checkpoint has copies of: "tokenizer-model", ...
std::vector<std::string> copied_file_flags(const LoadedCheckpoint& checkpoint);
// Clears these fields, so that the copies are used wherever the files were.
void take_copied_files(DataOptions& data, const LoadedCheckpoint& checkpoint);

// Adds those files of the checkpoint whose names are not in `files`.
void add_small_files(const LoadedCheckpoint& checkpoint, std::vector<SmallFile>& files);

}  // namespace megalith
