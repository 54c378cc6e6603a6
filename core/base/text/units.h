// Numbers with units for people.
#pragma once

#include <cstdint>
#include <string>

namespace megalith {

// "512", "12.3 k", "4.56 M", "1.24 B", "3.00 T"
std::string with_unit(double value);
// "45s", "1m 23s", "2h 03m", "3d 04h"
std::string duration(double seconds);
// "512 B", "12.3 MiB"
std::string bytes_text(std::int64_t bytes);

template <class Bytes>
constexpr double mib(Bytes bytes) {
  return static_cast<double>(bytes) / (1 << 20);
}
template <class Bytes>
constexpr double gib(Bytes bytes) {
  return static_cast<double>(bytes) / (1 << 30);
}

}  // namespace megalith
