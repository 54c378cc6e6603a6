// Where ranks share out experts: how many rows of others a rank expects, and has room for, and the work and traffic of
// those that are expected.
#pragma once

#include <optional>

#include "apps/config/options.h"
#include "apps/config/run_config.h"
#include "core/instruments/access.h"
#include "core/instruments/timeline.h"
#include "moe/expert_room.h"

namespace megalith {

struct ExpertRows {
  RoutedSizes sizes;
  MeanRows mean;    // of a microbatch in a layer, with all experts chosen alike; arrived: of allgather all tokens
  ExpertRoom room;  // likewise
  double sent = 0;  // tokens, with choices of experts of other ranks, once for each of these; of allgather all
};
// Nothing where each rank has all experts.
std::optional<ExpertRows> expert_rows(const Options& options, const RunConfig& config);

// Ops take what they are given memory for; here of bounded rows those that are expected.
Access with_expected_rows(Access access, const ExpertRows& rows);
Timeline with_expected_rows(const Timeline& timeline, const ExpertRows& rows);

}  // namespace megalith
