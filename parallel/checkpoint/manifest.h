// manifest.json: every file of a checkpoint with its size and XXH3-128, and every chunk (one slice of one tensor, an
// entry of one safetensors file) with its place and hash:
//   {"files": [{"name", "bytes", "xxh3_128"}, ...],      rank files in rank order, state.json, small files by name
//    "format": "megalith-checkpoint", "step", "version", "world",
//    "tensors": {NAME: {"dtype", "shape", "chunks": [[file, begin, bytes, slice, xxh3_128], ...]}},
//    "lineage": {"serial", "step", "parent": null or {"step", "manifest_xxh3_128"}},   not in older ones
//    "manifest_xxh3_128": hash of all text before this member}
// The last member makes damage to the manifest itself visible, down to a changed blank. It and the one before stand in
// lines of their own.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/checkpoint/hash.h"
#include "core/checkpoint/shard.h"

namespace megalith {

inline constexpr int kCheckpointVersion = 1;
inline constexpr std::string_view kManifestName = "manifest.json";
inline constexpr std::string_view kStateName = "state.json";
inline constexpr std::string_view kLatestName = "LATEST";

// Of the files beside tensors and state: how many there may be, and the bytes of each.
inline constexpr std::size_t kMaxSmallFiles = 16;
inline constexpr std::uint64_t kMaxSmallFileBytes = std::uint64_t{64} << 20;

struct ManifestFile {
  std::uint64_t bytes = 0;
  Hash128 hash;
};

struct ManifestChunk {
  int file = 0;             // rank that wrote it
  std::uint64_t begin = 0;  // bytes, from the start of the data of its file
  std::uint64_t bytes = 0;
  Slice slice;
  Hash128 hash;
};

struct ManifestTensor {
  DType dtype = DType::kFp32;
  Shape shape;
  std::vector<ManifestChunk> chunks;
};

// Which checkpoint it is: no other one has this hash of its manifest.
struct CheckpointId {
  std::int64_t step = 0;
  Hash128 hash;
  bool operator==(const CheckpointId&) const = default;
};

// Where a checkpoint comes from.
inline constexpr std::int64_t kMaxSerial = std::int64_t{1} << 40;
struct Lineage {
  std::int64_t serial = 0;             // one more than any that was in its folder, at most kMaxSerial
  std::optional<CheckpointId> parent;  // in the same folder; none: the run began at step 0 or from another folder
};

struct Manifest {
  std::int64_t step = 0;
  Hash128 hash;                          // its own, as read
  std::optional<Lineage> lineage;        // none: an older program wrote it
  std::vector<ManifestFile> rank_files;  // one per rank that saved
  ManifestFile state_file;
  std::map<std::string, ManifestFile> small_files;  // by name
  std::map<std::string, ManifestTensor> tensors;

  int world() const { return static_cast<int>(rank_files.size()); }
};

std::string to_text(const Manifest& manifest);

// Strict: hash, version, keys, ranges, file names, and each tensor covered exactly once by its chunks. Fails with
// kFormat; `subject` names the file.
Manifest manifest_from_text(std::string_view text, const std::string& subject);

// Of the same text only what says where the checkpoint comes from. `id` has the step that it must have and gets the
// hash.
std::optional<Lineage> lineage_from_text(std::string_view text, CheckpointId& id, const std::string& subject);

// Fails where the tensor is there with another dtype or shape.
void add_chunk(Manifest& manifest, const TensorSpec& tensor, ManifestChunk chunk);

// What one rank adds to a manifest of as many rank files as there are ranks: its file and its chunks, as text for the
// rank that writes the manifest.
std::string part_text(const Manifest& part, int rank);
void add_part(Manifest& manifest, int rank, std::string_view text);

// Why the chunks of some tensor do not cover it exactly once, naming the tensors, or "".
std::string cover_problem(const Manifest& manifest);

std::string checkpoint_name(std::int64_t step);                   // "step_0000100"
std::optional<std::int64_t> step_of_name(std::string_view name);  // nothing for any other name
bool is_temporary_name(std::string_view name);                    // "step_0000100.tmp-..."
std::string rank_file_name(int rank, int world);                  // "rank_0000_of_0002.safetensors"
bool is_small_file_name(std::string_view name);                   // such as "tokenizer.json"; no name of the others
std::string entry_name(const std::string& tensor, const Shape& shape,
                       const Slice& slice);  // "NAME" or "NAME@[0:2,0:3]"

// A tensor's name must be printable ASCII without space, quote, backslash or '@', of 1 to 512 bytes.
bool is_tensor_name(std::string_view name);

}  // namespace megalith
