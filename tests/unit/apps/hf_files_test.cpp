// Folders of transformers: files whole and in parts, tensors that lack or are too many, hostile files.
#include "core/hf/hf_files.h"

#include <bit>
#include <cstring>
#include <filesystem>
#include <limits>
#include <set>

#include "core/base/error.h"
#include "core/base/files/fault.h"
#include "core/base/files/file.h"
#include "core/model/config.h"
#include "core/tensor/bf16.h"
#include "tests/unit/apps/flags_support.h"
#include "tests/unit/apps/hf_folder.h"
#include "tests/unit/checkpoint/expect_error.h"

namespace megalith::test {
namespace {

class HfFiles : public InFolder {
 protected:
  void SetUp() override {
    InFolder::SetUp();
    std::filesystem::create_directory("hf");
    for (ModelConfig* model : {&gpt2_, &llama_}) {
      model->num_layers = 1;
      model->hidden_size = 6;
      model->num_attention_heads = 2;
      model->seq_length = 5;
      model->vocab_size = 7;
    }
    llama_.position_embedding_type = PositionEmbedding::kRope;
    llama_.normalization = Normalization::kRmsNorm;
    llama_.swiglu = true;
    llama_.ffn_hidden_size = 3;
    llama_.kv_channels = 4;
    llama_.add_bias_linear = false;
    llama_.untie_embeddings_and_output_weights = true;
    resolve(gpt2_);
    resolve(llama_);
  }
  void TearDown() override {
    disarm_faults();
    InFolder::TearDown();
  }

  static void expect_refused(const ModelConfig& model, const HfFile& tensors, const std::string& message,
                             ExitCode code = ExitCode::kFormat) {
    write_safetensors("hf/model.safetensors", tensors);
    EXPECT_ERROR(code, message, match_hf_tensors(HfFolder("hf", hf_family(model)), model));
  }
  // With all of the file's tensors but these.
  static void expect_accepted(const ModelConfig& model, HfFile tensors, const std::set<std::string>& passed_over = {}) {
    write_safetensors("hf/model.safetensors", tensors);
    const HfFolder folder("hf", hf_family(model));
    HfFile matched;
    for (const HfTensor& tensor : match_hf_tensors(folder, model)) {
      const HfStored& stored = folder.tensors().at(tensor.name);
      const auto* const begin = reinterpret_cast<const char*>(stored.bytes.data());
      matched[stored.name] = {stored.dtype, tensor.shape, {begin, begin + stored.bytes.size()}};
    }
    for (const std::string& name : passed_over) EXPECT_EQ(tensors.erase(name), 1u) << name;
    EXPECT_EQ(matched, tensors);
  }

