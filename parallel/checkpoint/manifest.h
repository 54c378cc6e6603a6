// manifest.json: size and XXH3-128 of every file of a checkpoint, and position and hash of every chunk. A chunk is one
// slice of one tensor, and an entry of one safetensors file.
//   {"files": [{"name", "bytes", "xxh3_128"}, ...],      rank files in rank order, state.json, small files by name
//    "format": "megalith-checkpoint", "step", "version", "world",
//    "tensors": {NAME: {"dtype", "shape", "chunks": [[file, begin, bytes, slice, xxh3_128], ...]}},
//    "lineage": {"serial", "step", "parent": null or {"step", "manifest_xxh3_128"}},   absent in older files
//    "manifest_xxh3_128": hash of all text before this member}
// The last member detects any damage to the manifest, even a changed blank. The last two members are on separate lines.
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

// Limits of the files other than tensors and state: number, and bytes of each.
inline constexpr std::size_t kMaxSmallFiles = 16;
inline constexpr std::uint64_t kMaxSmallFileBytes = std::uint64_t{64} << 20;

struct ManifestFile {
  std::uint64_t bytes = 0;
  Hash128 hash;
};

struct ManifestChunk {
  int file = 0;             // rank that wrote it
  std::uint64_t begin = 0;  // bytes from the start of its file's data
  std::uint64_t bytes = 0;
  Slice slice;
  Hash128 hash;
};

struct ManifestTensor {
  DType dtype = DType::kFp32;
  Shape shape;
  std::vector<ManifestChunk> chunks;
};

// Identity of a checkpoint; the hash of its manifest is unique.
struct CheckpointId {
  std::int64_t step = 0;
  Hash128 hash;
  bool operator==(const CheckpointId&) const = default;
};

// Origin of a checkpoint.
inline constexpr std::int64_t kMaxSerial = std::int64_t{1} << 40;
struct Lineage {
  std::int64_t serial = 0;             // above any serial in its folder, at most kMaxSerial
  std::optional<CheckpointId> parent;  // in the same folder; none: step 0, or another folder
};

struct Manifest {
  std::int64_t step = 0;
  Hash128 hash;                          // of the manifest, as read
  std::optional<Lineage> lineage;        // none: written by an older program
  std::vector<ManifestFile> rank_files;  // one per saving rank
  ManifestFile state_file;
  std::map<std::string, ManifestFile> small_files;  // key: name
  std::map<std::string, ManifestTensor> tensors;

  int world() const { return static_cast<int>(rank_files.size()); }
};

std::string to_text(const Manifest& manifest);

// Checks strictly: hash, version, keys, ranges, file names, and that chunks cover each tensor exactly once. Fails with
// kFormat; `subject` is the file.
Manifest manifest_from_text(std::string_view text, const std::string& subject);

// Reads only the lineage of the same text. `id` has the required step and receives the hash.
std::optional<Lineage> lineage_from_text(std::string_view text, CheckpointId& id, const std::string& subject);

// Fails if the tensor exists with another dtype or shape.
void add_chunk(Manifest& manifest, const TensorSpec& tensor, ManifestChunk chunk);

// Text of one rank's part of a manifest, for the rank that writes it: its file and its chunks.
std::string part_text(const Manifest& part, int rank);
void add_part(Manifest& manifest, int rank, std::string_view text);

// Error text with the tensors that chunks do not cover exactly once, or "".
std::string cover_problem(const Manifest& manifest);

std::string checkpoint_name(std::int64_t step);                   // "step_0000100"
std::optional<std::int64_t> step_of_name(std::string_view name);  // none for other names
bool is_temporary_name(std::string_view name);                    // "step_0000100.tmp-..."
std::string rank_file_name(int rank, int world);                  // "rank_0000_of_0002.safetensors"
bool is_small_file_name(std::string_view name);  // such as "tokenizer.json"; not a name of the other files
std::string entry_name(const std::string& tensor, const Shape& shape,
                       const Slice& slice);  // "NAME" or "NAME@[0:2,0:3]"

// True for printable ASCII without space, quote, backslash or '@', of 1 to 512 bytes.
bool is_tensor_name(std::string_view name);

}  // namespace megalith
