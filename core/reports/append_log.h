// A file of records that grows during a run, and that other programs read meanwhile. A disk that is full for a while
// costs it nothing: what could not be written is kept and goes first the next time, from the byte on where it broke
// off, so that each record is there whole and in order.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/files/file.h"

namespace megalith {

class AppendLog {
 public:
  // `name`: its flag, for messages; `scope` names its fault sites, a literal.
  AppendLog(File file, std::string name, const char* scope);
  ~AppendLog();  // tries once more; a note says what is lost
  AppendLog(const AppendLog&) = delete;
  AppendLog& operator=(const AppendLog&) = delete;

  // Never fails: the first time that it cannot be written is a warning, the time that it can again a note. What waits
  // takes at most 16 MiB; later records are then lost, which the note tells.
  void write(std::string_view record);

 private:
  void flush();

  File file_;
  std::string name_;
  const char* scope_;
  std::string waiting_;    // may begin within a record
  std::int64_t lost_ = 0;  // records
  bool is_failing_ = false;
};

}  // namespace megalith
