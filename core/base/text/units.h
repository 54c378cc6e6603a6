// Numbers with units for people.
#pragma once

#include <cstdint>
#include <string>

namespace megalith {

// Formats "512", "12.3 k", "4.56 M", "1.24 B" or "3.00 T".
std::string with_unit(double value);
// Formats "45s", "1m 23s", "2h 03m" or "3d 04h".
std::string duration(double seconds);
// Formats "512 B" or "12.3 MiB".
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
