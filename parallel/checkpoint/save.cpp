#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <utility>

#include "core/base/error.h"
#include "core/base/files/fault.h"
#include "core/base/log.h"
#include "core/base/seconds_since.h"
#include "core/checkpoint/printable.h"
#include "core/checkpoint/safetensors.h"
#include "parallel/checkpoint/folder.h"
#include "parallel/comm/single_communicator.h"

namespace megalith {
namespace {

const std::map<std::string, std::string> kFileMetadata = {{"format", "megalith-checkpoint"}};

void write_durably(const Directory& directory, const std::string& name, const std::string& text) {
  File file = directory.create_file(name);
  file.write(text);
  file.sync();
  file.close();
}

// One collective save; methods are its steps, in order. Methods with "everyone" run on each rank, the others on rank 0.
class Saver {
 public:
  explicit Saver(const SaveRequest& request)
      : request_(request), ranks_(request.ranks == nullptr ? alone_ : *request.ranks) {}
  SaveResult run();

 private:
  struct Failed {  // thrown on all ranks
    std::string problem;
  };

  void all_ranks_or_none(const std::function<void()>& work);
  void everyone_plans();
  void merge(const std::vector<std::string>& parts);
  std::uint64_t bytes_on_disk() const;
  void prepare(const std::vector<std::string>& parts);
  void meet_folder();
  void prune_ahead();
  void make_room(std::uint64_t bytes);
  void everyone_writes();
  void write_small_files();
  void commit(const std::vector<std::string>& parts);
  void take_name();
  std::string after_commit();
  void sort_out();
  void write_latest() const;
  SaveResult failed(std::string problem);
  bool first() const { return ranks_.rank() == 0; }
  std::string my_part() const { return part_text(part_, ranks_.rank()); }
  std::span<const SmallFile> small_files() const {
    return request_.files == nullptr ? std::span<const SmallFile>() : *request_.files;
  }

