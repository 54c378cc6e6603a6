// The user's file of measured GEMM algorithms, and its entries as text.
#pragma once

#include <map>
#include <string>

namespace megalith {

using GemmEntries = std::map<std::string, std::string>;  // as GemmAlgorithms::entries()

// gemm_algorithms.json in $MEGALITH_CACHE, $XDG_CACHE_HOME/megalith or ~/.cache/megalith; empty where none is set.
std::string gemm_cache_file();

std::string gemm_entries_text(const GemmEntries& entries);  // JSON
GemmEntries gemm_entries_from(const std::string& text);     // what it has of them

// A cache that cannot be read is empty, and a warning: algorithms are measured again.
GemmEntries read_gemm_cache();
// Whole or not at all; what other runs added meanwhile stays. A failure is a warning.
void write_gemm_cache(const GemmEntries& entries);

}  // namespace megalith
