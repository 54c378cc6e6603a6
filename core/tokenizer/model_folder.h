// The small files of a folder in which Hugging Face transformers keep a model.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace megalith {

// Such a file goes into checkpoints and exports, so a link in a folder from a stranger must not reach other files: it
// may lead to below the folder, or, as in the hub's cache, from CACHE/snapshots/REVISION to below CACHE/blobs. Error
// kFileIo for others and for what cannot be read; kFormat for more than `max_bytes`.
std::string read_model_file(const std::string& folder, std::string_view name, std::uint64_t max_bytes);

}  // namespace megalith
