// Lower bound of an arena, without a layout.
#pragma once

#include "core/memory/arena.h"

namespace megalith {

// Plan of `recording` as plan_arena makes it, but without slots, and with the bytes alive at once as peak_bytes.
ArenaPlan plan_live_bytes(const Timeline& timeline, const Arena& recording, const ArenaPlanSpec& spec);

}  // namespace megalith
