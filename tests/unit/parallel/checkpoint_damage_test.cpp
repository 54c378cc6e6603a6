// Damaged checkpoints are found, whatever the damage, and the next older one is used.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "core/checkpoint/hash.h"
#include "parallel/checkpoint/manifest.h"
#include "tests/support/tier.h"
#include "tests/unit/parallel/checkpoint_support.h"

namespace megalith {
namespace {

namespace fs = std::filesystem;

class DamagedCheckpoint : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(save_alone(save_, 1).saved);
    ASSERT_TRUE(save_alone(save_, 2).saved);
    ASSERT_EQ(load_alone(save_), 2);
    testing::internal::CaptureStderr();  // thousands of warnings
  }
  void TearDown() override { warnings(); }

  std::string warnings() {
    if (captured_) return {};
    captured_ = true;
    return testing::internal::GetCapturedStderr();
  }
  std::int64_t found_step() const {
    const auto found = find_checkpoint({.directory = save_});
    return found ? found->state().step : -1;
  }

  TestFolder folder_;
  const std::string save_ = folder_.path("save");
  const std::string newest_ = folder_.path("save/step_0000002");
  const std::vector<std::string> files_ = {"manifest.json", "state.json", "rank_0000_of_0001.safetensors",
                                           "tokenizer.json"};
  bool captured_ = false;
};

TEST_F(DamagedCheckpoint, EverySingleByteFlipFallsBack) {
  std::size_t flips = 0;
  for (const std::string& name : files_) {
    const std::string path = newest_ + "/" + name;
    const std::string good = read_bytes(path);
    ASSERT_LT(good.size(), 8192u);
    for (std::size_t i = 0; i < good.size(); i += test::one_of(7)) {
      for (const int mask : {1 << (i % 8), 0xff}) {
        std::string bad = good;
        bad[i] = static_cast<char>(bad[i] ^ mask);
        write_bytes(path, bad);
        ASSERT_EQ(found_step(), 1) << name << ", byte " << i << " of " << good.size() << ", mask " << mask;
        ++flips;
      }
    }
    write_bytes(path, good);
  }
  EXPECT_EQ(found_step(), 2);
  EXPECT_GT(flips, 5000u / static_cast<unsigned>(test::one_of(7)));
  EXPECT_NE(warnings().find("checkpoint step_0000002 is not valid, trying the next older one: "), std::string::npos);
}

TEST_F(DamagedCheckpoint, EveryTruncationAndExtensionFallsBack) {
  for (const std::string& name : files_) {
    const std::string path = newest_ + "/" + name;
    const std::string good = read_bytes(path);
    for (std::size_t size = 0; size < good.size(); size += test::one_of(7)) {
      write_bytes(path, good);
      fs::resize_file(path, size);
      ASSERT_EQ(found_step(), 1) << name << " cut to " << size;
    }
    for (const char more : {'\0', ' ', '\n', '}'}) {
      write_bytes(path, good + more);
      ASSERT_EQ(found_step(), 1) << name;
    }
    write_bytes(path, good);
  }
  EXPECT_EQ(found_step(), 2);
}

TEST_F(DamagedCheckpoint, MissingFilesLinksAndPipesFallBack) {
  for (const std::string& name : files_) {
    const std::string path = newest_ + "/" + name;
    const std::string aside = folder_.path("aside");
    fs::rename(path, aside);
    EXPECT_EQ(found_step(), 1) << name;
    fs::create_symlink(aside, path);
    EXPECT_EQ(found_step(), 1) << name;
    fs::remove(path);
    ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
    EXPECT_EQ(found_step(), 1) << name;
    fs::remove(path);
    fs::rename(aside, path);
  }
  EXPECT_EQ(found_step(), 2);
  fs::rename(newest_, folder_.path("elsewhere"));
  fs::create_directory_symlink(folder_.path("elsewhere"), newest_);
  EXPECT_EQ(found_step(), 1);
}

