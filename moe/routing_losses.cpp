#include "moe/routing_losses.h"

#include <algorithm>

#include "core/ops/elementwise/elementwise.h"
#include "moe/ops/expert_bias.h"
#include "moe/ops/route_rows.h"

namespace megalith {

// Returns this rank's rows, split by sequence for a per-sequence loss. Under sequence parallelism a sequence may have
// no rows here.
std::vector<RoutingLosses::Piece> RoutingLosses::pieces(const Microbatch& mb, const Tensor& choice) const {
  const std::int64_t tokens = choice.size(0);
  if (spec_.sequence_aux_coeff == 0) return {{.count = tokens}};
  std::vector<Piece> pieces;
  for (std::int64_t sequence = 0; sequence < mb.sequences; ++sequence) {
    const std::int64_t begin = sequence * mb.seq_length - site_.split.row_part() * tokens;
    const std::int64_t first = std::clamp<std::int64_t>(begin, 0, tokens);
    const std::int64_t end = std::clamp<std::int64_t>(begin + mb.seq_length, 0, tokens);
    pieces.push_back({.first = first, .count = end - first});
  }
  return pieces;
}

// Returns the counts' offsets, one row per piece.
Tensor RoutingLosses::sequence_offsets(const Context& ctx, const std::vector<Piece>& pieces,
                                       const Tensor& choice) const {
  const std::int64_t entries = site_.experts + 1;
  const Tensor offsets = ctx.empty({std::ssize(pieces), entries}, DType::kInt32, "expert counts");
  for (std::int64_t p = 0; p < std::ssize(pieces); ++p) {
    const Piece& piece = pieces[static_cast<std::size_t>(p)];
    const Shape of_piece{piece.count, choice.size(1)};
    launch(ctx, ExpertOffsets{.choice = choice.slice(0, piece.first, piece.count),
                              .offsets = offsets.slice(0, p, 1).view({entries}),
                              .token = ctx.empty({of_piece.numel()}, DType::kInt32, "tokens of routed rows"),
                              .position = ctx.empty(of_piece, DType::kInt32, "rows of tokens"),
                              .all_experts = site_.experts});
  }
  if (spec_.sum_counts) spec_.sum_counts(ctx, offsets);
  return offsets;
}

void RoutingLosses::set_loads(const Context& ctx, const Microbatch& mb, const Chosen& chosen,
                              std::vector<Piece>& pieces) const {
  const Tensor loads = ctx.empty({std::ssize(pieces), site_.experts}, DType::kFp32, "relative loads");
  const Tensor& own = chosen.offsets;
  bool adds = false;
  const auto add = [&](const Tensor& offsets, float coeff, const Tensor& counted) {
    launch(ctx.compute,
           RelativeLoads{.offsets = offsets, .counted = counted, .loads = loads, .coeff = coeff, .adds = adds});
    adds = true;
  };
  const auto summed = [&](const SumCounts& sum) {
    const Tensor row = own.view({1, own.numel()});
    if (!sum) return row;
    const Tensor all = ctx.empty(row.shape, row.dtype, "expert counts");
    launch(ctx.compute, Copy{.src = row, .dst = all});
    sum(ctx, all);
    return all;
  };
  if (spec_.aux_coeff != 0) add(summed(spec_.sum_counts), spec_.aux_coeff, {});
  if (spec_.sequence_aux_coeff != 0) add(sequence_offsets(ctx, pieces, chosen.choice), spec_.sequence_aux_coeff, {});
  if (spec_.global_aux_coeff != 0) {
    require(mb.balance_counts.present(), "Router: the global-batch loss requires balance_counts");
    const Tensor counted = mb.balance_counts.slice(0, site_.expert_layer, 1).view({site_.experts});
    const Tensor all = summed(spec_.sum_all_counts);
    add(all, spec_.global_aux_coeff, counted);
    launch(ctx.compute, CountExpertRows{.offsets = all.view({site_.experts + 1}), .counts = counted});
  }
  for (std::int64_t p = 0; p < std::ssize(pieces); ++p)
    pieces[static_cast<std::size_t>(p)].loads = loads.slice(0, p, 1).view({site_.experts});
}

std::vector<RoutingLosses::Piece> RoutingLosses::add(const Context& ctx, const Microbatch& mb,
                                                     const Chosen& chosen) const {
  std::vector<Piece> all = pieces(mb, chosen.choice);
  if (balances()) set_loads(ctx, mb, chosen, all);
  for (const Piece& piece : all) {
    if (!any()) break;
    launch(ctx, RouterLosses{.logits = chosen.logits.slice(0, piece.first, piece.count),
                             .choice = mb.positions ? chosen.choice.slice(0, piece.first, piece.count) : Tensor{},
                             .loads = piece.loads,
                             .aux = balances() ? mb.sum(StepSum::kAuxLoss, site_.expert_layer) : Tensor{},
                             .z = spec_.z_coeff != 0 ? mb.sum(StepSum::kZLoss, site_.expert_layer) : Tensor{},
                             .score = site_.score,
                             .z_scale = spec_.z_coeff});
  }
  return all;
}

}  // namespace megalith