  const SaveRequest& request_;
  SingleCommunicator alone_{"checkpoint"};
  Communicator& ranks_;
  std::vector<const Shard*> shards_;  // shards with bytes, or of an empty tensor
  std::vector<SafetensorsWriter::Entry> entries_;
  Manifest part_;                    // of this rank; hashed after writing
  std::string name_, temporary_;     // of the checkpoint
  Manifest manifest_;                // rank 0
  std::optional<Directory> root_;    // rank 0
  std::optional<Directory> folder_;  // rank 0: the temporary directory, locked
  bool renamed_ = false;
  CheckpointHistory own_;  // if the caller has no history
  CheckpointHistory& history_ = request_.history == nullptr ? own_ : *request_.history;
  std::string troubles_;  // rank 0: errors that do not fail the save
};

void Saver::all_ranks_or_none(const std::function<void()>& work) {
  const std::string problem = attempt_on_all_ranks(ranks_, work);
  if (!problem.empty()) throw Failed{problem};
}

void Saver::everyone_plans() {
  part_.rank_files.resize(static_cast<std::size_t>(ranks_.size()));
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
    shards_.push_back(&shard);
    entries_.push_back({entry_name(shard.name, shard.shape, shard.slice), shard.dtype, shard.slice.extents()});
    add_chunk(part_, {shard.name, shard.dtype, shard.shape},
              {.file = ranks_.rank(), .bytes = bytes, .slice = shard.slice, .hash = {}});
  }
  part_.rank_files[static_cast<std::size_t>(ranks_.rank())].bytes = safetensors_file_bytes(entries_, kFileMetadata);
}

void Saver::merge(const std::vector<std::string>& parts) {
  manifest_.tensors.clear();
  manifest_.rank_files.resize(parts.size());
  for (std::size_t rank = 0; rank < parts.size(); ++rank) add_part(manifest_, static_cast<int>(rank), parts[rank]);
}

std::uint64_t Saver::bytes_on_disk() const {
  constexpr std::uint64_t kPerFile = 8192, kPerChunk = 256;  // file-system blocks; manifest text
  std::uint64_t bytes = to_json(request_.state).size() + kPerFile;
  for (const SmallFile& file : small_files()) bytes += file.bytes.size() + kPerFile;
  for (const ManifestFile& file : manifest_.rank_files) bytes += file.bytes + kPerFile;
  for (const auto& [name, tensor] : manifest_.tensors) bytes += kPerChunk * tensor.chunks.size();
  return bytes;
}

// Compares the folder with the last save, and reports missing checkpoints once.
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

// Prunes older checkpoints of this branch first if --keep-last allows, since a full disk stays full otherwise.
void Saver::prune_ahead() {
  const FaultScope scope("save.prune");
  std::vector<std::string> names;
  if (request_.history == nullptr) {
    names = checkpoint_names(*root_);
  } else if (history_.parent) {
    const std::vector<Kin> all = list_checkpoints(*root_, history_);
    if (const Kin* parent = find_kin(all, *history_.parent)) names = branch_of(all, *parent).live;
  }
  add_problem(troubles_, prune_checkpoints(*root_, {.names = std::move(names),
                                                    .keep_last = request_.keep_last,
                                                    .retain_interval = request_.retain_interval,
                                                    .verified = history_.verified}));
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

// Creates the temporary directory, after checks that the ranks write a complete model and that disk space suffices.
void Saver::prepare(const std::vector<std::string>& parts) {
  manifest_.step = request_.state.step;
  merge(parts);
  if (const std::string problem = cover_problem(manifest_); !problem.empty())
    fail({.subject = "checkpoint: the ranks together do not write each tensor exactly once", .got = problem});
  const std::uint64_t bytes = bytes_on_disk();
  {
    const FaultScope scope("save.root");
    meet_folder();
    troubles_ = remove_stale_temporaries(*root_);
    make_room(bytes);
  }
  if (request_.history != nullptr) {
    const FaultScope scope("save.branch");
    std::int64_t last = 0, unknown = 0;
    const std::vector<Kin> all = list_checkpoints(*root_, history_);
    history_.find_parent(all);
    for (const Kin& kin : all) {
      last = std::max(last, kin.lineage ? kin.lineage->serial : 0);
      unknown += kin.problem.empty() ? 0 : 1;
    }
    // At the maximum serial, the later step counts as saved later.
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
  part_.rank_files[static_cast<std::size_t>(ranks_.rank())] = {written.file_bytes, written.file_hash};
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    std::vector<ManifestChunk>& chunks = part_.tensors.at(shards_[i]->name).chunks;
    ManifestChunk& chunk = *std::ranges::find(chunks, shards_[i]->slice, &ManifestChunk::slice);
    chunk.begin = written.entry_begin[i];
    chunk.hash = written.entry_hash[i];
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

void Saver::commit(const std::vector<std::string>& parts) {
  merge(parts);  // now with hashes
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
  if (root_->contains(name_)) {  // an earlier run saved this step, and this run resumed from an older checkpoint
    // Renames to the old checkpoint's future name first, so that a temporary name never holds a valid checkpoint.
    const std::string aside = name_aside(*root_, name_);
    root_->rename(temporary_, aside);
    temporary_ = aside;
    root_->exchange(temporary_, name_);
    report_moved(*root_, name_ + " of an earlier save", temporary_, "this one");
  } else {
    root_->rename(temporary_, name_);
  }
  renamed_ = true;
}

// The checkpoint is already safe; errors here are only reported.
std::string Saver::after_commit() {
  folder_.reset();
  add_problem(troubles_, attempt([&] { write_latest(); }));
  add_problem(troubles_, attempt([&] { sort_out(); }));
  return troubles_;
}

// Moves checkpoints of other branches aside, and prunes this branch by --keep-last.
void Saver::sort_out() {
  history_.verified.insert(name_);
  Branch branch;
  if (request_.history == nullptr) {  // the origin of this checkpoint is unknown
    const FaultScope scope("save.prune");
    branch.live = checkpoint_names(*root_);
  } else {
    const Kin mine{.id = {manifest_.step, manifest_.hash}, .lineage = manifest_.lineage, .problem = {}};
    history_.add(mine.id);
    history_.known[name_] = mine;
    {
      const FaultScope scope("save.branch");
      const std::vector<Kin> all = list_checkpoints(*root_, history_);
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
                                                    .retain_interval = request_.retain_interval,
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
  add_problem(problem, troubles_);  // only rank 0 has any
  return {.saved = false, .step = request_.state.step, .message = ranks_.host_broadcast(problem, 0)};
}

SaveResult Saver::run() {
  const auto start = std::chrono::steady_clock::now();
  name_ = checkpoint_name(request_.state.step);
  try {
    all_ranks_or_none([&] {
      fault_point("save.begin");
      everyone_plans();
    });
    const std::vector<std::string> plans = ranks_.host_all_gather(my_part());
    fault_point("save.planned");
    all_ranks_or_none([&] {
      if (first()) prepare(plans);
    });
    temporary_ = ranks_.host_broadcast(temporary_, 0);
    all_ranks_or_none([&] {
      fault_point("save.prepared");
      everyone_writes();
    });
    const std::vector<std::string> written = ranks_.host_all_gather(my_part());
    fault_point("save.shards_written");
    all_ranks_or_none([&] {
      if (first()) commit(written);
    });
  } catch (const Failed& failure) {
    return failed(failure.problem);
  }
  fault_point("save.committed");
  SaveResult result = {.saved = true, .step = request_.state.step, .path = request_.directory + "/" + name_};
  result.message = ranks_.host_broadcast(first() ? after_commit() : "", 0);
  std::int64_t bytes = 0;
  for (const Shard* shard : shards_) bytes += static_cast<std::int64_t>(shard->data.size());
  for (const std::int64_t each : ranks_.host_gather(bytes)) result.bytes += each;
  result.seconds = seconds_since(start);
  fault_point("save.end");
  return result;
}

}  // namespace

SaveResult save_checkpoint(const SaveRequest& request) { return Saver(request).run(); }

}  // namespace megalith
