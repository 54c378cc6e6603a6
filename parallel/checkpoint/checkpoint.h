// Saving and finding checkpoints. Files:
//   DIR/step_0000100/rank_0000_of_0002.safetensors   shards; exactly one rank writes each slice
//   DIR/step_0000100/state.json                      TrainState
//   DIR/step_0000100/NAME                            small files, such as the tokenizer's
//   DIR/step_0000100/manifest.json                   size and XXH3-128 of every file and shard; format version
//   DIR/LATEST                                       hint for people and scripts; loading does not trust it
//   DIR/step_0000200.abandoned-1                     checkpoint of an abandoned branch; never loaded or removed
// A checkpoint is written under a temporary name and appears by one rename after all of it is durable. So a directory
// named step_N is complete, unless it was damaged later, which its hashes show.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "core/base/files/file.h"
#include "core/checkpoint/shard.h"
#include "core/checkpoint/train_state.h"
#include "parallel/checkpoint/manifest.h"
#include "parallel/comm/communicator.h"

namespace megalith {

// A checkpoint of a folder.
struct Kin {
  CheckpointId id;
  std::optional<Lineage> lineage;
  std::string problem;  // why its manifest is unreadable; other fields are then unknown

  std::string name() const { return checkpoint_name(id.step); }
  bool is(const CheckpointId& other) const { return problem.empty() && id == other; }
};

// A run's knowledge of its checkpoints, which the trainer keeps from loading on. Saves continue from the parent, and do
// not read known manifests again. Only rank 0's history is used.
struct CheckpointHistory {
  std::optional<CheckpointId> parent;  // loaded or saved last; none: the run began at step 0
  FileId parent_folder;                // folder of the parent
  std::vector<CheckpointId> own;       // all that this process loaded or saved, in order
  std::string directory;               // folder that the fields below describe
  FileId folder;
  Directory held;                    // keeps the folder's number from being reused
  std::set<std::string> verified;    // names that this process wrote, or verified by all hashes
  std::map<std::string, Kin> known;  // by name

  // Forgets checkpoints of any other folder.
  void meet(const std::string& path, const FileId& id);
  // Adds a checkpoint that was loaded or saved now.
  void add(const CheckpointId& id);
  // Sets the parent of a checkpoint saved among `all`, whose folder may differ from the last save's. The parent is the
  // newest of `own` that exists there; none if there is no such checkpoint.
  void find_parent(const std::vector<Kin>& all);
};

// A file that a checkpoint stores unchanged; limits: kMaxSmallFiles.
struct SmallFile {
  std::string name;
  std::string bytes;
};

struct SaveRequest {
  std::string directory;                          // created if missing
  TrainState state;                               // rank 0's is stored; the step defines the checkpoint's name
  std::vector<Shard> shards;                      // written by this rank (see assign_writers); data must stay valid
  const std::vector<SmallFile>* files = nullptr;  // optional; rank 0's are written; must stay valid
  int keep_last = 0;                              // number of verified checkpoints to keep; 0 keeps all
  std::int64_t retain_interval = 0;               // steps whose multiples stay in any case; 0: none
  // If set, the checkpoint records its parent, and checkpoints of other branches are moved aside.
  CheckpointHistory* history = nullptr;
  Communicator* ranks = nullptr;                    // all ranks that write; null: this one
  const FileObserver* observer = nullptr;           // sees each file operation first; for tests and logs
  std::function<void(const Directory&)> hold = {};  // rank 0, ahead of writing: throws if another run holds it
};

struct SaveResult {
  bool saved = false;
  std::int64_t step = 0;   // of the request
  std::string message;     // error; if saved, errors after the commit; equal on all ranks
  std::string path;        // of the saved checkpoint
  std::int64_t bytes = 0;  // of tensor data over all ranks
  double seconds = 0.0;
};

// Collective. Does not throw for errors of files or shards on any rank. All ranks then return equal results with `saved
// == false`. The temporary directory is removed, and older checkpoints are unchanged. Exhausted memory is thrown as
// std::bad_alloc on its rank and must end all ranks; the next save removes the leftovers. The ranks' shards together
// must cover each tensor exactly once.
SaveResult save_checkpoint(const SaveRequest& request);

// An open, verified checkpoint. Reads are local to a rank and may differ between ranks.
class LoadedCheckpoint {
 public:
  LoadedCheckpoint(Directory folder, Manifest manifest, TrainState state);

  const std::string& path() const { return folder_.path(); }
  const TrainState& state() const { return state_; }
  int saved_world() const { return manifest_.world(); }  // number of ranks that wrote it
  std::vector<TensorSpec> tensors() const;               // sorted by name
  bool has(const std::string& name) const { return manifest_.tensors.contains(name); }
  std::vector<std::string> small_files() const;  // sorted names
  std::string read_small_file(const std::string& name) const;

  // Compares the model's tensors with the checkpoint's. Fails (kFormat) and lists missing, unexpected and mis-shaped
  // tensors, or tensors of another dtype. Unexpected tensors count only for kinds in `wanted`, so a run without the
  // optimizer ignores its kinds.
  void check_tensors(std::span<const TensorSpec> wanted) const;

  // Fills `out` (slice.numel() elements of the tensor's dtype, row-major) from the files that hold the slice, for any
  // split of the saving run. Verifies hashes during the copy; a mismatch is kFormat.
  void read(const std::string& name, const Slice& slice, std::span<std::byte> out);

 private:
  struct OpenFile {
    File file;
    std::uint64_t data_start = 0;
  };
  const OpenFile& file(int rank);

  Directory folder_;
  Manifest manifest_;
  TrainState state_;
  std::map<int, OpenFile> open_;  // by writing rank; a few at a time
};

struct LoadRequest {
  std::string directory;
  std::optional<std::int64_t> step;      // --ckpt-step: only this step
  CheckpointHistory* history = nullptr;  // optional; records the found checkpoints
  Communicator* ranks = nullptr;         // null: this one
  const FileObserver* observer = nullptr;
};

// Collective. Returns the newest completely verified checkpoint of the branch that was saved last; each rank hashes a
// part of the files. Damaged checkpoints are skipped with a warning and the reason. Returns nothing if `directory` is
// missing or has no checkpoint, and no step was requested. Fails (kNoCheckpoint) equally on all ranks if no checkpoint,
// or not the requested step, is valid.
std::optional<LoadedCheckpoint> find_checkpoint(const LoadRequest& request);

}  // namespace megalith
