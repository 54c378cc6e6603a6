// Verification of a checkpoint directory against its manifest.
#pragma once

#include "core/base/files/file.h"
#include "parallel/checkpoint/manifest.h"

namespace megalith {

// These functions fail with kFormat or kFileIo, and the error contains the file.

Manifest read_manifest(const Directory& checkpoint, std::string* text = nullptr);  // `text`: receives the file's text

// Reads the rank files `first`, `first + stride`, ... and checks sizes, all hashes, and each file's table of tensors.
// If `first` is 0, also checks the small files.
void verify_files(const Directory& checkpoint, const Manifest& manifest, int first, int stride);

// Returns the bytes of a small file after a check of its hash.
std::string read_small_file(const Directory& checkpoint, const Manifest& manifest, const std::string& name);

// Checks only sizes, of all files.
void verify_sizes(const Directory& checkpoint, const Manifest& manifest);

// Returns the text of state.json after a check of its hash.
std::string read_state_text(const Directory& checkpoint, const Manifest& manifest);

}  // namespace megalith
