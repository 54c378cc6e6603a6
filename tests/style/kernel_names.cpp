#include "tests/style/kernel_names.h"

#include <algorithm>
#include <iterator>
#include <regex>
#include <set>
#include <string_view>

namespace megalith::style {

namespace {

// Kernels of several ops. Those of norms have their op as a template argument.
constexpr std::string_view kOfSeveralOps[] = {"check_indices", "norm_forward", "norm_backward"};

bool of_ops(const std::string& path) { return path.starts_with("core/ops/") || path.starts_with("moe/ops/"); }

}  // namespace

std::vector<std::string> check_kernel_names(const std::map<std::string, std::string>& texts) {
  static const std::regex kOp(R"re((?:kName = |MEGALITH_OP(?:_WITH_WORKSPACE)?\(\w+, )"(\w+)")re"),
      kKernel(R"(__global__ void\s+(?:__launch_bounds__\((?:[^()]|\([^()]*\))*\)\s+)?(\w+)\()");
  std::set<std::string> names(std::begin(kOfSeveralOps), std::end(kOfSeveralOps));
  const auto for_each = [](const std::string& text, const std::regex& pattern, const auto& visit) {
    for (std::sregex_iterator match(text.begin(), text.end(), pattern), end; match != end; ++match) visit(*match);
  };
  for (const auto& [path, text] : texts) {
    if (of_ops(path) && path.ends_with(".h")) for_each(text, kOp, [&](const std::smatch& m) { names.insert(m[1]); });
  }
  std::vector<std::string> breaches;
  for (const auto& [path, text] : texts) {
    if (!of_ops(path)) continue;
    for_each(text, kKernel, [&, &file = path](const std::smatch& match) {
      const std::string kernel = match[1];
      const bool known = std::any_of(names.begin(), names.end(), [&](const std::string& op) {
        return kernel.starts_with(op + "_") && kernel.ends_with("_kernel");
      });
      if (!known) breaches.push_back(file + ": " + kernel + ": expected the name of an op first, and _kernel last");
    });
  }
  return breaches;
}

}  // namespace megalith::style
