// Progress of prepare on standard error: a status line on a terminal, and otherwise a message each 5 seconds.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

namespace megalith {

// Formats "[====>   ] 50% of 200.0 MB | 25.0 MB/s | 4s left". Bytes are those of the files as they are stored. Without
// `all_bytes`, 0, the text is "100.0 MB read | 25.0 MB/s".
std::string format_prepare_progress(std::uint64_t bytes, std::uint64_t all_bytes, double seconds);

class PrepareProgress {
 public:
  explicit PrepareProgress(std::uint64_t all_bytes);
  ~PrepareProgress();  // erases the status line
  PrepareProgress(const PrepareProgress&) = delete;
  PrepareProgress& operator=(const PrepareProgress&) = delete;

  void add(std::size_t documents, std::int64_t text_bytes);
  void show(std::uint64_t bytes_read);  // at most every 0.1 seconds

 private:
  std::uint64_t all_bytes_;
  bool is_terminal_;
  std::chrono::steady_clock::time_point start_;
  double next_ = 0;  // seconds after start_
  std::size_t documents_ = 0;
  std::int64_t text_bytes_ = 0;
};

}  // namespace megalith
