// Run file of Weights & Biases, as its client writes without a network and `wandb sync` uploads: Record messages of
// wandb_internal.proto in blocks of 32 KiB. The layout of blocks is LevelDB's log, with the CRC-32 of zlib.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/files/file.h"
#include "core/reports/append_log.h"

namespace megalith {

// First bytes of a run file.
std::string wandb_file_start();
// Bytes of a record at `offset` of the file, in pieces that end with their block.
std::string wandb_record(std::string_view payload, std::uint64_t offset);

struct WandbRun {
  std::string id;  // letters and digits
  std::string entity;
  std::string project;
  std::string name;   // shown; empty: the server makes one
  std::string group;  // empty: none
  std::string host;
  double start_time = 0;                                      // seconds since 1970
  std::vector<std::pair<std::string, std::string>> config{};  // JSON value by key
};

// Value of a history or a summary. Several keys are nested: {"offload", "bytes_out"}.
struct WandbValue {
  std::vector<std::string> keys;
  std::string json;
};

// Folder DIR/wandb/offline-run-DATE-ID with its file run-ID.wandb. Each record is written at once, so a killed run
// keeps all. Fails with kFileIo if the file cannot be created; later failed writes are tried again at each record.
// Fault sites: those of "wandb".
class WandbFile {
 public:
  // `flag`: of the folder, for messages. `producer`: program and version.
  WandbFile(const std::string& folder, const std::string& flag, const WandbRun& run, std::string_view producer);
  WandbFile(const WandbFile&) = delete;
  WandbFile& operator=(const WandbFile&) = delete;

  const std::string& folder() const { return folder_; }
  void write_step(std::int64_t step, const std::vector<WandbValue>& values);  // history and summary
  void write_exit(int exit_code, std::int64_t seconds);

 private:
  File begin(const std::string& folder, const std::string& flag, const WandbRun& run);
  void write(unsigned field, std::string_view message);

  std::string folder_;
  AppendLog log_;
  std::uint64_t offset_ = 0;  // end of the file, with the bytes that wait
  std::int64_t records_ = 0;
};

}  // namespace megalith
