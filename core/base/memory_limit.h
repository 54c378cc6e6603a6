// Limits of this process's memory, which the shell sets (Linux). What a control group or the machine lacks is not
// reported to a process: it is ended.
#pragma once

#include <cstddef>
#include <limits>
#include <optional>
#include <string_view>

namespace megalith {

struct MemoryLimit {
  const char* flag;  // of the shell's ulimit
  const char* what;
  std::size_t bytes, used;  // used: at most so far

  bool leaves(std::size_t wanted) const { return used <= bytes && wanted <= bytes - used; }
};

// The limit that leaves the least room, if it leaves less than was asked for. Allocates nothing.
inline constexpr std::size_t kUnknownBytes = std::numeric_limits<std::size_t>::max();
enum class MemoryKind { kPageable, kLocked };
std::optional<MemoryLimit> met_limit(std::size_t wanted, MemoryKind kind = MemoryKind::kPageable);
std::optional<MemoryLimit> met_limit_of_thread();  // by the stack of one more

// What it allows, and to raise it. No allocation either, which may be what failed.
class LimitText {
 public:
  explicit LimitText(const MemoryLimit& limit);
  std::string_view view() const { return {text_, size_}; }

 private:
  char text_[256];
  std::size_t size_;
};

}  // namespace megalith
