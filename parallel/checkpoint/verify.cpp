#include "parallel/checkpoint/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "core/base/error.h"
#include "core/checkpoint/printable.h"
#include "core/checkpoint/safetensors.h"
#include "core/checkpoint/strict_json.h"

namespace megalith {
namespace {

void check_size(const std::string& path, std::uint64_t bytes, const ManifestFile& expected) {
  if (bytes != expected.bytes) refuse_format(path, fmt::format("{} bytes", expected.bytes), std::to_string(bytes));
}

void check_hash(const std::string& subject, const Hash128& expected, const Hash128& got) {
  if (got == expected) return;
  refuse_format(subject, "XXH3-128 " + to_hex(expected), to_hex(got) + " (the file is damaged)");
}

std::string read_checked(const Directory& checkpoint, const std::string& name, const ManifestFile& expected,
                         std::uint64_t max_bytes) {
  const std::string path = checkpoint.path() + "/" + name;
  std::string text = checkpoint.read_text(name, max_bytes);
  check_size(path, text.size(), expected);
  check_hash(path, expected.hash, hash_of(text));
  return text;
}

struct Expected {
  const std::string* name;
  const ManifestTensor* tensor;
  const ManifestChunk* chunk;
};

// Chunks of one file, sorted by position.
std::vector<Expected> chunks_of_file(const Manifest& manifest, int file) {
  std::vector<Expected> chunks;
  for (const auto& [name, tensor] : manifest.tensors) {
    for (const ManifestChunk& chunk : tensor.chunks) {
      if (chunk.file == file) chunks.push_back({&name, &tensor, &chunk});
    }
  }
  std::sort(chunks.begin(), chunks.end(), [](const Expected& a, const Expected& b) {
    return std::tie(a.chunk->begin, a.chunk->bytes, *a.name) < std::tie(b.chunk->begin, b.chunk->bytes, *b.name);
  });
  return chunks;
}

void check_table(const File& file, SafetensorsHeader& header, const std::vector<Expected>& chunks) {
  // Empty tensors share one position, so both sides are also sorted by name.
  std::sort(header.entries.begin(), header.entries.end(), [](const auto& a, const auto& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  if (header.entries.size() != chunks.size()) {
    refuse_format(file.path(), fmt::format("{} tensors", chunks.size()), std::to_string(header.entries.size()));
  }
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    const auto& [name, tensor, chunk] = chunks[i];
    const SafetensorsEntry& entry = header.entries[i];
    const std::string wanted = entry_name(*name, tensor->shape, chunk->slice);
    if (entry.name != wanted || entry.begin != chunk->begin || entry.end != chunk->begin + chunk->bytes ||
        entry.dtype != safetensors_name(tensor->dtype)) {
      refuse_format(file.path(), fmt::format("tensor {} at byte {}", printable(wanted), chunk->begin),
                    fmt::format("{} at byte {}", printable(entry.name), entry.begin));
    }
  }
}

void verify_rank_file(const Directory& checkpoint, const Manifest& manifest, int rank) {
  const ManifestFile& expected = manifest.rank_files[static_cast<std::size_t>(rank)];
  const File file = checkpoint.open_file(rank_file_name(rank, manifest.world()));
  check_size(file.path(), file.size(), expected);
  SafetensorsHeader header = read_safetensors_header(file);
  const std::vector<Expected> chunks = chunks_of_file(manifest, rank);
  check_table(file, header, chunks);
  Hasher file_hasher;
  read_blocks(file, 0, header.data_start,
              [&](std::uint64_t, std::span<const std::byte> block) { file_hasher.update(block); });
  Hasher chunk_hasher;
  for (const auto& [name, tensor, chunk] : chunks) {
    chunk_hasher.reset();
    const std::uint64_t begin = header.data_start + chunk->begin;
    read_blocks(file, begin, begin + chunk->bytes, [&](std::uint64_t, std::span<const std::byte> block) {
      file_hasher.update(block);
      chunk_hasher.update(block);
    });
    check_hash(file.path() + ": tensor " + *name, chunk->hash, chunk_hasher.digest());
  }
  check_hash(file.path(), expected.hash, file_hasher.digest());
}

}  // namespace

Manifest read_manifest(const Directory& checkpoint, std::string* text) {
  const std::string name(kManifestName);
  std::string read = checkpoint.read_text(name, kMaxJsonBytes);
  Manifest manifest = manifest_from_text(read, checkpoint.path() + "/" + name);
  if (text != nullptr) *text = std::move(read);
  return manifest;
}

void verify_files(const Directory& checkpoint, const Manifest& manifest, int first, int stride) {
  for (int rank = first; rank < manifest.world(); rank += stride) verify_rank_file(checkpoint, manifest, rank);
  if (first != 0) return;
  for (const auto& [name, file] : manifest.small_files) read_small_file(checkpoint, manifest, name);
}

std::string read_small_file(const Directory& checkpoint, const Manifest& manifest, const std::string& name) {
  return read_checked(checkpoint, name, manifest.small_files.at(name), kMaxSmallFileBytes);
}

void verify_sizes(const Directory& checkpoint, const Manifest& manifest) {
  const auto check = [&](const std::string& name, const ManifestFile& expected) {
    const File file = checkpoint.open_file(name);
    check_size(file.path(), file.size(), expected);
  };
  for (int rank = 0; rank < manifest.world(); ++rank)
    check(rank_file_name(rank, manifest.world()), manifest.rank_files[static_cast<std::size_t>(rank)]);
  check(std::string(kStateName), manifest.state_file);
  for (const auto& [name, file] : manifest.small_files) check(name, file);
}

std::string read_state_text(const Directory& checkpoint, const Manifest& manifest) {
  return read_checked(checkpoint, std::string(kStateName), manifest.state_file, kMaxJsonBytes);
}

}  // namespace megalith
