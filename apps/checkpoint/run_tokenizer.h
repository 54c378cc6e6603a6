// The tokenizer that the flags name, out of its files or the copies of them that a checkpoint keeps.
#pragma once

#include <string>
#include <vector>

#include "apps/config/options.h"
#include "core/tokenizer/tokenizer.h"
#include "parallel/checkpoint/checkpoint.h"

namespace megalith {

struct RunTokenizer {
  Tokenizer tokenizer;
  std::vector<SmallFile> files;  // what it was made of, for checkpoints and exports
  std::string note;              // for a warning: which file is not where the flags say
};

// A file that the flags do not name, or that is not where they say, is the copy of the checkpoint, if that has one.
// Whether it is the checkpoint's tokenizer is for the caller to compare, by identity.
RunTokenizer run_tokenizer(const Options& options, const LoadedCheckpoint* checkpoint = nullptr);
inline Tokenizer tokenizer_of(const Options& options) { return run_tokenizer(options).tokenizer; }

// Where the options keep the file of "--vocab-file", "--merge-file" or "--tokenizer-model".
std::string& tokenizer_path(DataOptions& data, std::string_view flag);
// "tokenizer-model", ...: the flags whose files the checkpoint has copies of.
std::vector<std::string> copied_file_flags(const LoadedCheckpoint& checkpoint);
// Empties these fields, so that the copies are taken wherever the files were.
void take_copied_files(DataOptions& data, const LoadedCheckpoint& checkpoint);

// Adds files of the checkpoint whose names are not among `files`.
void add_small_files(const LoadedCheckpoint& checkpoint, std::vector<SmallFile>& files);

}  // namespace megalith
