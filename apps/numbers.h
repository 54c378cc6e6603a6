// Numbers as people read them, in the log and the banner of train.
#pragma once

#include <string>

namespace megalith {

// "512", "12.3 k", "4.56 M", "1.24 B", "3.00 T"
std::string with_unit(double value);

// "45s", "1m 23s", "2h 03m", "3d 04h"
std::string duration(double seconds);

}  // namespace megalith
