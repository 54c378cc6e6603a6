// Limits of this process's memory that the shell sets (Linux). A process does not see the limits of control groups or
// of the machine: the kernel kills it.
#pragma once

#include <cstddef>
#include <limits>
#include <optional>
#include <string_view>

namespace megalith {

struct MemoryLimit {
  const char* flag;  // flag of the shell's ulimit
  const char* what;
  std::size_t bytes, used;  // used: peak so far

  bool leaves(std::size_t wanted) const { return used <= bytes && wanted <= bytes - used; }
};

// Returns the exceeded limit with the fewest bytes left, if any is exceeded. Does not allocate.
inline constexpr std::size_t kUnknownBytes = std::numeric_limits<std::size_t>::max();
enum class MemoryKind { kPageable, kLocked };
std::optional<MemoryLimit> met_limit(std::size_t wanted, MemoryKind kind = MemoryKind::kPageable);
std::optional<MemoryLimit> met_limit_of_thread();  // for the stack of one more thread

// Text with the limit and the advice to raise it. Does not allocate, since memory may be exhausted.
class LimitText {
 public:
  explicit LimitText(const MemoryLimit& limit);
  std::string_view view() const { return {text_, size_}; }

 private:
  char text_[256];
  std::size_t size_;
};

}  // namespace megalith
