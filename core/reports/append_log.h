// File of records that grows during a run while other programs read it. If a write fails, for example on a full disk,
// the rest is kept and written first the next time. All records are thus complete and in order.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/files/file.h"

namespace megalith {

class AppendLog {
 public:
  // `name`: flag of the file, for messages. `scope`: literal that names the fault sites.
  AppendLog(File file, std::string name, const char* scope);
  ~AppendLog();  // tries once more and reports what is lost
  AppendLog(const AppendLog&) = delete;
  AppendLog& operator=(const AppendLog&) = delete;

  // Never fails: the first failure is a warning, the recovery a note. At most 16 MiB wait to be written; later records
  // are lost, and the note reports their number. Returns whether the record is written or kept.
  bool write(std::string_view record);

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
