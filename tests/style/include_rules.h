// The one direction of includes, as a function of a file's path and text, so that the rules themselves can be tested:
//   core:   base <- device <- tensor <- ops <- layers <- { model, optim, data, checkpoint }
//   above:  core <- parallel <- { moe, fsdp, offload, graphs } <- apps;   tests include everything, nobody includes
//   tests
// and where the headers of MPI, NCCL, CUDA, Eigen and the slow parsers may appear.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace megalith::style {

// One line per breach, "core/base/a.h:3: ...". `path` is relative to the repository's root with forward slashes.
std::vector<std::string> check_includes(std::string_view path, std::string_view text);

// One line for each call, outside of core/base and tests, that touches a file without the one small layer for it.
std::vector<std::string> check_file_access(std::string_view path, std::string_view text);

// One line for each source or header of the build without CUDA that reaches a header of CUDA or NCCL, whatever #if
// stands before: such a build would depend on what is installed; and for each file above core/device that asks which
// of the two builds it is in. `texts` are the project's files by path.
std::vector<std::string> check_cpu_build(const std::map<std::string, std::string>& texts);

// One line where more sources of the product than its limit reach a header that changes often: a field there should
// rebuild few objects.
std::vector<std::string> check_readers(const std::map<std::string, std::string>& texts);

}  // namespace megalith::style
