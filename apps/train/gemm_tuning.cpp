#include "apps/train/gemm_tuning.h"

#include <fmt/format.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/files/fault.h"
#include "core/base/files/output_file.h"
#include "core/base/log.h"
#include "core/ops/gemm/gemm_algorithms_cuda.h"

namespace megalith {

namespace {

constexpr const char* kScope = "gemm_cache";
constexpr std::uint64_t kMaxBytes = std::uint64_t{64} << 20;

using Entries = std::map<std::string, std::string>;

std::string to_text(const Entries& entries) { return nlohmann::json(entries).dump(1) + "\n"; }

Entries from_text(const std::string& text) {
  const nlohmann::json value = nlohmann::json::parse(text, nullptr, false);
  Entries entries;
  if (!value.is_object()) return entries;
  for (const auto& [key, digits] : value.items()) {
    if (digits.is_string()) entries[key] = digits.get<std::string>();
  }
  return entries;
}

std::string cache_file() {
  const std::string folder = cache_folder();
  return folder.empty() ? "" : folder + "/gemm_algorithms.json";
}

// A cache that cannot be read is measured again.
Entries read_cache() {
  const FaultScope scope(kScope);
  try {
    const std::string path = cache_file();
    if (path.empty() || !Directory::exists(path)) return {};
    return from_text(read_whole_file(path, kMaxBytes));
  } catch (const Error& error) {
    log_warning(fmt::format("{}: GEMM algorithms are measured again", error.what()));
    return {};
  }
}

// Whole or not at all; what other runs added meanwhile stays.
void write_cache(const Entries& entries) {
  const std::string path = cache_file();
  if (path.empty()) return;
  Entries all = read_cache();
  for (const auto& [key, value] : entries) all[key] = value;
  const FaultScope scope(kScope);
  try {
    Directory::create(cache_folder());
    OutputFile file(path, kScope);
    file.write(to_text(all));
    file.commit();
  } catch (const Error& error) {
    log_warning(fmt::format("{}: the next run measures the GEMM algorithms again", error.what()));
  }
}

}  // namespace

std::string cache_folder() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value != nullptr ? value : "");
  };
  if (const std::string own = variable("MEGALITH_CACHE"); !own.empty()) return own;
  if (const std::string shared = variable("XDG_CACHE_HOME"); !shared.empty()) return shared + "/megalith";
  const std::string home = variable("HOME");
  return home.empty() ? "" : home + "/.cache/megalith";
}

void choose_gemm_algorithms(Rank& rank, Step& step, Communicator& world, bool deterministic, Entries& entries) {
  CudaStream* const stream = rank.streams.compute.cuda();
  if (stream == nullptr) return;
  const auto table = make_gemm_algorithms(*stream, deterministic ? GemmChoice::kFirst : GemmChoice::kMeasured);
  use_gemm_algorithms(*stream, table);
  if (deterministic) {
    entries.clear();
    step.warm_up();
    return;
  }
  const bool main = world.rank() == 0;
  table->load(from_text(world.host_broadcast(main ? to_text(read_cache()) : "", 0)), cache_file());
  table->load(entries, "the checkpoint");
  step.warm_up();
  // A stage has GEMMs that others have not: the first replica of each measures.
  const bool measures = groups_of_steps(rank).front()->rank() == 0;
  const std::vector<GemmSignature> pending = table->pending();
  const GemmScratch scratch{rank.memory.arena.block(), rank.memory.arena.block_bytes()};
  const bool measured = measures && !pending.empty();
  if (measured) {
    const GemmTuning tuning = tune(*stream, *table, scratch);
    log_info(fmt::format("measured the algorithms of {} GEMMs: {:.3f} ms in place of {:.3f} ms, one call each{}",
                         tuning.measured, tuning.chosen_seconds * 1e3, tuning.first_seconds * 1e3,
                         tuning.too_large > 0 ? fmt::format("; {} too large to measure", tuning.too_large) : ""));
  }
  entries.clear();
  for (const std::string& text : world.host_all_gather(measures ? to_text(table->entries()) : "")) {
    if (!text.empty()) entries.merge(from_text(text));
  }
  if (world.host_any(measured) && main) write_cache(entries);
  table->load(entries, "the first replica");
  load_gemm_kernels(*stream, *table, pending, scratch);
}

}  // namespace megalith
