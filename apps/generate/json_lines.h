// Lines of a user's file that generate reads, and the file of JSON lines that it writes.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "core/base/files/file.h"
#include "core/base/files/output_file.h"

namespace megalith {

// Calls `visit` with each line that is not blank, and with its place FILE:LINE for errors. The file may be a pipe.
// Errors: kFileIo for an unreadable file, kFormat for a line above 64 MiB.
void for_each_line(const std::string& path,
                   const std::function<void(std::string_view line, const std::string& place)>& visit);

// Text under a key. Error kFormat for another type or, if it must not be empty, for an empty text.
std::string text_under(const nlohmann::json& object, const std::string& key, const std::string& place,
                       bool may_be_empty = true);

// Object of a line. Error kFormat for other JSON. Members that nobody reads are ignored.
nlohmann::json parse_line(std::string_view line, const std::string& place);

// The file of --results. It appears when it is complete, except at a pipe or device, which gets each line at once.
class ResultsFile {
 public:
  explicit ResultsFile(const std::string& path);  // empty: none

  bool is_open() const { return atomic_ != nullptr || stream_.is_open(); }
  void add(const nlohmann::ordered_json& result);
  void finish();

 private:
  std::unique_ptr<OutputFile> atomic_;
  File stream_;
};

}  // namespace megalith
