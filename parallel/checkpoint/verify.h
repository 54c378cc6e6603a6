// Is a checkpoint directory what its manifest says?
#pragma once

#include "core/base/file.h"
#include "parallel/checkpoint/manifest.h"

namespace megalith {

// Each of these fails with kFormat or kFileIo, naming the file.

Manifest read_manifest(const Directory& checkpoint);

// Reads the files `first`, `first + stride`, ... and compares sizes, all hashes and each file's own table of tensors.
void verify_rank_files(const Directory& checkpoint, const Manifest& manifest, int first, int stride);

// The same for the files beside tensors and state.
void verify_small_files(const Directory& checkpoint, const Manifest& manifest);

// The bytes of one of those, checked against its hash.
std::string read_small_file(const Directory& checkpoint, const Manifest& manifest, const std::string& name);

// Compares sizes only, of all files.
void verify_sizes(const Directory& checkpoint, const Manifest& manifest);

// Text of state.json, checked against its hash.
std::string read_state_text(const Directory& checkpoint, const Manifest& manifest);

}  // namespace megalith
