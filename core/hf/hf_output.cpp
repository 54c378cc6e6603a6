#include <fmt/format.h>

#include <filesystem>

#include "core/base/error.h"
#include "core/base/files/file.h"
#include "core/base/log.h"
#include "core/checkpoint/safetensors.h"
#include "core/hf/hf_files.h"

namespace megalith {

namespace {

const std::map<std::string, std::string> kMetadata = {{"format", "pt"}};

// Final place of a folder: the parent folder and the name in it.
struct Place {
  std::string parent;
  std::string name;
};

Place place_of(const std::string& path) {
  std::filesystem::path normal = std::filesystem::path(path).lexically_normal();
  if (normal.filename().empty()) normal = normal.parent_path();  // "models/"
  if (normal.filename() == "." || normal.filename() == "..") {
    normal = std::filesystem::absolute(normal).lexically_normal().parent_path();  // without a trailing '/'
  }
  const std::string parent = normal.parent_path().string();
  return {.parent = parent.empty() ? "." : parent, .name = normal.filename().string()};
}

std::uint64_t bytes_of(const HfTensor& tensor, DType dtype) {
  return static_cast<std::uint64_t>(tensor.rows() * tensor.columns()) * size_of(dtype);
}

using Shard = std::vector<const HfTensor*>;

std::vector<Shard> shards_of(const HfOutput& output) {
  std::vector<Shard> shards(1);
  std::uint64_t bytes = 0;
  for (const HfTensor& tensor : output.tensors) {
    const std::uint64_t more = bytes_of(tensor, output.dtype);
    if (!shards.back().empty() && bytes + more > output.max_shard_size) {
      shards.emplace_back();
      bytes = 0;
    }
    shards.back().push_back(&tensor);
    bytes += more;
  }
  return shards;
}

void write_text(const Directory& folder, const std::string& name, const std::string& text) {
  File file = folder.create_file(name);
  file.write(text);
  file.sync();
  file.close();
}

void write_shard(const Directory& folder, const std::string& name, const Shard& shard, const HfOutput& output) {
  std::vector<SafetensorsWriter::Entry> entries;
  for (const HfTensor* tensor : shard) entries.push_back({tensor->name, output.dtype, tensor->shape});
  File file = folder.create_file(name);
  SafetensorsWriter writer(file, std::move(entries), kMetadata);
  for (const HfTensor* tensor : shard) {
    std::vector<std::byte> bytes(bytes_of(*tensor, output.dtype));
    output.fill(*tensor, bytes);
    writer.write(bytes);
  }
  writer.finish();
  file.sync();
  file.close();
}

void write_files(const Directory& folder, const HfOutput& output) {
  const std::vector<Shard> shards = shards_of(output);
  std::map<std::string, std::string> index;
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const std::string name = shards.size() == 1 ? "model.safetensors"
                                                : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    write_shard(folder, name, shards[i], output);
    for (const HfTensor* tensor : shards[i]) {
      index[tensor->name] = name;
      total += bytes_of(*tensor, output.dtype);
    }
  }
  if (shards.size() > 1) write_text(folder, "model.safetensors.index.json", hf_index_text(index, total));
  write_text(folder, "config.json", output.config);
  for (const auto& [name, text] : output.texts) write_text(folder, name, text);
  folder.sync();
}

void check_space(const Directory& root, const HfOutput& output) {
  std::uint64_t needed = std::uint64_t{1} << 20;  // headers, config.json, blocks of the file system
  for (const HfTensor& tensor : output.tensors) needed += bytes_of(tensor, output.dtype) + 256;
  for (const auto& [name, text] : output.texts) needed += text.size();
  const std::uint64_t available = root.free_bytes();
  if (available >= needed) return;
  fail({.code = ExitCode::kFileIo,
        .subject = "free space for " + output.path,
        .expected = fmt::format("at least {} bytes", needed),
        .got = std::to_string(available),
        .remedy = "free space or name another folder",
        .show_place = false});
}

// Removes unlocked temporary folders of killed programs for this name.
void remove_leftovers(const Directory& root, const std::string& prefix) {
  for (const DirectoryEntry& entry : root.list()) {
    if (entry.type != EntryType::kDirectory || !entry.name.starts_with(prefix)) continue;
    const std::string_view number = std::string_view(entry.name).substr(prefix.size());
    if (number.empty() || number.find_first_not_of("0123456789") != number.npos) continue;
    try {
      const Directory left = root.open_directory(entry.name);
      if (!left.try_lock()) continue;
      root.remove_tree(entry.name);
      log_info(fmt::format("removed {}, which a convert that was killed left", entry.name));
    } catch (const Error& error) {
      log_warning(fmt::format("{} stays: {}", entry.name, error.what()));
    }
  }
}

}  // namespace

void require_new_folder(const std::string& path) {
  if (!Directory::exists(path)) return;
  const std::size_t entries = Directory::open(path).list().size();
  if (entries == 0) return;
  refuse_usage("--save " + path, {.expected = "a new or empty folder",
                                  .got = fmt::format("one with {} {}", entries, entries == 1 ? "entry" : "entries"),
                                  .remedy = "name another folder"});
}

void write_hf_folder(const HfOutput& output) {
  const Place place = place_of(output.path);
  const Directory root = Directory::create(place.parent);
  const std::string prefix = fmt::format(".{}.megalith-tmp-", place.name);
  remove_leftovers(root, prefix);
  check_space(root, output);
  std::string temporary;
  int attempt = 0;
  do {
    temporary = prefix + std::to_string(attempt++);
  } while (!root.make_directory(temporary));
  try {
    const Directory folder = root.open_directory(temporary);
    folder.try_lock();  // until the folder is written
    write_files(folder, output);
    root.rename(temporary, place.name);
  } catch (...) {
    try {
      root.remove_tree(temporary);
    } catch (const Error&) {  // the first error is rethrown
    }
    throw;
  }
  root.sync();
}

}  // namespace megalith
