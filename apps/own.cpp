// Custom flags, layers and hooks of train, plan, generate and convert; apps/config/own.h describes each function. This
// file adds nothing; tests/own/own.cpp adds a layer with its flag and a hook.
#include "apps/config/own.h"

namespace megalith {

std::vector<OwnFlag> own_flags() { return {}; }

void check_own(const Options&) {}

OwnSegmentFactory own_segments(const Options&) { return nullptr; }

void add_own_hooks(Rank&) {}

}  // namespace megalith
