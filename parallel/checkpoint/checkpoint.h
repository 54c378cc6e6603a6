// Saving and finding checkpoints. On disk:
//   DIR/step_0000100/rank_0000_of_0002.safetensors   shards; every slice is written by exactly one rank
//   DIR/step_0000100/state.json                      TrainState
//   DIR/step_0000100/NAME                            small files, such as the tokenizer's
//   DIR/step_0000100/manifest.json                   size and XXH3-128 of every file and every shard; format version
//   DIR/LATEST                                       a hint for people and scripts; loading does not trust it
//   DIR/step_0000200.abandoned-1                     of a branch that a run left; nothing loads or removes it
// A checkpoint is written under a temporary name and appears by one rename after everything in it is durable, so a
// directory named step_N is complete or was damaged later, which its hashes show.
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

// A checkpoint among those of its folder.
struct Kin {
  CheckpointId id;
  std::optional<Lineage> lineage;
  std::string problem;  // why its manifest cannot be read; then the rest is not known

  std::string name() const { return checkpoint_name(id.step); }
  bool is(const CheckpointId& other) const { return problem.empty() && id == other; }
};

// What a run knows of its checkpoints. Kept by the trainer from loading on: saves go on from the parent, and what was
// read once is not read again at each of them. Rank 0's counts.
struct CheckpointHistory {
  std::optional<CheckpointId> parent;  // loaded or saved last; none: the run began at step 0
  FileId parent_folder;                // where that is
  std::vector<CheckpointId> own;       // all that this process loaded or saved, the last one last
  std::string directory;               // that the rest is about
  FileId folder;
  Directory held;                    // that folder, so that no other one gets its number
  std::set<std::string> verified;    // names that this process wrote or verified hash by hash
  std::map<std::string, Kin> known;  // by name

  // Forgets what it knows of any other folder.
  void meet(const std::string& path, const FileId& id);
  // Loaded or saved now.
  void add(const CheckpointId& id);
  // The parent of a checkpoint that is saved among `all`, a folder that may be another than that of the last: the
  // newest of one's own that is there. None: nothing there leads to it.
  void find_parent(const std::vector<Kin>& all);
};

// A file that a checkpoint keeps as it is: see kMaxSmallFiles.
struct SmallFile {
  std::string name;
  std::string bytes;
};

struct SaveRequest {
  std::string directory;      // created if missing
  TrainState state;           // rank 0's is stored; its step names the checkpoint on all ranks
  std::vector<Shard> shards;  // those that this rank writes (see assign_writers); data must stay valid meanwhile
  const std::vector<SmallFile>* files = nullptr;  // optional; rank 0's are written and must stay valid meanwhile
  int keep_last = 0;                              // verified checkpoints that stay after pruning; 0 keeps all
  // With it the checkpoint says where it comes from, and those that do not lead to it are moved aside.
  CheckpointHistory* history = nullptr;
  Communicator* ranks = nullptr;                    // all that write the checkpoint; null: this one alone
  const FileObserver* observer = nullptr;           // sees each file operation first; for tests and logs
  std::function<void(const Directory&)> hold = {};  // rank 0, before it writes: throws where the folder is another's
};

struct SaveResult {
  bool saved = false;
  std::int64_t step = 0;   // of the request
  std::string message;     // why it failed; or, when saved, what went wrong after the commit; the same on all ranks
  std::string path;        // of the checkpoint, when saved
  std::int64_t bytes = 0;  // of tensor data over all ranks
  double seconds = 0.0;
};

// Collective. Never throws for what goes wrong with files or the shards of any rank: all ranks then return the same
// `saved == false`, the temporary directory is removed and older checkpoints are untouched. Memory that runs out is
// thrown as std::bad_alloc on the rank where it did, which must end all ranks; the next save removes what is left.
// Together the ranks' shards must cover each named tensor exactly once.
SaveResult save_checkpoint(const SaveRequest& request);

// An open, verified checkpoint. Reads are local to a rank and may differ between ranks.
class LoadedCheckpoint {
 public:
  LoadedCheckpoint(Directory folder, Manifest manifest, TrainState state);

  const std::string& path() const { return folder_.path(); }
  const TrainState& state() const { return state_; }
  int saved_world() const { return manifest_.world(); }  // ranks that wrote it
  std::vector<TensorSpec> tensors() const;               // by name
  bool has(const std::string& name) const { return manifest_.tensors.contains(name); }
  std::vector<std::string> small_files() const;  // names, in order
  std::string read_small_file(const std::string& name) const;

  // The model's tensors against the checkpoint's. Fails (kFormat) with the names that are missing, that are extra or
  // whose dtype or shape differs. Extra counts only among the kinds that occur in `wanted`, so that a run that does not
  // load the optimizer leaves its kinds out.
  void check_tensors(std::span<const TensorSpec> wanted) const;

  // Fills `out` (slice.numel() elements of the tensor's dtype, row-major) from whichever files hold the slice; the run
  // that saved may have been cut differently. Bytes are checked against their hash while they are copied: kFormat.
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
  std::map<int, OpenFile> open_;  // by rank that wrote; a few at a time
};

struct LoadRequest {
  std::string directory;
  std::optional<std::int64_t> step;      // --ckpt-step: this one or none
  CheckpointHistory* history = nullptr;  // optional; gets what was found
  Communicator* ranks = nullptr;         // null: this one alone
  const FileObserver* observer = nullptr;
};

// Collective. The newest checkpoint, on the branch that was saved to last, that verifies completely; each rank hashes
// its share of the files. A damaged one is passed over with a warning that says why. Nothing when `directory` is
// missing or holds no checkpoint at all and no step was asked for. Fails (kNoCheckpoint), on all ranks alike, when
// there are some but none is valid, or not the wanted step.
std::optional<LoadedCheckpoint> find_checkpoint(const LoadRequest& request);

}  // namespace megalith