  ModelConfig gpt2_, llama_;
};

TEST_F(HfFiles, NamesAnExpertThatLacks) {
  llama_.moe = {.num_experts = 2, .router_topk = 2};
  resolve(llama_);
  HfFile tensors = tensors_of(llama_, "F32");
  tensors.erase("model.layers.0.block_sparse_moe.experts.1.w3.weight");
  tensors["model.layers.0.block_sparse_moe.experts.2.w3.weight"] = {"F32", {1}, "1234"};
  expect_refused(llama_, tensors,
                 "missing: model.layers.0.block_sparse_moe.experts.1.w3.weight; unknown: "
                 "'model.layers.0.block_sparse_moe.experts.2.w3.weight'; complete the folder");
  tensors = tensors_of(llama_, "F32", {.experts = true});
  expect_accepted(llama_, tensors);
  tensors["model.layers.0.mlp.experts.down_proj"].shape = {12, 3};
  expect_refused(llama_, tensors, "down_proj' (expected F32, BF16 or F16 [2, 6, 3], got F32 [12, 3])");
}

TEST_F(HfFiles, NamesWhatLacksAndWhatIsTooMuch) {
  HfFile tensors = tensors_of(llama_, "F32");
  const std::string layer = "model.layers.0.";
  tensors.erase(layer + "mlp.up_proj.weight");
  tensors.erase("model.norm.weight");
  tensors["model.layers.1.mlp.up_proj.weight"] = tensors["score.weight"] = {"F32", {1}, "1234"};
  tensors[layer + "self_attn.q_proj.weight"].shape = {6, 8};
  tensors[layer + "self_attn.k_proj.weight"].dtype = "I32";
  expect_refused(
      llama_, tensors,
      "hf: the tensors are not those of config.json: missing: model.layers.0.mlp.up_proj.weight, model.norm.weight; "
      "unknown: 'model.layers.1.mlp.up_proj.weight', 'score.weight'; of another shape or dtype: "
      "'model.layers.0.self_attn.q_proj.weight' (expected F32, BF16 or F16 [8, 6], got F32 [6, 8]), "
      "'model.layers.0.self_attn.k_proj.weight' (expected F32, BF16 or F16 [8, 6], got I32 [8, 6])");
}

TEST_F(HfFiles, LongListsAreCut) {
  HfFile tensors = tensors_of(gpt2_, "BF16");
  for (int i = 0; i < 20; ++i) tensors["extra" + std::to_string(i)] = {"F32", {1}, "1234"};
  expect_refused(gpt2_, tensors, "'extra19' and 8 more");
}

TEST_F(HfFiles, BuffersPrefixesAndTheTiedOutputLayer) {
  HfFile tensors = tensors_of(gpt2_, "F32");
  expect_accepted(gpt2_, tensors);
  tensors["transformer.h.0.attn.bias"] = {"U8", {1}, "1"};
  tensors["lm_head.weight"] = tensors["transformer.wte.weight"];
  expect_accepted(gpt2_, tensors, {"transformer.h.0.attn.bias", "lm_head.weight"});
  for (const auto& [dtype, shape, bytes] :
       {HfBytes{"BF16", {7, 6}, std::string(84, 'x')}, HfBytes{"F32", {6, 7}, tensors["lm_head.weight"].bytes}}) {
    HfFile others = tensors;
    others["lm_head.weight"] = {dtype, shape, bytes};
    expect_refused(gpt2_, others, "hf: tensor lm_head.weight: expected the same bytes as transformer.wte.weight");
  }
  tensors["lm_head.weight"].bytes[3] ^= 1;
  expect_refused(gpt2_, tensors,
                 "hf: tensor lm_head.weight: expected the same bytes as transformer.wte.weight, which config.json ties "
                 "it to, got others; set tie_word_embeddings to false");
  HfFile bare;
  for (const auto& [name, tensor] : tensors_of(gpt2_, "F32")) bare[name.substr(12)] = tensor;
  expect_accepted(gpt2_, bare);
  bare["transformer.wte.weight"] = bare["wte.weight"];
  expect_refused(gpt2_, bare, "hf/model.safetensors: expected each tensor once");
}

TEST_F(HfFiles, FusedProjections) {
  expect_accepted(llama_, tensors_of(llama_, "F32", {.qkv = true, .gate_up = true}));
  expect_accepted(llama_, tensors_of(llama_, "F32", {.gate_up = true}));
  HfFile both = tensors_of(llama_, "F32", {.qkv = true});
  both["model.layers.0.self_attn.q_proj.weight"] = {"F32", {8, 6}, std::string(192, 'x')};
  expect_refused(llama_, both, "unknown: 'model.layers.0.self_attn.q_proj.weight'");
}

TEST_F(HfFiles, Parts) {
  const HfFile all = tensors_of(llama_, "F32");
  HfFile first, second;
  std::map<std::string, std::string> index;
  for (const auto& [name, tensor] : all) {
    const bool is_first = index.size() < all.size() / 2;
    (is_first ? first : second)[name] = tensor;
    index[name] = is_first ? "a.safetensors" : "b.safetensors";
  }
  write_safetensors("hf/a.safetensors", first);
  write_safetensors("hf/b.safetensors", second);
  const std::string index_file = "hf/model.safetensors.index.json";
  write(index_file, hf_index_text(index, 1));
  const auto refused = [&](ExitCode code, const std::string& message) {
    EXPECT_ERROR(code, message, match_hf_tensors(HfFolder("hf", HfFamily::kLlama), llama_));
  };
  {
    const HfFolder folder("hf", HfFamily::kLlama);
    EXPECT_EQ(match_hf_tensors(folder, llama_).size(), all.size());
  }
  auto other = index;
  other["more.weight"] = "b.safetensors";
  write(index_file, hf_index_text(other, 1));
  refused(ExitCode::kFormat, index_file + ": expected tensor 'more.weight' in b.safetensors, got none");
  other = index;
  other.erase("lm_head.weight");
  std::swap(other.begin()->second, other.rbegin()->second);
  write(index_file, hf_index_text(other, 1));
  refused(ExitCode::kFormat, "hf/a.safetensors: expected the tensors that the index gives it, got ");
  other = index;
  other["lm_head.weight"] = "c.safetensors";
  write(index_file, hf_index_text(other, 1));
  refused(ExitCode::kFormat, "hf/a.safetensors: expected the tensors that the index gives it, got 'lm_head.weight'");
  std::filesystem::remove("hf/b.safetensors");
  write(index_file, hf_index_text(index, 1));
  refused(ExitCode::kFileIo, "cannot open hf/b.safetensors: ");
  std::filesystem::remove(index_file);
  refused(ExitCode::kFileIo,
          "hf: expected model.safetensors or model.safetensors.index.json, got neither; pytorch_model.bin is not read");
}

TEST_F(HfFiles, HostileFiles) {
  const auto refused = [&](const std::string& message) {
    EXPECT_ERROR(ExitCode::kFormat, message, HfFolder("hf", HfFamily::kLlama));
  };
  write("hf/model.safetensors", "");
  refused("hf/model.safetensors: not a valid safetensors file: ");
  write("hf/model.safetensors", std::string("\xff\xff\xff\xff\xff\xff\xff\x7f{}", 10));
  refused("hf/model.safetensors: not a valid safetensors file: ");
  write_safetensors("hf/model.safetensors", {}, "tf");
  refused("hf/model.safetensors: format in __metadata__: expected pt, got 'tf'");
  HfFile tensors = tensors_of(llama_, "F32");
  write_safetensors("hf/model.safetensors", tensors);
  const std::string whole = read_file("hf/model.safetensors");
  for (std::size_t size : {whole.size() - 1, whole.size() / 2, std::size_t{20}, std::size_t{8}, std::size_t{7}}) {
    write("hf/model.safetensors", whole.substr(0, size));
    refused("hf/model.safetensors: not a valid safetensors file: ");
  }
  tensors["a"] = {"F32", {1, 2, 3, 4, 5, 6, 7}, std::string(5040 * 4, 'x')};
  expect_refused(llama_, tensors, "unknown: 'a'");
}

HfBytes stored(const std::string& dtype, const auto& values) {
  return {dtype, {}, std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(values[0]))};
}

std::vector<std::byte> elements(const HfBytes& tensor, DType dtype) {
  const HfStored view{.name = "x",
                      .dtype = tensor.dtype,
                      .shape = {},
                      .bytes = std::as_bytes(std::span(tensor.bytes.data(), tensor.bytes.size()))};
  return hf_elements_as(view, dtype);
}

TEST_F(HfFiles, HalfPrecisionWidensExactly) {
  const std::vector<std::uint16_t> halves = {0x0000, 0x8000, 0x3C00, 0xC000, 0x7BFF, 0x0400,
                                             0x0001, 0x83FF, 0x7C00, 0xFC00, 0x3555, 0x7E01};
  const std::vector<float> want = {0.0f,
                                   -0.0f,
                                   1.0f,
                                   -2.0f,
                                   65504.0f,
                                   0x1p-14f,
                                   0x1p-24f,
                                   -0x3FFp-24f,
                                   std::numeric_limits<float>::infinity(),
                                   -std::numeric_limits<float>::infinity(),
                                   0x1.554p-2f,
                                   0};
  const std::vector<std::byte> bytes = elements(stored("F16", halves), DType::kFp32);
  ASSERT_EQ(bytes.size(), 4 * halves.size());
  for (std::size_t i = 0; i < halves.size(); ++i) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, bytes.data() + 4 * i, 4);
    const std::uint32_t wanted = halves[i] == 0x7E01 ? 0x7FC02000u : std::bit_cast<std::uint32_t>(want[i]);
    EXPECT_EQ(bits, wanted) << std::hex << halves[i];
  }
}

