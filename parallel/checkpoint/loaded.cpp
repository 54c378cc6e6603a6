#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <set>

#include "core/base/counted.h"
#include "core/base/error.h"
#include "core/base/files/fault.h"
#include "core/checkpoint/printable.h"
#include "core/checkpoint/safetensors.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/checkpoint/verify.h"

namespace megalith {
namespace {

// Copies the parts of `runs` in a block at `offset` of the chunk, and drops completed runs. Returns the bytes copied.
std::size_t copy_runs(std::span<const CommonRun>& runs, std::uint64_t item, std::uint64_t offset,
                      std::span<const std::byte> block, std::span<std::byte> out) {
  const std::uint64_t end = offset + block.size();
  std::size_t copied = 0;
  for (; !runs.empty(); runs = runs.subspan(1)) {
    // The run is at bytes [from, to) of the chunk.
    const std::uint64_t from = static_cast<std::uint64_t>(runs.front().a_offset) * item;
    const std::uint64_t to = from + static_cast<std::uint64_t>(runs.front().count) * item;
    const std::uint64_t low = std::max(from, offset), high = std::min(to, end);
    if (low < high) {
      const std::uint64_t target = static_cast<std::uint64_t>(runs.front().b_offset) * item + (low - from);
      std::memcpy(out.data() + target, block.data() + (low - offset), high - low);
      copied += high - low;
    }
    if (to > end) break;
  }
  return copied;
}

std::string describe(DType dtype, const Shape& shape) { return fmt::format("{} {}", name_of(dtype), to_string(shape)); }

}  // namespace

LoadedCheckpoint::LoadedCheckpoint(Directory folder, Manifest manifest, TrainState state)
    : folder_(std::move(folder)), manifest_(std::move(manifest)), state_(std::move(state)) {}

const LoadedCheckpoint::OpenFile& LoadedCheckpoint::file(int rank) {
  constexpr std::size_t kMaxOpen = 64;
  const auto found = open_.find(rank);
  if (found != open_.end()) return found->second;
  if (open_.size() == kMaxOpen) open_.clear();
  OpenFile opened = {.file = folder_.open_file(rank_file_name(rank, manifest_.world()))};
  std::array<std::byte, 8> length;
  opened.file.read_at(0, length);
  opened.data_start = 8 + std::bit_cast<std::uint64_t>(length);
  if (opened.data_start > opened.file.size()) {
    refuse_format(opened.file.path() + ": changed since it was verified", {}, {},
                  "see what else writes to it, and start again");
  }
  return open_.emplace(rank, std::move(opened)).first->second;
}

std::vector<TensorSpec> LoadedCheckpoint::tensors() const {
  std::vector<TensorSpec> specs;
  for (const auto& [name, tensor] : manifest_.tensors) specs.push_back({name, tensor.dtype, tensor.shape});
  return specs;
}

std::vector<std::string> LoadedCheckpoint::small_files() const {
  std::vector<std::string> names;
  for (const auto& [name, file] : manifest_.small_files) names.push_back(name);
  return names;
}

std::string LoadedCheckpoint::read_small_file(const std::string& name) const {
  const FaultScope scope("load.tensor");
  return megalith::read_small_file(folder_, manifest_, name);
}

void LoadedCheckpoint::check_tensors(std::span<const TensorSpec> wanted) const {
  std::set<std::string_view> names, kinds;
  std::vector<std::string> missing, extra, different;
  for (const TensorSpec& spec : wanted) {
    names.insert(spec.name);
    kinds.insert(kind_of(spec.name));
    const auto found = manifest_.tensors.find(spec.name);
    if (found == manifest_.tensors.end()) {
      missing.push_back(spec.name);
    } else if (found->second.dtype != spec.dtype || !(found->second.shape == spec.shape)) {
      different.push_back(fmt::format("{} (expected {}, got {})", spec.name, describe(spec.dtype, spec.shape),
                                      describe(found->second.dtype, found->second.shape)));
    }
  }
  for (const auto& [name, tensor] : manifest_.tensors) {
    if (kinds.contains(kind_of(name)) && !names.contains(name)) extra.push_back(name);
  }
  if (missing.empty() && extra.empty() && different.empty()) return;
  std::string text;
  const auto add = [&](std::string_view title, const std::vector<std::string>& list) {
    if (!list.empty()) text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", title, first_names(list));
  };
  add("missing", missing);
  add("extra", extra);
  add("of another dtype or shape", different);
  refuse_format(path() + ": the checkpoint is of another model: " + text, {}, {},
                "use the model flags it was saved with (see config in state.json)");
}

void LoadedCheckpoint::read(const std::string& name, const Slice& slice, std::span<std::byte> out) {
  const FaultScope scope("load.tensor");
  const auto found = manifest_.tensors.find(name);
  if (found == manifest_.tensors.end()) {
    refuse_format(path() + ": no tensor " + printable(name), {}, {},
                  "use the model flags it was saved with (see config in state.json)");
  }
  const ManifestTensor& tensor = found->second;
  const std::string problem = slice_problem(tensor.shape, slice);
  if (!problem.empty()) fail({.subject = "reading " + name + ": " + problem});
  const std::size_t item = size_of(tensor.dtype);
  const std::size_t bytes = static_cast<std::size_t>(slice.numel()) * item;
  require(out.size() == bytes, "LoadedCheckpoint::read: out has not the size of the slice");
  std::size_t copied = 0;
  for (const ManifestChunk& chunk : tensor.chunks) {
    const std::vector<CommonRun> runs = common_runs(tensor.shape, chunk.slice, slice);
    if (runs.empty()) continue;
    std::span<const CommonRun> left(runs);
    const OpenFile& from = file(chunk.file);
    Hasher hasher;
    // The complete chunk is read even for a part, since the hash covers all of it.
    const std::uint64_t begin = from.data_start + chunk.begin;
    read_blocks(from.file, begin, begin + chunk.bytes, [&](std::uint64_t offset, std::span<const std::byte> block) {
      hasher.update(block);
      copied += copy_runs(left, item, offset, block, out);
    });
    if (hasher.digest() != chunk.hash) {
      refuse_format(fmt::format("{}: tensor {} {}", from.file.path(), name, to_string(chunk.slice)),
                    "XXH3-128 " + to_hex(chunk.hash), to_hex(hasher.digest()) + " (the file is damaged)",
                    "load another checkpoint or a copy of this one");
    }
  }
  require(copied == bytes, "LoadedCheckpoint::read: the chunks do not cover the slice");
}

}  // namespace megalith
