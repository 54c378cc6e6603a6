#include "apps/train/gemm_tuning.h"

#include <fmt/format.h>

#include "core/base/log.h"
#include "core/ops/gemm/gemm_algorithms_cuda.h"
#include "core/ops/gemm/gemm_cache.h"

namespace megalith {

void choose_gemm_algorithms(Rank& rank, Step& step, Communicator& world, bool deterministic, GemmEntries& entries) {
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
  table->load(gemm_entries_from(world.host_broadcast(main ? gemm_entries_text(read_gemm_cache()) : "", 0)),
              gemm_cache_file());
  table->load(entries, "the checkpoint");
  step.warm_up();
  // Stages have different GEMMs, so the first replica of each stage measures.
  const bool measures = groups_of_steps(rank).front()->rank() == 0;
  const std::vector<GemmSignature> pending = table->pending();
  const GemmScratch scratch{rank.memory.arena.block(), rank.memory.arena.block_bytes()};
  const bool measured = measures && !pending.empty();
  if (measured) {
    const GemmTuning tuning = tune(*stream, *table, scratch);
    log_info(fmt::format("measured the algorithms of {} GEMMs: {:.3f} ms instead of {:.3f} ms, one call each{}",
                         tuning.measured, tuning.chosen_seconds * 1e3, tuning.first_seconds * 1e3,
                         tuning.too_large > 0 ? fmt::format("; {} too large to measure", tuning.too_large) : ""));
  }
  entries.clear();
  for (const std::string& text : world.host_all_gather(measures ? gemm_entries_text(table->entries()) : "")) {
    if (!text.empty()) entries.merge(gemm_entries_from(text));
  }
  if (world.host_any(measured) && main) write_gemm_cache(entries);
  table->load(entries, "the first replica");
  load_gemm_kernels(*stream, *table, pending, scratch);
}

}  // namespace megalith