TEST_F(HfFiles, OtherDtypes) {
  const std::vector<float> floats = {1.0f, 1.00390625f, 1.01171875f, -3e38f};
  const std::vector<std::byte> narrow = elements(stored("F32", floats), DType::kBf16);
  for (std::size_t i = 0; i < floats.size(); ++i) {
    bf16 value;
    std::memcpy(&value, narrow.data() + 2 * i, 2);
    EXPECT_EQ(value.bits, to_bf16(floats[i]).bits);
  }
  EXPECT_TRUE(elements(stored("F32", floats), DType::kFp32).empty());
  const std::vector<std::uint16_t> bits = {0x3F80, 0xC040};
  EXPECT_TRUE(elements(stored("BF16", bits), DType::kBf16).empty());
  const std::vector<std::byte> wide = elements(stored("BF16", bits), DType::kFp32);
  float value = 0;
  std::memcpy(&value, wide.data() + 4, 4);
  EXPECT_EQ(value, -3.0f);

  HfFile tensors = tensors_of(llama_, "BF16");
  write_safetensors("hf/model.safetensors", tensors);
  EXPECT_EQ(hf_params_dtype(HfFolder("hf", HfFamily::kLlama), hf_tensors(llama_)), DType::kBf16);
  tensors["model.norm.weight"].dtype = "F16";
  write_safetensors("hf/model.safetensors", tensors);
  EXPECT_EQ(hf_params_dtype(HfFolder("hf", HfFamily::kLlama), hf_tensors(llama_)), DType::kFp32);
}

