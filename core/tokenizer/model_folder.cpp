#include "core/tokenizer/model_folder.h"

#include <fmt/format.h>

#include <vector>

#include "core/base/files/file.h"

namespace megalith {

std::string read_model_file(const std::string& folder, std::string_view name, std::uint64_t max_bytes) {
  constexpr std::string_view kSnapshots = "/snapshots/";
  std::vector<std::string> roots = {folder};
  const std::string real = real_path(folder);
  const std::size_t snapshots = real.rfind(kSnapshots);
  if (snapshots != std::string::npos) roots.push_back(real.substr(0, snapshots) + "/blobs");
  return read_file_below(fmt::format("{}/{}", folder, name), roots, max_bytes);
}

}  // namespace megalith
