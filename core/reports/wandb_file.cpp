#include "core/reports/wandb_file.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>

#include "core/base/error.h"
#include "core/base/files/fault.h"
#include "core/reports/wire_format.h"

namespace megalith {

namespace {

constexpr const char* kWandbScope = "wandb";
constexpr std::size_t kBlockBytes = 32768, kPieceHeader = 7;

enum PieceType : std::uint8_t { kFull = 1, kFirst, kMiddle, kLast };
// Fields of Record.
enum RecordField : std::uint8_t { kNumber = 1, kHistory = 2, kSummary = 3, kRun = 17, kExit = 18, kHeader = 21 };

std::string wandb_piece(std::string_view bytes, PieceType type) {
  std::string checked(1, static_cast<char>(type));
  checked += bytes;
  std::string out;
  append_little_endian(out, crc32_of<kCrc32>(checked));
  append_little_endian(out, static_cast<std::uint16_t>(bytes.size()));
  return out + checked;
}

void append_text(std::string& out, unsigned field, std::string_view text) {
  if (!text.empty()) append_bytes(out, field, text);
}

// Values as HistoryItem or SummaryItem, which share their fields.
std::string wandb_items(const std::vector<WandbValue>& values) {
  std::string out;
  for (const WandbValue& value : values) {
    std::string item;
    for (const std::string& key : value.keys) append_bytes(item, 2, key);
    append_bytes(item, 16, value.json);
    append_bytes(out, 1, item);
  }
  return out;
}

std::string wandb_header(std::string_view producer) {
  std::string version, header;
  append_bytes(version, 1, producer);
  append_bytes(version, 2, "0.12.0");  // oldest client that may read the file
  append_bytes(header, 1, version);
  return header;
}

std::string wandb_run_message(const WandbRun& run) {
  std::string out, config, time;
  append_text(out, 1, run.id);
  append_text(out, 2, run.entity);
  append_text(out, 3, run.project);
  for (const auto& [key, json] : run.config) {
    std::string item;
    append_bytes(item, 1, key);
    append_bytes(item, 16, json);
    append_bytes(config, 1, item);
  }
  append_bytes(out, 4, config);
  append_text(out, 6, run.group);
  append_text(out, 8, run.name);
  append_text(out, 13, run.host);
  const double seconds = std::floor(run.start_time);
  append_number(time, 1, static_cast<std::int64_t>(seconds));
  append_number(time, 2, static_cast<std::int64_t>((run.start_time - seconds) * 1e9));
  append_bytes(out, 17, time);
  return out;
}

}  // namespace

std::string wandb_file_start() { return {":W&B\xe1\xbe\0", 7}; }

std::string wandb_record(std::string_view payload, std::uint64_t offset) {
  std::string out;
  bool is_first = true;
  do {
    const std::size_t left = kBlockBytes - (offset + out.size()) % kBlockBytes;
    if (left < kPieceHeader) {
      out.append(left, '\0');
      continue;
    }
    const std::size_t bytes = std::min(payload.size(), left - kPieceHeader);
    const bool is_last = bytes == payload.size();
    out += wandb_piece(payload.substr(0, bytes), is_first ? (is_last ? kFull : kFirst) : is_last ? kLast : kMiddle);
    payload.remove_prefix(bytes);
    is_first = false;
  } while (is_first || !payload.empty());
  return out;
}

WandbFile::WandbFile(const std::string& folder, const std::string& flag, const WandbRun& run, std::string_view producer)
    : log_(begin(folder, flag, run), flag, kWandbScope), offset_(wandb_file_start().size()) {
  write(kHeader, wandb_header(producer));
  write(kRun, wandb_run_message(run));
}

File WandbFile::begin(const std::string& folder, const std::string& flag, const WandbRun& run) {
  const FaultScope scope(kWandbScope);
  try {
    const std::time_t seconds = static_cast<std::time_t>(run.start_time);
    folder_ = fmt::format("{}/wandb/offline-run-{:%Y%m%d_%H%M%S}-{}", folder, fmt::localtime(seconds), run.id);
    File file = Directory::create(folder_).create_file(fmt::format("run-{}.wandb", run.id));
    file.write(wandb_file_start());
    return file;
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{} {}: {}", flag, folder, error.what()));
  }
}

void WandbFile::write(unsigned field, std::string_view message) {
  std::string record;
  append_number(record, kNumber, records_ + 1);
  append_bytes(record, field, message);
  const std::string bytes = wandb_record(record, offset_);
  if (!log_.write(bytes)) return;
  offset_ += bytes.size();
  ++records_;
}

void WandbFile::write_step(std::int64_t step, const std::vector<WandbValue>& values) {
  std::string number, items = wandb_items(values);
  write(kSummary, items);
  append_number(number, 1, step);
  append_bytes(items, 2, number);
  write(kHistory, items);
}

void WandbFile::write_exit(int exit_code, std::int64_t seconds) {
  std::string message;
  append_number(message, 1, exit_code);
  append_number(message, 2, seconds);
  write(kExit, message);
}

}  // namespace megalith
