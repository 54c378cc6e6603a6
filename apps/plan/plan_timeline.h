// What plan --timeline draws: the actions of a training step over time.
#pragma once

#include <string>

#include "apps/config/options.h"
#include "core/reports/timeline_picture.h"
#include "parallel/cost/rates.h"

namespace megalith {

// The actions that --print-actions lists, of each stage's first rank, at the times that the rates give; of a long step
// with as few microbatches as show the schedule's pattern.
TimelinePicture plan_timeline(const Options& options, int world, const Rates& rates);

}  // namespace megalith