HfOutput output_of(const ModelConfig& model, const HfFile& tensors, std::uint64_t max_shard_size) {
  return {.path = "out/deep/model",
          .config = "{}\n",
          .tensors = hf_tensors(model),
          .dtype = DType::kFp32,
          .max_shard_size = max_shard_size,
          .fill = [&](const HfTensor& tensor, std::span<std::byte> bytes) {
            const std::string& from = tensors.at(tensor.name).bytes;
            ASSERT_EQ(from.size(), bytes.size());
            std::memcpy(bytes.data(), from.data(), bytes.size());
          }};
}

TEST_F(HfFiles, WritesOneFileOrParts) {
  const HfFile tensors = tensors_of(gpt2_, "F32");
  write_hf_folder(output_of(gpt2_, tensors, 1'000'000));
  EXPECT_EQ(read_safetensors("out/deep/model/model.safetensors"), tensors);
  EXPECT_FALSE(std::filesystem::exists("out/deep/model/model.safetensors.index.json"));
  EXPECT_EQ(read_file("out/deep/model/config.json"), "{}\n");
  std::filesystem::remove_all("out");

  write_hf_folder(output_of(gpt2_, tensors, 300));  // tensors of 24 to 576 bytes
  const std::map<std::string, std::string> index =
      parse_hf_index(read_file("out/deep/model/model.safetensors.index.json"), "index");
  HfFile got;
  std::size_t largest = 0;
  for (const auto& [name, file] : index) {
    HfFile part = read_safetensors("out/deep/model/" + file);
    std::size_t bytes = 0;
    for (const auto& [other, tensor] : part) bytes += tensor.bytes.size();
    EXPECT_TRUE(bytes <= 300 || part.size() == 1) << file;
    largest = std::max(largest, part.size());
    got[name] = part.at(name);
  }
  EXPECT_EQ(got, tensors);
  EXPECT_GT(largest, 1u);
  std::filesystem::rename("out/deep/model", "hf2");
  HfFolder folder("hf2", HfFamily::kGpt2);
  EXPECT_EQ(match_hf_tensors(folder, gpt2_).size(), tensors.size());
}

TEST_F(HfFiles, WritesIntoNewAndEmptyFoldersOnly) {
  require_new_folder("new");
  EXPECT_FALSE(std::filesystem::exists("new"));  // nothing is made yet
  std::filesystem::create_directories("out/deep/model");
  require_new_folder("out/deep/model");
  write_hf_folder(output_of(llama_, tensors_of(llama_, "F32"), 1'000'000));
  EXPECT_TRUE(std::filesystem::exists("out/deep/model/config.json"));
  EXPECT_ERROR(ExitCode::kUsage, "--save out/deep/model: expected a new or empty folder, got one with 2 entries",
               require_new_folder("out/deep/model"));
}