TEST_F(DamagedCheckpoint, NoneValidNamesTheFolderAndAllThatWasTried) {
  write_bytes(newest_ + "/state.json", "{}");
  fs::remove(folder_.path("save/step_0000001/manifest.json"));
  try {
    found_step();
    FAIL();
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_EQ(error.code(), ExitCode::kNoCheckpoint);
    for (const std::string& part :
         {"no valid checkpoint in " + save_, std::string("step_0000001"), std::string("step_0000002"),
          std::string("manifest.json"), std::string("state.json")}) {
      EXPECT_NE(text.find(part), std::string::npos) << text;
    }
  }
}

TEST_F(DamagedCheckpoint, AllRanksSeeTheSameFallBackAndTheSameError) {
  std::string bytes = read_bytes(newest_ + "/rank_0000_of_0001.safetensors");
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_bytes(newest_ + "/rank_0000_of_0001.safetensors", bytes);
  ThreadRanks(3).run([&](Communicator& ranks) {
    const auto found = find_checkpoint({.directory = save_, .ranks = &ranks});
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->state().step, 1);
    EXPECT_ERROR(ExitCode::kNoCheckpoint, "for step 2",
                 find_checkpoint({.directory = save_, .step = 2, .ranks = &ranks}));
  });
}

TEST_F(DamagedCheckpoint, RenamedFolderIsNotAnotherStep) {
  fs::rename(newest_, folder_.path("save/step_0000009"));
  EXPECT_EQ(found_step(), 1);
}

// Changes to the manifest by an author who also corrects its hash.
class ForgedManifest : public DamagedCheckpoint {
 protected:
  void expect_refused(const std::string& from, const std::string& to, const std::string& message) {
    std::string text = good_;
    const std::size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    const std::string body = text.substr(0, text.rfind(",\n\"manifest_xxh3_128\""));
    write_bytes(newest_ + "/manifest.json",
                fmt::format("{},\n\"manifest_xxh3_128\":\"{}\"}}\n", body, to_hex(hash_of(body))));
    EXPECT_ERROR(ExitCode::kNoCheckpoint, message, find_checkpoint({.directory = save_, .step = 2}));
    EXPECT_EQ(found_step(), 1);
  }
  void SetUp() override {
    DamagedCheckpoint::SetUp();
    good_ = read_bytes(newest_ + "/manifest.json");
  }
  std::string good_;
};

TEST_F(ForgedManifest, IsRefused) {
  expect_refused("\"version\":1", "\"version\":2", "version: expected format version 1, got 2");
  expect_refused("\"version\":1", "\"version\":1,\"version\":1", "'version' twice");
  expect_refused("\"version\":1", "\"version\":1,\"more\":1", "known keys only");
  expect_refused("\"format\":\"megalith-checkpoint\"", "\"format\":\"other\"", "format: expected megalith-checkpoint");
  expect_refused("\"step\":2", "\"step\":1", "step in its manifest");
  expect_refused("\"step\":2", "\"step\":-2", "step: expected an integer from 0");
  expect_refused("\"world\":1", "\"world\":2", "name: expected rank_0000_of_0002.safetensors");
  expect_refused("\"world\":1", "\"world\":9", "expected 10 files for 9 ranks");
  expect_refused("\"world\":1", "\"world\":0", "world: expected an integer from 1");
  expect_refused("rank_0000_of_0001.safetensors", "../../etc/passwd", "name: expected rank_0000_of_0001.safetensors");
  expect_refused("\"shape\":[5]", "\"shape\":[4]", "leaves the extent");
  expect_refused("\"shape\":[5]", "\"shape\":[6]", "1 of 6 elements are missing");
  expect_refused("\"shape\":[5]", "\"shape\":[4194305,4194305,211106198978564]", "a size within 63 bits");
  expect_refused("\"shape\":[5]", "\"shape\":[-5]", "an integer from 0");
  expect_refused("\"shape\":[5]", "\"shape\":[1,1,1,1,1,1,5]", "at most 6 dims");
  expect_refused("\"dtype\":\"BF16\"", "\"dtype\":\"F32\"", "bytes: expected 384, got 192");
  expect_refused("\"dtype\":\"BF16\"", "\"dtype\":\"F16\"", "dtype: expected F32");
  expect_refused("\"param/scale\"", "\"param/scales\"", "tensor 'param/scales'");
  expect_refused("\"param/scale\"", "\"param/sc\\u0001le\"", "printable ASCII");
  expect_refused("\"[0:5]\"", "\"[0: 5]\"", "[start:stop,...]");
  expect_refused("\"[0:5]\"", "\"flat[0:5]\"", "rank_0000_of_0001.safetensors: expected tensor");
  expect_refused("\"param/scale\":{",
                 "\"param/extra\":{\"chunks\":[[0,0,0,\"[0:0]\",\"" + to_hex(hash_of("")) +
                     "\"]],\"dtype\":\"F32\",\"shape\":[0]},\"param/scale\":{",
                 "expected 8 tensors, got 7");
}

