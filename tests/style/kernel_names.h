// A profile shows kernels by name: each kernel of core/ops and moe/ops begins with the name of its op.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace megalith::style {

// One line for each kernel whose name does not begin with the kName of an op. `texts` are the project's files by path.
std::vector<std::string> check_kernel_names(const std::map<std::string, std::string>& texts);

}  // namespace megalith::style
