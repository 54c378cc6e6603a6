// Is a checkpoint directory what its manifest says?
#pragma once

#include "core/base/files/file.h"
#include "parallel/checkpoint/manifest.h"

namespace megalith {

// Each of these fails with kFormat or kFileIo, naming the file.

Manifest read_manifest(const Directory& checkpoint, std::string* text = nullptr);  // `text`: gets the file's

// Reads the rank files `first`, `first + stride`, ... and compares sizes, all hashes and each file's own table of
// tensors; where `first` is 0 also the small files.
void verify_files(const Directory& checkpoint, const Manifest& manifest, int first, int stride);

// The bytes of a small file, checked against its hash.
std::string read_small_file(const Directory& checkpoint, const Manifest& manifest, const std::string& name);

// Compares sizes only, of all files.
void verify_sizes(const Directory& checkpoint, const Manifest& manifest);

// Text of state.json, checked against its hash.
std::string read_state_text(const Directory& checkpoint, const Manifest& manifest);

}  // namespace megalith
