#include "tests/style/include_rules.h"

#include <algorithm>
#include <array>
#include <optional>
#include <regex>
#include <set>
#include <sstream>

namespace megalith::style {

namespace {

bool starts_with_any(std::string_view text, std::initializer_list<std::string_view> prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(), [&](std::string_view p) { return text.starts_with(p); });
}

// A room's height; a file may include rooms that are lower, and its own.
struct Room {
  std::string_view folder;
  int height;
};
constexpr std::array kRooms = {
    Room{"core/base/text/", 0},
    Room{"core/base/files/", 2},
    Room{"core/base/machine/", 3},
    Room{"core/base/", 1},
    Room{"core/flags/", 4},
    Room{"core/reports/", 4},
    Room{"core/instruments/", 4},
    Room{"core/device/", 5},
    Room{"core/memory/", 6},
    Room{"core/tensor/", 7},
    Room{"core/ops/attention/", 11},
    Room{"core/ops/gemm/", 10},
    Room{"core/ops/elementwise/", 9},
    Room{"core/ops/loss/", 9},
    Room{"core/ops/norm/", 9},
    Room{"core/ops/optim/", 9},
    Room{"core/ops/token/", 9},
    Room{"core/ops/no_cuda/", 12},
    Room{"core/ops/", 8},
    Room{"core/layers/", 12},
    Room{"core/model/", 13},
    Room{"core/optim/", 13},
    Room{"core/data/", 13},
    Room{"core/tokenizer/", 13},
    Room{"core/checkpoint/", 13},
    Room{"core/hf/", 14},
    Room{"core/chat/", 14},
    Room{"parallel/", 14},
    Room{"moe/ops/", 14},
    Room{"moe/", 15},
    Room{"fsdp/", 15},
    Room{"offload/", 15},
    Room{"graphs/", 15},
    Room{"apps/program/", 16},
    Room{"apps/config/", 16},
    Room{"apps/flags/", 17},
    Room{"apps/run/", 17},
    Room{"apps/cost/", 18},
    Room{"apps/checkpoint/", 18},
    Room{"apps/metrics/", 18},
    Room{"apps/prepare/", 18},
    Room{"apps/planning/", 19},
    Room{"apps/report/", 19},
    Room{"apps/generate/", 19},
    Room{"apps/convert/", 19},
    Room{"apps/forecast/", 20},
    Room{"apps/summary/", 20},
    Room{"apps/plan/", 21},
    Room{"apps/train/", 21},
    Room{"apps/", 18},  // own.cpp and files of the same folder
    Room{"tests/", 22},
};

const Room* room_of(std::string_view path) {
  const auto it = std::find_if(kRooms.begin(), kRooms.end(), [&](const Room& r) {
    return path.starts_with(r.folder) && (r.folder != "apps/" || path.find('/', r.folder.size()) == path.npos);
  });
  return it == kRooms.end() ? nullptr : &*it;
}

// Inside parallel: watch <- comm <- mesh <- the rest, and comm <- comm/mpi <- comm/nccl, which includes neither mesh
// nor the rest.
int parallel_height(std::string_view path) {
  constexpr std::array kFolders = {"parallel/watch/", "parallel/comm/", "parallel/mesh/"};
  if (path.starts_with("parallel/comm/mpi/")) return 4;
  if (path.starts_with("parallel/comm/nccl/")) return 5;
  for (std::size_t height = 0; height < kFolders.size(); ++height)
    if (path.starts_with(kFolders[height])) return static_cast<int>(height);
  return 3;
}

std::optional<std::string> check_project_include(std::string_view path, std::string_view target) {
  const Room* from = room_of(path);
  const Room* to = room_of(target);
  if (path == "apps/program/version.cpp" && target == "megalith_commit.h") return std::nullopt;  // made by the build
  if (to == nullptr) return "quoted includes are rooted at the repository and name a file of a known room";
  if (target.ends_with(".cpp") || target.ends_with(".cu")) return "a source file is compiled, never included";
  if (from->folder == to->folder) {
    const bool of_library = starts_with_any(path, {"parallel/comm/mpi/", "parallel/comm/nccl/"});
    const bool is_known = !of_library || starts_with_any(target, {"parallel/comm/", "parallel/watch/"});
    if (from->folder == "parallel/" && (!is_known || parallel_height(target) > parallel_height(path))) {
      return "inside parallel the direction is watch <- comm <- mesh <- the rest, and comm <- comm/mpi <- comm/nccl";
    }
    return std::nullopt;
  }
  if (to->height < from->height) return std::nullopt;
  if (to->height == from->height) return "siblings never include each other; what they share belongs below them";
  return "includes point from apps down to core/base, never upwards";
}

bool is_cuda_header(std::string_view target) {
  return starts_with_any(
      target, {"cuda", "cublas", "cudnn", "nccl", "nvtx3/", "cub/", "thrust/", "cooperative_groups", "driver_types"});
}

// Where a library's headers may appear.
constexpr const char* kFileLayer =
    "files are touched through core/base/files/file.h, output_file.h and mapped_file.h alone";

std::optional<std::string> check_system_include(std::string_view path, std::string_view target) {
  const std::string_view name = path.substr(path.rfind('/') + 1);
  const bool header = path.ends_with(".h") || path.ends_with(".cuh");
  const bool test = path.starts_with("tests/");
  const bool nccl_file = path.starts_with("parallel/comm/nccl/nccl_");
  if (starts_with_any(target, {"mpi.h", "mpi-ext.h"})) {
    if (path == "parallel/comm/mpi/mpi_exchange.h" || (path.starts_with("parallel/comm/mpi/mpi_") && !header))
      return std::nullopt;
    return "MPI appears only in parallel/comm/mpi/mpi_*.cpp and mpi_exchange.h";
  }
  if (target == "nccl.h") {
    if (nccl_file && !header) return std::nullopt;
    return "NCCL appears only in parallel/comm/nccl/nccl_*.cpp";
  }
  if (is_cuda_header(target)) {
    if (nccl_file || path.starts_with("core/device/cuda/") || name.ends_with("_cuda.cu") ||
        name.ends_with("_cuda.cpp") || name.ends_with(".cuh") || (test && name.starts_with("cuda_"))) {
      return std::nullopt;
    }
    return "CUDA appears only in core/device/cuda/, *_cuda.cu, *_cuda.cpp, *.cuh, parallel/comm/nccl/nccl_* and tests' "
           "cuda_*";
  }
  if (starts_with_any(target, {"Eigen/", "unsupported/Eigen/"})) {
    if (test) return std::nullopt;
    return "Eigen is for the references of the tests, which share no code with core/ops";
  }
  if (starts_with_any(target, {"fstream", "fcntl.h", "dirent.h", "sys/stat", "sys/file.h"})) {
    if (test || path.starts_with("core/base/")) return std::nullopt;
    return kFileLayer;
  }
  if (starts_with_any(target, {"gtest/", "gmock/", "benchmark/"})) {
    if (test) return std::nullopt;
    return "test libraries appear only in tests";
  }
  if (header && (starts_with_any(target, {"CLI/", "toml++/"}) || target == "nlohmann/json.hpp")) {
    return "this header costs seconds per file: include it in a source file (nlohmann/json_fwd.hpp is fine)";
  }
  return std::nullopt;
}

struct Include {
  std::string target;
  bool quoted = false;
};

std::optional<Include> parse_include(std::string_view line) {
  const auto skip_blanks = [&] {
    while (!line.empty() && (line.front() == ' ' || line.front() == '\t')) line.remove_prefix(1);
  };
  const auto skip = [&](std::string_view word) {
    skip_blanks();
    if (!line.starts_with(word)) return false;
    line.remove_prefix(word.size());
    return true;
  };
  if (!skip("#") || !skip("include")) return std::nullopt;
  skip_blanks();
  if (line.empty() || (line.front() != '"' && line.front() != '<')) return std::nullopt;
  const bool quoted = line.front() == '"';
  const std::size_t end = line.find(quoted ? '"' : '>', 1);
  if (end == std::string_view::npos) return std::nullopt;
  return Include{std::string(line.substr(1, end - 1)), quoted};
}

// As cmake/MegalithTargets.cmake chooses sources, and tests/style the headers that it compiles alone.
bool in_cpu_build(std::string_view path) {
  const std::string_view name = path.substr(path.rfind('/') + 1);
  if (!name.ends_with(".h") && !name.ends_with(".cpp")) return false;
  const bool test_of_cuda = path.starts_with("tests/") && name.starts_with("cuda_");
  return !test_of_cuda && !path.starts_with("core/device/cuda/") && !name.starts_with("nccl_") &&
         !name.ends_with("_cuda.cpp");
}

// The file that includes a CUDA header, among `path` and all that it includes; empty if none does.
std::string find_cuda_include(const std::map<std::string, std::string>& texts, const std::string& path,
                              std::set<std::string>& seen) {
  const auto file = texts.find(path);
  if (file == texts.end() || !seen.insert(path).second) return "";
  std::istringstream lines{file->second};
  for (std::string line; std::getline(lines, line);) {
    const std::optional<Include> include = parse_include(line);
    if (!include) continue;
    if (!include->quoted && is_cuda_header(include->target)) return path + " includes " + include->target;
    if (!include->quoted) continue;
    std::string found = find_cuda_include(texts, include->target, seen);
    if (!found.empty()) return found;
  }
  return "";
}

void add_reached(const std::map<std::string, std::string>& texts, const std::string& path,
                 std::set<std::string>& seen) {
  const auto file = texts.find(path);
  if (file == texts.end() || !seen.insert(path).second) return;
  std::istringstream lines{file->second};
  for (std::string line; std::getline(lines, line);) {
    const std::optional<Include> include = parse_include(line);
    if (include && include->quoted) add_reached(texts, include->target, seen);
  }
}

}  // namespace

