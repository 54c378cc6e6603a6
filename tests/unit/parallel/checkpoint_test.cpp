// Round trips over ranks and layouts, and reports of loading about a model that does not fit.
#include "parallel/checkpoint/checkpoint.h"

#include <gtest/gtest.h>

#include <atomic>

#include "parallel/checkpoint/folder.h"
#include "parallel/checkpoint/manifest.h"
#include "tests/unit/parallel/checkpoint_support.h"

namespace megalith {
namespace {

namespace fs = std::filesystem;

// Rank r's part of a tensor among `world` in one of several layouts.
Slice part(const Shape& shape, int layout, int rank, int world) {
  const auto split = [&](std::int64_t extent) { return std::pair(extent * rank / world, extent * (rank + 1) / world); };
  if (layout == 0 || shape.rank() == 0) {  // flat ranges, as FSDP cuts
    const auto [start, stop] = split(shape.numel());
    return Slice::range(start, stop);
  }
  Slice slice = Slice::whole(shape);  // boxes along the first or the last dim, as tensor parallelism cuts
  const std::size_t d = layout == 1 ? 0 : slice.start.size() - 1;
  std::tie(slice.start[d], slice.stop[d]) = split(shape[static_cast<int>(d)]);
  return slice;
}

TEST(Checkpoint, RoundTripOfOneRank) {
  const TestFolder folder;
  EXPECT_EQ(load_alone(folder.path("save")), -1);
  const SaveResult result = save_alone(folder.path("save"), 7);
  ASSERT_TRUE(result.saved) << result.message;
  EXPECT_EQ(result.message, "");
  EXPECT_EQ(result.path, folder.path("save/step_0000007"));
  std::int64_t bytes = 0;
  for (const TestTensor& tensor : test_model(7)) bytes += static_cast<std::int64_t>(tensor.bytes.size());
  EXPECT_EQ(result.bytes, bytes);
  EXPECT_EQ(names_in(folder.path("save")), (std::vector<std::string>{"LATEST", "step_0000007"}));
  EXPECT_EQ(
      names_in(folder.path("save/step_0000007")),
      (std::vector<std::string>{"manifest.json", "rank_0000_of_0001.safetensors", "state.json", "tokenizer.json"}));
  EXPECT_EQ(read_bytes(folder.path("save/LATEST")), "step_0000007\n");
  EXPECT_EQ(load_alone(folder.path("save")), 7);
}

TEST(Checkpoint, EveryLayoutLoadsIntoEveryOther) {
  const TestFolder folder;
  const auto model = test_model(3);
  std::atomic<int> compared = 0;
  for (const int save_world : {1, 3, 4}) {
    for (int save_layout = 0; save_layout < 3; ++save_layout) {
      const std::string directory = folder.path("save" + std::to_string(save_world) + std::to_string(save_layout));
      ThreadRanks(save_world).run([&](Communicator& ranks) {
        ShardList shards;
        for (const TestTensor& tensor : model) {
          shards.add(tensor, part(tensor.spec.shape, save_layout, ranks.rank(), ranks.size()));
        }
        // The empty tensor has no elements to divide: only rank 0 writes it.
        std::vector<Shard> mine;
        for (const Shard& shard : shards.get()) {
          if (shard.shape.numel() > 0 || ranks.rank() == 0) mine.push_back(shard);
        }
        const SaveResult result =
            save_checkpoint({.directory = directory, .state = state_at(3), .shards = mine, .ranks = &ranks});
        EXPECT_TRUE(result.saved) << result.message;
      });
      for (const int load_world : {1, 2, 4}) {
        ThreadRanks(load_world).run([&](Communicator& ranks) {
          auto found = find_checkpoint({.directory = directory, .ranks = &ranks});
          ASSERT_TRUE(found.has_value());
          EXPECT_EQ(found->saved_world(), save_world);
          EXPECT_EQ(found->state().step, 3);
          for (int layout = 0; layout < 3; ++layout) {
            for (const TestTensor& tensor : model) {
              const Slice slice = part(tensor.spec.shape, layout, ranks.rank(), ranks.size());
              EXPECT_EQ(read_slice(*found, tensor, slice), cut(tensor, slice)) << tensor.spec.name << to_string(slice);
              ++compared;
            }
          }
        });
      }
    }
  }
  EXPECT_EQ(compared, 3 * 3 * (1 + 2 + 4) * 3 * 7);
}

TEST(Checkpoint, DataParallelRanksShareTheWriting) {
  const TestFolder folder;
  const auto model = test_model(5);
  ThreadRanks(4).run([&](Communicator& ranks) {
    const ShardList all = whole_tensors(model);
    const std::vector<Shard> mine = shards_of(all, ranks);
    const SaveResult result =
        save_checkpoint({.directory = folder.path("save"), .state = state_at(5), .shards = mine, .ranks = &ranks});
    EXPECT_TRUE(result.saved) << result.message;
    EXPECT_FALSE(mine.empty());
  });
  EXPECT_EQ(names_in(folder.path("save/step_0000005")).size(), 6u);
  EXPECT_EQ(load_alone(folder.path("save")), 5);
}

TEST(Checkpoint, OfMoreFilesThanAreKeptOpen) {
  const TestFolder folder;
  constexpr int kRanks = 66;
  TestTensor rows = {{"param/rows", DType::kUint8, {kRanks, 3}}, std::string(3 * kRanks, '\0')};
  for (std::size_t i = 0; i < rows.bytes.size(); ++i) rows.bytes[i] = static_cast<char>(i);
  ThreadRanks(kRanks).run([&](Communicator& ranks) {
    ShardList shards;
    shards.add(rows, Slice::box({ranks.rank(), 0}, {ranks.rank() + 1, 3}));
    const SaveResult result = save_checkpoint(
        {.directory = folder.path("save"), .state = state_at(1), .shards = shards.get(), .ranks = &ranks});
    EXPECT_TRUE(result.saved) << result.message;
  });
  auto found = find_checkpoint({.directory = folder.path("save")});
  ASSERT_TRUE(found.has_value());
  for (int pass = 0; pass < 2; ++pass) {
    EXPECT_EQ(read_slice(*found, rows, Slice::whole(rows.spec.shape)), rows.bytes);
    int open = 0;
    for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
      std::error_code ignored;
      open += fs::read_symlink(entry.path(), ignored).extension() == ".safetensors";
    }
    EXPECT_GT(open, 0);
    EXPECT_LE(open, 64);
  }
}

TEST(Checkpoint, EmptyTensorsShareOnePlace) {
  const TestFolder folder;
  ShardList shards;
  for (const char* name : {"param/c", "param/a", "param/b"})
    shards.add({{name, DType::kFp32, {0, 4}}, ""}, Slice::whole({0, 4}));
  ASSERT_TRUE(save_checkpoint({.directory = folder.path("save"), .state = state_at(1), .shards = shards.get()}).saved);
  const auto found = find_checkpoint({.directory = folder.path("save")});
  ASSERT_TRUE(found.has_value());
  for (const char* name : {"param/a", "param/b", "param/c"}) EXPECT_TRUE(found->has(name)) << name;
}

TEST(Checkpoint, TensorsLargerThanABlockOfReadingSurvive) {
  const TestFolder folder;
  TestTensor big = {{"param/big", DType::kUint8, {3, 3'000'017}}, std::string(9'000'051, '\0')};
  for (std::size_t i = 0; i < big.bytes.size(); ++i) big.bytes[i] = static_cast<char>(i % 251);
  const SaveResult result =
      save_checkpoint({.directory = folder.path("save"),
                       .state = state_at(1),
                       .shards = {{big.spec.name, big.spec.dtype, big.spec.shape, Slice::whole(big.spec.shape),
                                   std::as_bytes(std::span(big.bytes))}}});
  ASSERT_TRUE(result.saved) << result.message;
  auto found = find_checkpoint({.directory = folder.path("save")});
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(read_slice(*found, big, Slice::whole(big.spec.shape)), big.bytes);
  const Slice middle = Slice::range(4'194'301, 8'388'613);  // straddles several blocks of reading
  EXPECT_EQ(read_slice(*found, big, middle), big.bytes.substr(4'194'301, 4'194'312));
  const Slice columns = Slice::box({0, 2'999'000}, {3, 3'000'017});
  EXPECT_EQ(read_slice(*found, big, columns), cut(big, columns));
}

TEST(Checkpoint, ShardsThatDoNotMakeAModelAreNotSaved) {
  const TestFolder folder;
  const auto model = test_model(1);
  const std::string data(96, 'x');
  const auto bytes = std::as_bytes(std::span(data));
  const auto save = [&](std::vector<Shard> shards) {
    const SaveResult result =
        save_checkpoint({.directory = folder.path("save"), .state = state_at(1), .shards = std::move(shards)});
    EXPECT_FALSE(result.saved);
    return result.message;
  };
  const Shard good = {"param/x", DType::kFp32, {4, 6}, Slice::whole({4, 6}), bytes};
  Shard bad = good;
  bad.slice = Slice::range(0, 23);
  bad.data = bytes.first(92);
  EXPECT_NE(save({bad}).find("param/x: 1 of 24 elements are missing"), std::string::npos);
  EXPECT_NE(save({good, good}).find("param/x: slice"), std::string::npos);
  bad = good;
  bad.data = bytes.first(95);
  EXPECT_NE(save({bad}).find("expected 96 bytes"), std::string::npos);
  bad = good;
  bad.slice = Slice::box({0, 0}, {4, 7});
  EXPECT_NE(save({bad}).find("leaves the extent"), std::string::npos);
  bad = good;
  bad.name = "param/x@y";
  EXPECT_NE(save({bad}).find("printable ASCII"), std::string::npos);
  EXPECT_FALSE(fs::exists(folder.path("save/step_0000001")));
  EXPECT_TRUE(!fs::exists(folder.path("save")) || names_in(folder.path("save")).empty());
}

TEST(Checkpoint, RanksThatDisagreeOnATensorDoNotSave) {
  const TestFolder folder;
  ThreadRanks(2).run([&](Communicator& ranks) {
    const std::string data(96, 'x');
    const Shape shape = ranks.rank() == 0 ? Shape{4, 6} : Shape{6, 4};
    const SaveResult result = save_checkpoint(
        {.directory = folder.path("save"),
         .state = state_at(1),
         .shards = {{"param/x", DType::kFp32, shape, Slice::range(ranks.rank() * 12, ranks.rank() * 12 + 12),
                     std::as_bytes(std::span(data)).first(48)}},
         .ranks = &ranks});
    EXPECT_FALSE(result.saved);
    EXPECT_NE(result.message.find("one global shape"), std::string::npos) << result.message;
  });
}

TEST(Checkpoint, CheckTensorsListsNames) {
  const TestFolder folder;
  ASSERT_TRUE(save_alone(folder.path("save"), 1).saved);
  const auto found = find_checkpoint({.directory = folder.path("save")});
  ASSERT_TRUE(found.has_value());
  std::vector<TensorSpec> wanted = found->tensors();
  ASSERT_EQ(wanted.size(), 7u);
  found->check_tensors(wanted);

  std::vector<TensorSpec> params;
  for (const TensorSpec& spec : wanted) {
    if (kind_of(spec.name) == kParamKind) params.push_back(spec);
  }
  found->check_tensors(params);  // the optimizer's tensors are not asked for

  std::vector<TensorSpec> more = wanted;
  more.push_back({"param/layers.1.bias", DType::kFp32, {5}});
  EXPECT_ERROR(ExitCode::kFormat, "missing: param/layers.1.bias", found->check_tensors(more));
  params.pop_back();
  EXPECT_ERROR(ExitCode::kFormat, "extra: param/scale", found->check_tensors(params));
  more = wanted;
  for (TensorSpec& spec : more) {
    if (spec.name == "param/layers.0.bias") spec.shape = {6};
    if (spec.name == "param/scale") spec.dtype = DType::kBf16;
  }
  EXPECT_ERROR(ExitCode::kFormat,
               "param/layers.0.bias (expected fp32 [6], got fp32 [5]), param/scale (expected bf16 [], got fp32 [])",
               found->check_tensors(more));
  more = wanted;
  for (TensorSpec& spec : more) {
    if (spec.name == "param/cube") spec.shape = {4, 3, 5};
  }
  for (int i = 10; i < 23; ++i) more.push_back({"param/more." + std::to_string(i), DType::kFp32, {5}});
  EXPECT_ERROR(ExitCode::kFormat,
               "param/more.20, param/more.21 and 1 more; of another dtype or shape: param/cube (expected fp32 [4, 3, "
               "5], got fp32 [4, 3, 2])",
               found->check_tensors(more));
}

TEST(Checkpoint, ReadRefusesUnknownNamesAndSlices) {
  const TestFolder folder;
  ASSERT_TRUE(save_alone(folder.path("save"), 1).saved);
  auto found = find_checkpoint({.directory = folder.path("save")});
  std::array<std::byte, 20> out;
  EXPECT_TRUE(found->has("param/layers.0.bias"));
  EXPECT_FALSE(found->has("param/other"));
  EXPECT_ERROR(ExitCode::kFormat, "no tensor 'param/other'", found->read("param/other", Slice::whole({5}), out));
  EXPECT_ERROR(ExitCode::kInternal, "leaves the extent", found->read("param/layers.0.bias", Slice::range(1, 6), out));
  EXPECT_ERROR(ExitCode::kInternal, "size of the slice", found->read("param/layers.0.bias", Slice::range(1, 5), out));
}

TEST(Checkpoint, DamageAfterVerificationIsFoundWhileReading) {
  const TestFolder folder;
  ASSERT_TRUE(save_alone(folder.path("save"), 1).saved);
  auto found = find_checkpoint({.directory = folder.path("save")});
  const std::string path = folder.path("save/step_0000001/rank_0000_of_0001.safetensors");
  std::string bytes = read_bytes(path);
  for (std::size_t i = bytes.size() - 700; i < bytes.size(); ++i) bytes[i] = static_cast<char>(bytes[i] ^ 1);
  write_bytes(path, bytes);
  int refused = 0;
  for (const TestTensor& tensor : test_model(1)) {
    try {
      read_slice(*found, tensor, Slice::whole(tensor.spec.shape));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kFormat);
      EXPECT_NE(std::string(error.what()).find(tensor.spec.name), std::string::npos);
      ++refused;
    }
  }
  EXPECT_GT(refused, 0);
}

