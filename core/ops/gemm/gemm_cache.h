// The user's file of measured GEMM algorithms, and the text form of its entries.
#pragma once

#include <map>
#include <string>

namespace megalith {

using GemmEntries = std::map<std::string, std::string>;  // as of GemmAlgorithms::entries()

// Returns gemm_algorithms.json in $MEGALITH_CACHE, $XDG_CACHE_HOME/megalith or ~/.cache/megalith; empty if none is set.
std::string gemm_cache_file();

std::string gemm_entries_text(const GemmEntries& entries);  // JSON
GemmEntries gemm_entries_from(const std::string& text);     // skips malformed entries

// Reads the cache. An unreadable cache is empty, with a warning: algorithms are measured again.
GemmEntries read_gemm_cache();
// Writes atomically and keeps entries that other runs added meanwhile. A failure is a warning.
void write_gemm_cache(const GemmEntries& entries);

}  // namespace megalith
