// std::source_location for a clang that lacks the builtin which libstdc++ asks for. For the fuzz targets only.
#pragma once

#include <version>

#if !__has_builtin(__builtin_source_location)
namespace std {
struct source_location {
  static constexpr source_location current(const char* file = __builtin_FILE(), unsigned line = __builtin_LINE()) {
    source_location place;
    place.file_ = file;
    place.line_ = line;
    return place;
  }
  constexpr const char* file_name() const { return file_; }
  constexpr unsigned line() const { return line_; }

 private:
  const char* file_ = "";
  unsigned line_ = 0;
};
}  // namespace std
#endif