std::vector<std::string> check_readers(const std::map<std::string, std::string>& texts) {
  struct Limit {
    const char* header;
    std::size_t most;
  };
  constexpr std::array kLimits = {Limit{"core/model/config.h", 40}};
  std::vector<std::string> breaches;
  for (const Limit& limit : kLimits) {
    std::size_t sources = 0;
    for (const auto& [path, text] : texts) {
      if (!path.ends_with(".cpp") || path.starts_with("tests/")) continue;
      std::set<std::string> seen;
      add_reached(texts, path, seen);
      sources += seen.count(limit.header);
    }
    if (sources <= limit.most) continue;
    breaches.push_back(std::string(limit.header) + ": " + std::to_string(sources) + " sources include it, at most " +
                       std::to_string(limit.most) + ": declare its types in headers instead");
  }
  return breaches;
}

std::vector<std::string> check_cpu_build(const std::map<std::string, std::string>& texts) {
  std::vector<std::string> breaches;
  for (const auto& [path, text] : texts) {
    const bool may_ask = path.starts_with("core/device/") || path.starts_with("tests/");
    if (!may_ask && text.find("cuda_built()") != std::string::npos)
      breaches.push_back(path + ": asks whether CUDA is built, which the linker decides (core/device/no_cuda)");
    if (!in_cpu_build(path)) continue;
    std::set<std::string> seen;
    const std::string found = find_cuda_include(texts, path, seen);
    if (!found.empty()) breaches.push_back(path + ": is part of the build without CUDA, and " + found);
  }
  return breaches;
}