TEST_F(HfFiles, WritesWhereTheNameOfAFolderIsLessPlain) {
  const HfFile tensors = tensors_of(llama_, "F32");
  HfOutput output = output_of(llama_, tensors, 1'000'000);
  output.path = "slash/";
  write_hf_folder(output);
  EXPECT_EQ(read_safetensors("slash/model.safetensors"), tensors);

  const std::filesystem::path folder = std::filesystem::current_path();
  std::filesystem::create_directories("here");
  std::filesystem::current_path("here");
  output.path = ".";
  write_hf_folder(output);
  std::filesystem::current_path(folder);
  EXPECT_EQ(read_safetensors("here/model.safetensors"), tensors);

  std::filesystem::create_directories("full/inner");
  std::filesystem::current_path("full/inner");
  output.path = "..";
  EXPECT_ERROR(ExitCode::kFileIo, "cannot rename ", write_hf_folder(output));
  std::filesystem::current_path(folder);
  EXPECT_TRUE(std::filesystem::is_empty("full/inner"));
  EXPECT_FALSE(std::filesystem::exists(".full.megalith-tmp-0"));
}

TEST_F(HfFiles, RemovesWhatAKilledWriteLeftAndNothingElse) {
  const HfFile tensors = tensors_of(llama_, "F32");
  const std::string left = "out/deep/.model.megalith-tmp-0", users = "out/deep/model.tmp-0";
  const std::string written = "out/deep/.model.megalith-tmp-1";
  for (const std::string& folder : {left, users, written}) {
    std::filesystem::create_directories(folder);
    write(folder + "/config.json", "other");
  }
  const Directory held = Directory::open("out/deep").open_directory(".model.megalith-tmp-1");
  EXPECT_TRUE(held.try_lock());  // as one that is being written
  write_hf_folder(output_of(llama_, tensors, 1'000'000));
  EXPECT_EQ(read_safetensors("out/deep/model/model.safetensors"), tensors);
  EXPECT_FALSE(std::filesystem::exists(left));
  for (const std::string& folder : {users, written}) EXPECT_EQ(read_file(folder + "/config.json"), "other");
}

TEST_F(HfFiles, TooLittleSpaceIsFoundBeforeAnythingIsWritten) {
  const HfFile tensors = tensors_of(llama_, "F32");
  HfOutput output = output_of(llama_, tensors, 1'000'000);
  output.tensors[0].shape = {std::int64_t{1} << 40, std::int64_t{1} << 18};
  EXPECT_ERROR(ExitCode::kFileIo, "free space for out/deep/model: expected at least 1152921504",
               write_hf_folder(output));
  EXPECT_TRUE(std::filesystem::is_empty("out/deep"));
}

// Each file operation fails once: an error, and nothing is left but empty folders.
TEST_F(HfFiles, AFailedWriteLeavesNothing) {
  const HfFile tensors = tensors_of(llama_, "F32");
  int failures = 0;
  for (const std::string operation : {"open", "mkdir", "create", "write", "sync", "close", "rename"}) {
    for (int at = 1;; ++at) {
      SCOPED_TRACE(operation + " " + std::to_string(at));
      std::filesystem::remove_all("out");
      arm_faults({parse_fault("convert.output." + operation + ":" + std::to_string(at) + ":eio")});
      std::string message;
      try {
        const FaultScope scope("convert.output");
        write_hf_folder(output_of(llama_, tensors, 300));
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::kFileIo);
        message = error.what();
      }
      const bool fired = faults_fired() > 0;
      disarm_faults();
      if (!fired) break;
      ++failures;
      EXPECT_NE(message, "");
      const bool is_parent = operation == "sync" && std::filesystem::exists("out/deep/model/config.json");
      for (const auto& entry : std::filesystem::recursive_directory_iterator("."))
        EXPECT_TRUE(entry.is_directory() || is_parent) << entry.path() << " after " << message;
    }
  }
  EXPECT_GT(failures, 40);
}

}  // namespace
}  // namespace megalith::test