TEST(Checkpoint, AHeaderThatGrewAfterVerificationIsFoundWhileReading) {
  const TestFolder folder;
  ASSERT_TRUE(save_alone(folder.path("save"), 1).saved);
  auto found = find_checkpoint({.directory = folder.path("save")});
  const std::string path = folder.path("save/step_0000001/rank_0000_of_0001.safetensors");
  std::string bytes = read_bytes(path);
  bytes[3] = 1;  // 16 MiB
  write_bytes(path, bytes);
  const TestTensor tensor = test_model(1).front();
  EXPECT_ERROR(ExitCode::kFormat, path + ": changed since it was verified",
               read_slice(*found, tensor, Slice::whole(tensor.spec.shape)));
}

TEST(Checkpoint, WantedStep) {
  const TestFolder folder;
  EXPECT_ERROR(ExitCode::kNoCheckpoint, "there is none of that step",
               find_checkpoint({.directory = folder.path("none"), .step = 1}));
  ASSERT_TRUE(save_alone(folder.path("save"), 1).saved);
  ASSERT_TRUE(save_alone(folder.path("save"), 2).saved);
  const auto found = find_checkpoint({.directory = folder.path("save"), .step = 1});
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->state().step, 1);
  EXPECT_ERROR(ExitCode::kNoCheckpoint, "no valid checkpoint in " + folder.path("save") + " for step 3",
               find_checkpoint({.directory = folder.path("save"), .step = 3}));
  write_bytes(folder.path("save/step_0000001/state.json"), "{}");
  EXPECT_ERROR(ExitCode::kNoCheckpoint,
               "tried step_0000001: ", find_checkpoint({.directory = folder.path("save"), .step = 1}));
}

