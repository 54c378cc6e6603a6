#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/log.h"
#include "core/checkpoint/printable.h"
#include "core/checkpoint/safetensors.h"
#include "parallel/checkpoint/attempt.h"
#include "parallel/checkpoint/branch.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/checkpoint/manifest.h"
#include "parallel/checkpoint/retention.h"
#include "parallel/comm/single_communicator.h"

namespace megalith {
namespace {

using nlohmann::json;

const std::map<std::string, std::string> kFileMetadata = {{"format", "megalith-checkpoint"}};

void write_durably(const Directory& directory, const std::string& name, const std::string& text) {
  File file = directory.create_file(name);
  file.write(text);
  file.sync();
  file.close();
}

// One collective save; the methods are its steps in order. Those named "everyone" run on each rank, the others on rank
// 0.
class Saver {
 public:
  explicit Saver(const SaveRequest& request)
      : request_(request), ranks_(request.ranks == nullptr ? alone_ : *request.ranks) {}
  SaveResult run();

 private:
  void everyone_plans();
  std::uint64_t collect(const std::vector<std::string>& plans);
  void prepare(const std::vector<std::string>& plans);
  void meet_folder();
  void prune_ahead();
  void make_room(std::uint64_t bytes);
  void everyone_writes();
  void fill_manifest(const std::vector<std::string>& records);
  void write_small_files();
  void commit(const std::vector<std::string>& records);
  void take_name();
  std::string after_commit();
  void sort_out();
  void write_latest() const;
  SaveResult failed(std::string problem);
  bool first() const { return ranks_.rank() == 0; }
  std::span<const SmallFile> small_files() const {
    return request_.files == nullptr ? std::span<const SmallFile>() : *request_.files;
  }

