// Rows of expert-parallel ranks: the expected rows of other ranks, the capacity for them, and the work and traffic of
// the expected rows.
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
  MeanRows mean;    // per microbatch and layer under uniform routing; arrived: with allgather all tokens
  ExpertRoom room;  // per microbatch and layer
  double sent = 0;  // tokens to other ranks, counted once per rank; with allgather all tokens
};
// Rows of experts; nullopt if each rank has all experts.
std::optional<ExpertRows> expert_rows(const Options& options, const RunConfig& config);

// Access whose bounded rows are the expected rows; ops process the rows that they have memory for.
Access with_expected_rows(Access access, const ExpertRows& rows);
Timeline with_expected_rows(const Timeline& timeline, const ExpertRows& rows);

}  // namespace megalith