TEST(CheckpointManifest, NamesAreExact) {
  EXPECT_EQ(checkpoint_name(100), "step_0000100");
  EXPECT_EQ(rank_file_name(1, 16), "rank_0001_of_0016.safetensors");
  EXPECT_EQ(step_of_name("step_0000100"), 100);
  EXPECT_EQ(step_of_name("step_12345678"), 12345678);
  for (const char* bad : {"step_100", "step_00000100", "step_", "step_-000001", "step_0000100.tmp-12ab",
                          "xstep_0000100", "step_0000100 "}) {
    EXPECT_FALSE(step_of_name(bad).has_value()) << bad;
  }
  EXPECT_TRUE(is_temporary_name("step_0000100.tmp-12ab"));
  EXPECT_FALSE(is_temporary_name("step_0000100"));
  EXPECT_FALSE(is_temporary_name("step_100.tmp-12ab"));
  EXPECT_FALSE(is_temporary_name("notes.tmp-1"));
}

TEST(CheckpointRanks, TheFirstThatFailedAreNamed) {
  std::vector<std::string> errors = {"", "no space", "", "no space", "broken", "", "lost", "late"};
  const auto expect = [&](const std::string& text) {
    ThreadRanks(8).run([&](Communicator& ranks) {
      const std::string& mine = errors[static_cast<std::size_t>(ranks.rank())];
      const std::string message = attempt_on_all_ranks(ranks, [&] {
        if (!mine.empty()) throw std::runtime_error(mine);
      });
      EXPECT_EQ(message, text);
    });
  };
  expect("rank 1: no space; rank 3: no space; rank 4: broken; rank 6: lost; and 1 more ranks");
  errors[7].clear();
  expect("rank 1: no space; rank 3: no space; rank 4: broken; rank 6: lost");
  errors.assign(8, "");
  expect("");
}

}  // namespace
}  // namespace megalith
