#include "core/ops/gemm/gemm_cache.h"

#include <fmt/format.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/files/fault.h"
#include "core/base/files/output_file.h"
#include "core/base/log.h"

namespace megalith {

namespace {

constexpr const char* kScope = "gemm_cache";
constexpr std::uint64_t kMaxBytes = std::uint64_t{64} << 20;

// Returns $MEGALITH_CACHE, $XDG_CACHE_HOME/megalith or ~/.cache/megalith; empty if none is set.
std::string cache_folder() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value != nullptr ? value : "");
  };
  if (std::string own = variable("MEGALITH_CACHE"); !own.empty()) return own;
  if (const std::string shared = variable("XDG_CACHE_HOME"); !shared.empty()) return shared + "/megalith";
  const std::string home = variable("HOME");
  return home.empty() ? "" : home + "/.cache/megalith";
}

}  // namespace

std::string gemm_entries_text(const GemmEntries& entries) { return nlohmann::json(entries).dump(1) + "\n"; }

GemmEntries gemm_entries_from(const std::string& text) {
  const nlohmann::json value = nlohmann::json::parse(text, nullptr, false);
  GemmEntries entries;
  if (!value.is_object()) return entries;
  for (const auto& [key, digits] : value.items()) {
    if (digits.is_string()) entries[key] = digits.get<std::string>();
  }
  return entries;
}

std::string gemm_cache_file() {
  const std::string folder = cache_folder();
  return folder.empty() ? "" : folder + "/gemm_algorithms.json";
}

GemmEntries read_gemm_cache() {
  const FaultScope scope(kScope);
  try {
    const std::string path = gemm_cache_file();
    if (path.empty() || !Directory::exists(path)) return {};
    return gemm_entries_from(read_whole_file(path, kMaxBytes));
  } catch (const Error& error) {
    log_warning(fmt::format("{}: GEMM algorithms are measured again", error.what()));
    return {};
  }
}

void write_gemm_cache(const GemmEntries& entries) {
  const std::string path = gemm_cache_file();
  if (path.empty()) return;
  GemmEntries all = read_gemm_cache();
  for (const auto& [key, value] : entries) all[key] = value;
  const FaultScope scope(kScope);
  try {
    Directory::create(cache_folder());
    OutputFile file(path, kScope);
    file.write(gemm_entries_text(all));
    file.commit();
  } catch (const Error& error) {
    log_warning(fmt::format("{}: the next run measures the GEMM algorithms again", error.what()));
  }
}

}  // namespace megalith
