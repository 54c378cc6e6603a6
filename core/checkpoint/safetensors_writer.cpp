#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/checkpoint/safetensors.h"

namespace megalith {
namespace {

// Block size that stays in the L2 cache between hashing twice and writing.
constexpr std::size_t kWriteBlock = std::size_t{1} << 20;

// Returns the start of each entry in the data, and the end of the last.
std::vector<std::uint64_t> offsets_of(std::span<const SafetensorsWriter::Entry> entries) {
  std::vector<std::uint64_t> offsets = {0};
  for (const auto& entry : entries) {
    std::uint64_t bytes = size_of(entry.dtype);
    for (const std::int64_t extent : entry.shape) {
      require(extent >= 0 && !__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(extent), &bytes),
              "the size of a tensor to save overflows");
    }
    offsets.push_back(offsets.back() + bytes);
  }
  return offsets;
}

std::string header_text(std::span<const SafetensorsWriter::Entry> entries,
                        const std::map<std::string, std::string>& metadata) {
  std::string text = "{";
  if (!metadata.empty()) text += "\"__metadata__\":" + nlohmann::json(metadata).dump();
  const std::vector<std::uint64_t> offsets = offsets_of(entries);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    text += fmt::format("{}{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}", text.size() > 1 ? "," : "",
                        nlohmann::json(entries[i].name).dump(), safetensors_name(entries[i].dtype),
                        fmt::join(entries[i].shape, ","), offsets[i], offsets[i + 1]);
  }
  text += "}";
  text.resize((text.size() + 7) / 8 * 8, ' ');  // the data starts at a multiple of 8
  return text;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(File& file, std::vector<Entry> entries,
                                     const std::map<std::string, std::string>& metadata)
    : file_(file), entries_(std::move(entries)) {
  const std::string header = header_text(entries_, metadata);
  written_.entry_begin = offsets_of(entries_);
  require(header.size() <= kMaxSafetensorsHeader, "too many tensors for one safetensors file");
  // The reader must accept what this writer writes.
  parse_safetensors_header(header, written_.entry_begin.back(), file.path());
  const std::uint64_t length = header.size();
  std::string start(sizeof(length), '\0');
  std::copy_n(reinterpret_cast<const char*>(&length), sizeof(length), start.data());
  start += header;
  file_hasher_.update(std::as_bytes(std::span(start)));
  file_.write(start);
  close_full_entries();
}

void SafetensorsWriter::close_full_entries() {
  while (current_ < entries_.size() && at_ == written_.entry_begin[current_ + 1]) {
    written_.entry_hash.push_back(entry_hasher_.digest());
    entry_hasher_.reset();
    ++current_;
  }
}

void SafetensorsWriter::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    require(current_ < entries_.size(), "more bytes written to a safetensors file than declared");
    const std::uint64_t left = written_.entry_begin[current_ + 1] - at_;
    const auto block =
        bytes.first(static_cast<std::size_t>(std::min<std::uint64_t>({kWriteBlock, left, bytes.size()})));
    file_hasher_.update(block);
    entry_hasher_.update(block);
    file_.write(block);
    at_ += block.size();
    bytes = bytes.subspan(block.size());
    close_full_entries();
  }
}

SafetensorsWriter::Written SafetensorsWriter::finish() {
  require(current_ == entries_.size(), "fewer bytes written to a safetensors file than declared");
  written_.file_bytes = file_.size();
  written_.file_hash = file_hasher_.digest();
  return written_;
}

std::uint64_t safetensors_file_bytes(std::span<const SafetensorsWriter::Entry> entries,
                                     const std::map<std::string, std::string>& metadata) {
  return 8 + header_text(entries, metadata).size() + offsets_of(entries).back();
}

}  // namespace megalith