  const SaveRequest& request_;
  SingleCommunicator alone_{"checkpoint"};
  Communicator& ranks_;
  std::vector<const Shard*> shards_;  // that hold bytes, or stand for an empty tensor
  std::vector<SafetensorsWriter::Entry> entries_;
  std::string plan_, record_;        // this rank's, for rank 0
  std::string name_, temporary_;     // of the checkpoint
  std::int64_t tensor_bytes_ = 0;    // rank 0: over all ranks
  Manifest manifest_;                // rank 0
  std::optional<Directory> root_;    // rank 0
  std::optional<Directory> folder_;  // rank 0: the temporary one, locked
  bool renamed_ = false;
  CheckpointHistory own_;  // where the caller keeps none
  CheckpointHistory& history_ = request_.history == nullptr ? own_ : *request_.history;
  std::string troubles_;  // rank 0: what went wrong beside the save
};

void Saver::everyone_plans() {
  json chunks = json::array();
  for (const Shard& shard : request_.shards) {
    if (!is_tensor_name(shard.name)) {
      fail({.subject = "checkpoint: tensor " + printable(shard.name), .expected = "a name of printable ASCII"});
    }
    const std::string problem = slice_problem(shard.shape, shard.slice);
    if (!problem.empty()) fail({.subject = "checkpoint: tensor " + shard.name, .got = problem});
    const std::size_t bytes = static_cast<std::size_t>(shard.slice.numel()) * size_of(shard.dtype);
    if (shard.data.size() != bytes) {
      fail({.subject = "checkpoint: tensor " + shard.name,
            .expected = fmt::format("{} bytes for slice {}", bytes, to_string(shard.slice)),
            .got = std::to_string(shard.data.size())});
    }
    if (bytes == 0 && shard.shape.numel() > 0) continue;
    std::vector<std::int64_t> extents;
    extents.reserve(shard.slice.start.size());
    for (std::size_t d = 0; d < shard.slice.start.size(); ++d) {
      extents.push_back(shard.slice.stop[d] - shard.slice.start[d]);
    }
    json shape = json::array();
    for (int d = 0; d < shard.shape.rank(); ++d) shape.push_back(shard.shape[d]);
    shards_.push_back(&shard);
    entries_.push_back({entry_name(shard.name, shard.shape, shard.slice), shard.dtype, std::move(extents)});
    chunks.push_back({shard.name, safetensors_name(shard.dtype), shape, to_string(shard.slice)});
  }
  plan_ = json{{"bytes", safetensors_file_bytes(entries_, kFileMetadata)}, {"chunks", chunks}}.dump();
}

// Rank 0 learns what all ranks will write, and checks that it is a whole model. Returns its bytes on the disk.
std::uint64_t Saver::collect(const std::vector<std::string>& plans) {
  constexpr std::uint64_t kPerFile = 8192, kPerChunk = 256;  // slack for blocks of the file system; manifest text
  const std::string state = to_json(request_.state);
  std::uint64_t needed = state.size() + kPerFile;
  for (const SmallFile& file : small_files()) needed += file.bytes.size() + kPerFile;
  manifest_.step = request_.state.step;
  manifest_.rank_files.resize(plans.size());
  for (std::size_t rank = 0; rank < plans.size(); ++rank) {
    const json plan = json::parse(plans[rank]);
    needed += plan.at("bytes").get<std::uint64_t>() + kPerFile + kPerChunk * plan.at("chunks").size();
    for (const json& chunk : plan.at("chunks")) {
      const auto name = chunk.at(0).get<std::string>();
      const DType dtype = dtype_from_safetensors(chunk.at(1).get<std::string>()).value();
      Shape shape;
      for (const json& extent : chunk.at(2)) shape.push_back(extent.get<std::int64_t>());
      const auto [place, fresh] = manifest_.tensors.try_emplace(name, ManifestTensor{dtype, shape, {}});
      if (!fresh && (place->second.dtype != dtype || !(place->second.shape == shape))) {
        fail({.subject = "checkpoint: tensor " + name, .expected = "one dtype and one global shape on all ranks"});
      }
      const Slice slice = slice_from_string(chunk.at(3).get<std::string>()).value();
      const auto bytes = static_cast<std::uint64_t>(slice.numel()) * size_of(dtype);
      tensor_bytes_ += static_cast<std::int64_t>(bytes);
      place->second.chunks.push_back({.file = static_cast<int>(rank), .bytes = bytes, .slice = slice});
    }
  }
  if (const std::string problem = cover_problem(manifest_); !problem.empty()) {
    fail({.subject = "checkpoint: the ranks together do not write each tensor exactly once", .got = problem});
  }
  return needed;
}

// The folder may not be what it was at the last save: what is gone from it is told once.
void Saver::meet_folder() {
  root_ = Directory::create(request_.directory, request_.observer);
  if (request_.hold) request_.hold(*root_);
  if (history_.directory == request_.directory) {
    const bool same = history_.folder == root_->identity();
    std::string gone;
    std::erase_if(history_.known, [&](const auto& kin) {
      if (same && root_->contains(kin.first)) return false;
      gone += (gone.empty() ? "" : ", ") + kin.first;
      return true;
    });
    if (!gone.empty())
      log_warning(fmt::format("{}{}: gone are {}", request_.directory,
                              same ? "" : " is another folder than before, which was removed or moved", gone));
  }
  history_.meet(request_.directory, root_->identity());
}

// Older checkpoints of this branch go first where --keep-last allows it, since a disk that is full stays so otherwise.
void Saver::prune_ahead() {
  const FaultScope scope("save.prune");
  std::vector<std::string> names;
  if (request_.history == nullptr) {
    names = checkpoint_names(*root_);
  } else if (history_.parent) {
    const std::vector<Kin> all = list_checkpoints(*root_, &history_);
    if (const Kin* parent = find_kin(all, *history_.parent)) names = branch_of(all, *parent).live;
  }
  add_problem(troubles_,
              prune_checkpoints(
                  *root_, {.names = std::move(names), .keep_last = request_.keep_last, .verified = history_.verified}));
  std::erase_if(history_.known, [&](const auto& kin) { return !root_->contains(kin.first); });
}

void Saver::make_room(std::uint64_t bytes) {
  std::uint64_t available = root_->free_bytes();
  if (available < bytes && request_.keep_last > 0) {
    prune_ahead();
    available = root_->free_bytes();
  }
  if (available >= bytes) return;
  fail({.code = ExitCode::kFileIo,
        .subject = "checkpoint: free space in " + request_.directory,
        .expected = fmt::format("at least {} bytes", bytes),
        .got = std::to_string(available),
        .remedy = fmt::format("free space (checkpoints named *.abandoned-* are of no use to this run){}",
                              request_.keep_last == 0  ? " or give --keep-last"
                              : request_.keep_last > 1 ? " or lower --keep-last"
                                                       : ""),
        .show_place = false});
}

// Rank 0 makes the temporary directory, in a folder with room for the checkpoint.
void Saver::prepare(const std::vector<std::string>& plans) {
  const std::uint64_t bytes = collect(plans);
  {
    const FaultScope scope("save.root");
    meet_folder();
    troubles_ = remove_stale_temporaries(*root_);
    make_room(bytes);
  }
  if (request_.history != nullptr) {
    const FaultScope scope("save.branch");
    std::int64_t last = 0, unknown = 0;
    const std::vector<Kin> all = list_checkpoints(*root_, request_.history);
    history_.find_parent(all);
    for (const Kin& kin : all) {
      last = std::max(last, kin.lineage ? kin.lineage->serial : 0);
      unknown += kin.problem.empty() ? 0 : 1;
    }
    // At the last number there is, the later step counts as saved later.
    manifest_.lineage = {.serial = std::min(last + unknown + 1, kMaxSerial), .parent = history_.parent};
  }
  const FaultScope scope("save.temporary");
  do {
    temporary_ = new_temporary_name(name_);
  } while (!root_->make_directory(temporary_));
  folder_ = root_->open_directory(temporary_);
  folder_->try_lock();
}

void Saver::everyone_writes() {
  const FaultScope scope("save.shard");
  const Directory folder = Directory::open(request_.directory, request_.observer).open_directory(temporary_);
  File file = folder.create_file(rank_file_name(ranks_.rank(), ranks_.size()));
  SafetensorsWriter writer(file, entries_, kFileMetadata);
  for (const Shard* shard : shards_) writer.write(shard->data);
  const SafetensorsWriter::Written written = writer.finish();
  file.sync();
  file.close();
  json chunks = json::object();  // by entry name, which is unique within a file
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    chunks[entries_[i].name] = {written.entry_begin[i], to_hex(written.entry_hash[i])};
  }
  record_ = json{{"bytes", written.file_bytes}, {"hash", to_hex(written.file_hash)}, {"chunks", chunks}}.dump();
}

void Saver::fill_manifest(const std::vector<std::string>& records) {
  std::vector<json> parsed;
  for (std::size_t rank = 0; rank < records.size(); ++rank) {
    parsed.push_back(json::parse(records[rank]));
    manifest_.rank_files[rank] = {.bytes = parsed.back().at("bytes").get<std::uint64_t>(),
                                  .hash = hash_from_hex(parsed.back().at("hash").get<std::string>()).value()};
  }
  for (auto& [name, tensor] : manifest_.tensors) {
    for (ManifestChunk& chunk : tensor.chunks) {
      const json& record =
          parsed[static_cast<std::size_t>(chunk.file)].at("chunks").at(entry_name(name, tensor.shape, chunk.slice));
      chunk.begin = record.at(0).get<std::uint64_t>();
      chunk.hash = hash_from_hex(record.at(1).get<std::string>()).value();
    }
  }
}

void Saver::write_small_files() {
  const FaultScope scope("save.state");
  for (const auto& [name, bytes] : small_files()) {
    const bool fits = bytes.size() <= kMaxSmallFileBytes && manifest_.small_files.size() < kMaxSmallFiles;
    require(fits && is_small_file_name(name), "save_checkpoint: a small file's name, or too much of them");
    write_durably(*folder_, name, bytes);
    manifest_.small_files[name] = {.bytes = bytes.size(), .hash = hash_of(bytes)};
  }
}

void Saver::commit(const std::vector<std::string>& records) {
  fill_manifest(records);
  write_small_files();
  const std::string state = to_json(request_.state);
  manifest_.state_file = {.bytes = state.size(), .hash = hash_of(state)};
  const std::string manifest(kManifestName);
  {
    const FaultScope scope("save.state");
    write_durably(*folder_, std::string(kStateName), state);
  }
  {
    const FaultScope scope("save.manifest");
    const std::string text = to_text(manifest_);
    CheckpointId id{.step = manifest_.step, .hash = {}};
    lineage_from_text(text, id, manifest);
    manifest_.hash = id.hash;
    write_durably(*folder_, manifest + ".tmp", text);
    folder_->rename(manifest + ".tmp", manifest);
  }
  {
    const FaultScope scope("save.folder");
    folder_->sync();
  }
  take_name();
  const FaultScope scope("save.parent");
  root_->sync();
}

void Saver::take_name() {
  const FaultScope scope("save.commit");
  if (root_->contains(name_)) {  // an earlier run got this far, and this one went on from an older checkpoint
    // First the name that the old one will have, so that a temporary name never stands for a checkpoint that counts.
    const std::string aside = name_aside(*root_, name_);
    root_->rename(temporary_, aside);
    temporary_ = aside;
    root_->exchange(temporary_, name_);
    tell_moved(*root_, name_ + " of an earlier save", temporary_, "this one");
  } else {
    root_->rename(temporary_, name_);
  }
  renamed_ = true;
}

// The checkpoint is safe by now; what fails here is only reported.
std::string Saver::after_commit() {
  folder_.reset();
  add_problem(troubles_, attempt([&] { write_latest(); }));
  add_problem(troubles_, attempt([&] { sort_out(); }));
  return troubles_;
}

// Moves aside what does not lead to this checkpoint, and removes what is beyond --keep-last of what does.
void Saver::sort_out() {
  history_.verified.insert(name_);
  Branch branch;
  if (request_.history == nullptr) {  // nobody says where this one comes from
    const FaultScope scope("save.prune");
    branch.live = checkpoint_names(*root_);
  } else {
    const Kin mine{.id = {manifest_.step, manifest_.hash}, .lineage = manifest_.lineage, .problem = {}};
    history_.add(mine.id);
    history_.known[name_] = mine;
    {
      const FaultScope scope("save.branch");
      const std::vector<Kin> all = list_checkpoints(*root_, &history_);
      const Kin* head = find_kin(all, mine.id);
      if (head == nullptr)
        fail({.code = ExitCode::kFileIo, .subject = root_->path() + ": " + name_ + " is gone", .show_place = false});
      branch = branch_of(all, *head);
    }
    const FaultScope scope("save.aside");
    add_problem(troubles_, move_aside(*root_, branch.left, name_));
  }
  const FaultScope scope("save.prune");
  add_problem(troubles_, prune_checkpoints(*root_, {.names = branch.live,
                                                    .keep_last = request_.keep_last,
                                                    .just_saved = name_,
                                                    .verified = history_.verified}));
  std::erase_if(history_.known, [&](const auto& kin) { return !root_->contains(kin.first); });
}

void Saver::write_latest() const {
  const FaultScope scope("save.latest");
  const std::string latest(kLatestName);
  if (root_->contains(latest + ".tmp")) root_->remove_file(latest + ".tmp");
  write_durably(*root_, latest + ".tmp", name_ + "\n");
  root_->rename(latest + ".tmp", latest);
  const FaultScope parent_scope("save.latest_parent");
  root_->sync();
}

SaveResult Saver::failed(std::string problem) {
  if (first() && root_ && !temporary_.empty() && !renamed_) {
    folder_.reset();
    const std::string left = attempt([&] {
      const FaultScope scope("save.cleanup");
      if (root_->contains(temporary_)) root_->remove_tree(temporary_);
    });
    if (!left.empty()) problem += "; and the temporary directory stays: " + left;
  }
  add_problem(problem, troubles_);  // rank 0 alone has any
  return {.saved = false, .message = ranks_.host_broadcast(problem, 0)};
}

SaveResult Saver::run() {
  const auto start = std::chrono::steady_clock::now();
  name_ = checkpoint_name(request_.state.step);
  std::string problem = attempt_on_all_ranks(ranks_, [&] {
    fault_point("save.begin");
    everyone_plans();
  });
  if (!problem.empty()) return failed(problem);

  const std::vector<std::string> plans = ranks_.host_all_gather(plan_);
  fault_point("save.planned");
  problem = attempt_on_all_ranks(ranks_, [&] {
    if (first()) prepare(plans);
  });
  if (!problem.empty()) return failed(problem);

  temporary_ = ranks_.host_broadcast(temporary_, 0);
  problem = attempt_on_all_ranks(ranks_, [&] {
    fault_point("save.prepared");
    everyone_writes();
  });
  if (!problem.empty()) return failed(problem);

  const std::vector<std::string> records = ranks_.host_all_gather(record_);
  fault_point("save.shards_written");
  problem = attempt_on_all_ranks(ranks_, [&] {
    if (first()) commit(records);
  });
  if (!problem.empty()) return failed(problem);

  fault_point("save.committed");
  SaveResult result = {.saved = true, .path = request_.directory + "/" + name_};
  result.message = ranks_.host_broadcast(first() ? after_commit() : "", 0);
  result.bytes = ranks_.host_gather(tensor_bytes_).front();
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  fault_point("save.end");
  return result;
}

}  // namespace

SaveResult save_checkpoint(const SaveRequest& request) { return Saver(request).run(); }

}  // namespace megalith
