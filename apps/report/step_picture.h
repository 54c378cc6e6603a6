// How a picture of a training step shows its actions, and the picture of a step that train --trace recorded.
#pragma once

#include <string>

#include "core/reports/timeline_picture.h"
#include "parallel/pipeline_parallel/schedule.h"

namespace megalith {

BoxKind box_kind_of(ActionKind kind);

// The last step of the trace file, which ran without graphs: boxes of all actions and of other streams' work.
TimelinePicture picture_of_trace(const std::string& path);

}  // namespace megalith