std::vector<std::string> check_file_access(std::string_view path, std::string_view text) {
  // std::filesystem also works on paths as texts; "access" is a name of ops too.
  static const std::regex kCall(R"(\b(fopen|freopen|unlink|opendir|mkstemp)\()"
                                R"(|\baccess\([^;]*\b[FRWX]_OK\b)"
                                R"(|\bfilesystem::(?!path\b|absolute\b)\w+)");
  std::vector<std::string> breaches;
  if (path.starts_with("tests/") || path.starts_with("core/base/")) return breaches;
  std::istringstream lines{std::string(text)};
  std::string line;
  std::smatch match;
  for (int number = 1; std::getline(lines, line); ++number) {
    if (std::regex_search(line, match, kCall))
      breaches.push_back(std::string(path) + ":" + std::to_string(number) + ": " + match.str() + ": " + kFileLayer);
  }
  return breaches;
}

std::vector<std::string> check_includes(std::string_view path, std::string_view text) {
  std::vector<std::string> breaches;
  const auto report = [&](int line, const std::string& what) {
    breaches.push_back(std::string(path) + ":" + std::to_string(line) + ": " + what);
  };
  if (room_of(path) == nullptr) {
    report(1, "the file lies in no known room");
    return breaches;
  }
  std::istringstream lines{std::string(text)};
  std::string line;
  bool once = false;
  for (int number = 1; std::getline(lines, line); ++number) {
    once = once || line.starts_with("#pragma once");
    const std::optional<Include> include = parse_include(line);
    if (!include) continue;
    const std::optional<std::string> breach =
        include->quoted ? check_project_include(path, include->target) : check_system_include(path, include->target);
    if (breach) report(number, "includes " + include->target + ": " + *breach);
  }
  if ((path.ends_with(".h") || path.ends_with(".cuh")) && !once) report(1, "a header begins with #pragma once");
  return breaches;
}

}  // namespace megalith::style
