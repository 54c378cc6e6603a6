// What a user adds to train, plan, generate and convert without an edit elsewhere: apps/own.cpp defines these
// functions, and is the one file to change. CONTRIBUTING.md has the steps; tests/own is an example that runs.
#pragma once

#include <vector>

#include "apps/config/options.h"
#include "core/model/gpt.h"

namespace megalith {

struct Rank;

// Flags of one's own, read by Options::own_value. train and plan take them on the command line and from --config, a
// checkpoint keeps them, and generate and convert read them there. Empty: none.
std::vector<OwnFlag> own_flags();

// Throws by refuse_usage where the flags do not fit together or the layout. The options are complete.
void check_own(const Options& options);

// The segment behind the MLP or the experts of each layer, in all programs; null: no layer has one. What it reads of
// the options it copies.
OwnSegmentFactory own_segments(const Options& options);

// Adds hooks, before anything runs, to a rank of train and to those that plan records (rank.is_plan()).
void add_own_hooks(Rank& rank);

}  // namespace megalith
