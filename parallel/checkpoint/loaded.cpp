#include "parallel/checkpoint/loaded.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <set>

#include "core/base/counted.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/checkpoint/printable.h"
#include "core/checkpoint/safetensors.h"
#include "parallel/checkpoint/verify.h"

namespace megalith {
namespace {

// Copies the elements that a chunk and the wanted slice have in common while the chunk's blocks come by.
class RunCopier {
 public:
  RunCopier(CommonRuns runs, std::size_t item, std::span<std::byte> out)
      : runs_(std::move(runs)), item_(item), out_(out), run_(runs_.next()) {}

  bool any() const { return run_.has_value(); }
  std::size_t copied() const { return copied_; }

  void take(std::uint64_t offset, std::span<const std::byte> block) {
    const std::uint64_t end = offset + block.size();
    while (run_) {
      // In bytes: the run lies at [from, to) of the chunk.
      const std::uint64_t from = static_cast<std::uint64_t>(run_->a_offset) * item_;
      const std::uint64_t to = from + static_cast<std::uint64_t>(run_->count) * item_;
      const std::uint64_t low = std::max(from, offset);
      const std::uint64_t high = std::min(to, end);
      if (low < high) {
        const std::uint64_t target = static_cast<std::uint64_t>(run_->b_offset) * item_ + (low - from);
        std::memcpy(out_.data() + target, block.data() + (low - offset), high - low);
        copied_ += high - low;
      }
      if (to > end) return;
      run_ = runs_.next();
    }
  }

 private:
  CommonRuns runs_;
  std::uint64_t item_;
  std::span<std::byte> out_;
  std::optional<CommonRun> run_;
  std::size_t copied_ = 0;
};

std::string describe(DType dtype, const Shape& shape) {
  std::string text = fmt::format("{} [", name_of(dtype));
  for (int d = 0; d < shape.rank(); ++d) text += fmt::format("{}{}", d == 0 ? "" : ", ", shape[d]);
  return text + "]";
}

}  // namespace

const LoadedCheckpoint::Impl::OpenFile& LoadedCheckpoint::Impl::file(int rank) {
  constexpr std::size_t kMaxOpen = 64;
  const auto found = open.find(rank);
  if (found != open.end()) return found->second;
  if (open.size() == kMaxOpen) open.clear();
  OpenFile opened = {.file = folder.open_file(rank_file_name(rank, manifest.world()))};
  std::array<std::byte, 8> length;
  opened.file.read_at(0, length);
  opened.data_start = 8 + std::bit_cast<std::uint64_t>(length);
  if (opened.data_start > opened.file.size()) {
    refuse_format(opened.file.path() + ": changed since it was verified", {}, {},
                  "see what else writes to it, and start again");
  }
  return open.emplace(rank, std::move(opened)).first->second;
}

LoadedCheckpoint::LoadedCheckpoint(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
LoadedCheckpoint::LoadedCheckpoint(LoadedCheckpoint&&) noexcept = default;
LoadedCheckpoint& LoadedCheckpoint::operator=(LoadedCheckpoint&&) noexcept = default;
LoadedCheckpoint::~LoadedCheckpoint() = default;

const std::string& LoadedCheckpoint::path() const { return impl_->folder.path(); }
const TrainState& LoadedCheckpoint::state() const { return impl_->state; }
int LoadedCheckpoint::saved_world() const { return impl_->manifest.world(); }
bool LoadedCheckpoint::has(const std::string& name) const { return impl_->manifest.tensors.contains(name); }

std::vector<TensorSpec> LoadedCheckpoint::tensors() const {
  std::vector<TensorSpec> specs;
  for (const auto& [name, tensor] : impl_->manifest.tensors) specs.push_back({name, tensor.dtype, tensor.shape});
  return specs;
}

std::vector<std::string> LoadedCheckpoint::small_files() const {
  std::vector<std::string> names;
  for (const auto& [name, file] : impl_->manifest.small_files) names.push_back(name);
  return names;
}

std::string LoadedCheckpoint::read_small_file(const std::string& name) const {
  const FaultScope scope("load.tensor");
  return megalith::read_small_file(impl_->folder, impl_->manifest, name);
}

void LoadedCheckpoint::check_tensors(std::span<const TensorSpec> wanted) const {
  std::set<std::string_view> names, kinds;
  std::vector<std::string> missing, extra, different;
  for (const TensorSpec& spec : wanted) {
    names.insert(spec.name);
    kinds.insert(kind_of(spec.name));
    const auto found = impl_->manifest.tensors.find(spec.name);
    if (found == impl_->manifest.tensors.end()) {
      missing.push_back(spec.name);
    } else if (found->second.dtype != spec.dtype || !(found->second.shape == spec.shape)) {
      different.push_back(fmt::format("{} (expected {}, got {})", spec.name, describe(spec.dtype, spec.shape),
                                      describe(found->second.dtype, found->second.shape)));
    }
  }
  for (const auto& [name, tensor] : impl_->manifest.tensors) {
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
  const auto found = impl_->manifest.tensors.find(name);
  if (found == impl_->manifest.tensors.end()) {
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
    RunCopier copier(CommonRuns(tensor.shape, chunk.slice, slice), item, out);
    if (!copier.any()) continue;
    const Impl::OpenFile& file = impl_->file(chunk.file);
    Hasher hasher;
    // The whole chunk is read even where a part is wanted: only so can its hash tell whether that part is right.
    const std::uint64_t begin = file.data_start + chunk.begin;
    read_blocks(file.file, begin, begin + chunk.bytes, [&](std::uint64_t offset, std::span<const std::byte> block) {
      hasher.update(block);
      copier.take(offset, block);
    });
    if (hasher.digest() != chunk.hash) {
      refuse_format(fmt::format("{}: tensor {} {}", file.file.path(), name, to_string(chunk.slice)),
                    "XXH3-128 " + to_hex(chunk.hash), to_hex(hasher.digest()) + " (the file is damaged)",
                    "load another checkpoint or a copy of this one");
    }
    copied += copier.copied();
  }
  require(copied == bytes, "LoadedCheckpoint::read: the chunks do not cover the slice");
}

}  // namespace megalith
