// A small model's tensors, threads as ranks, and the usual checks, for the tests of checkpoints.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/checkpoint/shard.h"
#include "parallel/checkpoint/background_save.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/comm/single_communicator.h"
#include "tests/support/faults.h"
#include "tests/support/test_folder.h"
#include "tests/thread_ranks/thread_communicator.h"
#include "tests/unit/checkpoint/expect_error.h"

namespace megalith {

struct Crash {};  // not a std::exception: nothing catches it, nothing cleans up

struct TestTensor {
  TensorSpec spec;
  std::string bytes;  // the unsharded tensor
};

// fp32, bf16, a vector, a scalar and an empty tensor; contents depend on name and seed.
inline std::vector<TestTensor> test_model(int seed) {
  std::vector<TestTensor> model;
  const auto add = [&](const std::string& name, DType dtype, const Shape& shape) {
    TestTensor tensor = {{name, dtype, shape},
                         std::string(static_cast<std::size_t>(shape.numel()) * size_of(dtype), '\0')};
    std::uint32_t value = 12345u + static_cast<std::uint32_t>(seed) * 977u + static_cast<std::uint32_t>(model.size());
    for (char& c : tensor.bytes) {
      value = value * 1664525u + 1013904223u;
      c = static_cast<char>(value >> 24);
    }
    model.push_back(std::move(tensor));
  };
  add("param/embed.weight", DType::kBf16, {12, 8});
  add("main_param/embed.weight", DType::kFp32, {12, 8});
  add("exp_avg/embed.weight", DType::kFp32, {12, 8});
  add("param/layers.0.bias", DType::kFp32, {5});
  add("param/scale", DType::kFp32, {});
  add("param/none", DType::kFp32, {0, 4});
  add("param/cube", DType::kFp32, {4, 3, 2});
  return model;
}

// The bytes of a slice, element by element.
inline std::string cut(const TestTensor& tensor, const Slice& slice) {
  const std::size_t item = size_of(tensor.spec.dtype);
  const Shape& shape = tensor.spec.shape;
  std::string out;
  for (std::int64_t flat = 0; flat < shape.numel(); ++flat) {
    bool inside = !slice.flat || (flat >= slice.start[0] && flat < slice.stop[0]);
    std::int64_t rest = flat;
    for (int d = shape.rank() - 1; d >= 0 && !slice.flat; --d) {
      const auto i = static_cast<std::size_t>(d);
      inside = inside && rest % shape[d] >= slice.start[i] && rest % shape[d] < slice.stop[i];
      rest /= shape[d];
    }
    if (inside) out.append(tensor.bytes, static_cast<std::size_t>(flat) * item, item);
  }
  return out;
}

// Keeps the memory that shards view.
class ShardList {
 public:
  void add(const TestTensor& tensor, const Slice& slice) {
    bytes_.push_back(std::make_unique<std::string>(cut(tensor, slice)));
    shards_.push_back(
        {tensor.spec.name, tensor.spec.dtype, tensor.spec.shape, slice, std::as_bytes(std::span(*bytes_.back()))});
  }
  const std::vector<Shard>& get() const { return shards_; }

 private:
  std::vector<std::unique_ptr<std::string>> bytes_;
  std::vector<Shard> shards_;
};

inline ShardList whole_tensors(const std::vector<TestTensor>& model) {
  ShardList list;
  for (const TestTensor& tensor : model) list.add(tensor, Slice::whole(tensor.spec.shape));
  return list;
}

inline TrainState state_at(std::int64_t step) {
  TrainState state;
  state.step = step;
  state.consumed_samples = step * 8;
  state.config = {{"hidden-size", "8"}};
  return state;
}

// The shards that a rank writes if all ranks hold each of them.
inline std::vector<Shard> shards_of(const ShardList& all, const Communicator& ranks) {
  const std::vector<int> writers = assign_writers(all.get(), ranks.size());
  std::vector<Shard> mine;
  for (std::size_t i = 0; i < writers.size(); ++i) {
    if (writers[i] == ranks.rank()) mine.push_back(all.get()[i]);
  }
  return mine;
}

// Ranks as threads.
class ThreadRanks {
 public:
  explicit ThreadRanks(int size) : world_(size) {}

  // Runs `work` once per rank; an exception of any is the test's failure.
  void run(const std::function<void(Communicator&)>& work) {
    world_.run([&](Communicator& ranks) {
      try {
        work(ranks);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << ranks.rank() << ": " << error.what();
      }
    });
  }

 private:
  ThreadWorld world_;
};

inline Communicator& one_rank() {
  static SingleCommunicator alone("one rank");
  return alone;
}

// Kept next to the tensors.
inline const std::vector<SmallFile>& test_files() {
  static const std::vector<SmallFile> kFiles = {{"tokenizer.json", R"({"model": "of a test"})"}};
  return kFiles;
}

// Saves test_model(step), which is replicated on all ranks: each writes its part.
inline SaveResult save_shared(Communicator& ranks, const std::string& directory, std::int64_t step, int keep_last = 0,
                              const FileObserver* observer = nullptr, CheckpointHistory* history = nullptr) {
  const auto model = test_model(static_cast<int>(step));
  const ShardList all = whole_tensors(model);
  return save_checkpoint({.directory = directory,
                          .state = state_at(step),
                          .shards = shards_of(all, ranks),
                          .files = &test_files(),
                          .keep_last = keep_last,
                          .history = history,
                          .ranks = &ranks,
                          .observer = observer});
}

// The same by a thread of `background`.
inline SaveResult save_async(BackgroundSave& background, Communicator& ranks, const std::string& directory,
                             std::int64_t step, int keep_last = 0, const FileObserver* observer = nullptr) {
  const ShardList all = whole_tensors(test_model(static_cast<int>(step)));
  background.begin({.directory = directory,
                    .state = state_at(step),
                    .shards = shards_of(all, ranks),
                    .files = &test_files(),
                    .keep_last = keep_last,
                    .ranks = &ranks,
                    .observer = observer},
                   [] {});
  return background.wait();
}

inline SaveResult save_alone(const std::string& directory, std::int64_t step, int keep_last = 0,
                             const FileObserver* observer = nullptr) {
  return save_shared(one_rank(), directory, step, keep_last, observer);
}

inline std::string read_slice(LoadedCheckpoint& checkpoint, const TestTensor& tensor, const Slice& slice) {
  std::string bytes(static_cast<std::size_t>(slice.numel()) * size_of(tensor.spec.dtype), '?');
  checkpoint.read(tensor.spec.name, slice, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

// Step of the newest valid checkpoint after comparing all of its tensors with test_model(seed); -1 for none.
inline std::int64_t load_alone(const std::string& directory, int seed_offset = 0) {
  auto found = find_checkpoint({.directory = directory});
  if (!found) return -1;
  const std::int64_t step = found->state().step;
  EXPECT_EQ(found->state().consumed_samples, step * 8);
  for (const TestTensor& tensor : test_model(static_cast<int>(step) + seed_offset)) {
    EXPECT_EQ(read_slice(*found, tensor, Slice::whole(tensor.spec.shape)), tensor.bytes) << tensor.spec.name;
  }
  for (const std::string& name : found->small_files()) {
    EXPECT_EQ(name, test_files()[0].name);
    EXPECT_EQ(found->read_small_file(name), test_files()[0].bytes);
  }
  return step;
}

// File names in a folder.
inline std::vector<std::string> names_in(const std::string& directory) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace megalith
