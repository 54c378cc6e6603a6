// Custom code of a user in train, plan, generate and convert. apps/own.cpp defines these functions and is the only file
// to change. CONTRIBUTING.md describes the steps; tests/own is an example that runs.
#pragma once

#include <vector>

#include "apps/config/options.h"
#include "core/model/gpt.h"

namespace megalith {

struct Rank;

// Custom flags; Options::own_value reads them. train and plan accept them on the command line and in --config, and a
// checkpoint stores them for generate and convert. Empty: none.
std::vector<OwnFlag> own_flags();

// Calls refuse_usage if flags are incompatible with each other or with the layout. The options are complete.
void check_own(const Options& options);

// Factory of the segment after the MLP or the experts of each layer, in all programs; null: no segments. It copies what
// it reads of the options.
OwnSegmentFactory own_segments(const Options& options);

// Adds hooks to a rank of train, and to the ranks that plan records (rank.is_plan()), before anything runs.
void add_own_hooks(Rank& rank);

}  // namespace megalith