// Files next to the tensors are read by their names.
TEST_F(ForgedManifest, WithSmallFilesOfOtherNamesIsRefused) {
  const std::string name = "\"name\":\"tokenizer.json\"", which = "expected names of files in addition to the tensors";
  for (const char* other : {"../tokenizer.json", "/etc/passwd", ".", "..", "", ".hidden", "a/b", "state.json",
                            "manifest.json", "manifest.json.tmp", "rank_0000_of_0001.safetensors"})
    expect_refused(name, fmt::format("\"name\":\"{}\"", other), which);
  expect_refused(name, fmt::format("\"name\":\"{}\"", std::string(65, 'x')), which);
  expect_refused(name, "\"name\":7", "name: expected a text");
  expect_refused(name, "\"name\":\"zzz.json\"", "zzz.json: No such file or directory");
  const std::string bytes = fmt::format("\"bytes\":{},{}", test_files()[0].bytes.size(), name);
  expect_refused(bytes, "\"bytes\":67108865," + name, "an integer from 0 to 67108864");
  expect_refused(bytes, "\"bytes\":1," + name, "tokenizer.json: expected 1 bytes, got 22");
  const auto more = [](const std::string& file) {
    return fmt::format(R"(,{{"bytes":0,"name":"{}","xxh3_128":"{}"}})", file, to_hex(hash_of("")));
  };
  const std::string end = "],\"format\"";
  for (const char* out_of_order : {"tokenizer.json", "a.txt"}) expect_refused(end, more(out_of_order) + end, which);
  std::string many;
  for (int i = 0; i < 16; ++i) many += more("x" + std::to_string(i));
  expect_refused(end, many + end, "expected at most 18 files, got 19");
}

TEST_F(ForgedManifest, WithOtherPlacesIsRefused) {
  const std::string slice = ",96,\"[0:4,0:3,0:2]\"";
  const std::size_t end = good_.find(slice);
  ASSERT_NE(end, std::string::npos);
  const std::size_t at = good_.rfind(',', end - 1) + 1;
  const std::string begin = good_.substr(at, end - at);
  const std::string other = std::to_string(std::stoi(begin) + 4);
  expect_refused(begin + slice, other + slice,
                 fmt::format("expected tensor 'param/cube' at byte {}, got 'param/cube' at byte {}", other, begin));

  const std::string narrow = ",192,\"[0:12,0:8]\"";
  const std::size_t from = good_.find(narrow), dtype = good_.find("\"BF16\"");
  ASSERT_LT(from, dtype);
  const std::string chunk = good_.substr(from, dtype + 6 - from);
  std::string wide = chunk;
  wide.replace(wide.size() - 6, 6, "\"F32\"").replace(1, 3, "384");
  expect_refused(chunk, wide, "rank_0000_of_0001.safetensors: expected tensor 'param/embed.weight'");
}

}  // namespace
}  // namespace megalith
