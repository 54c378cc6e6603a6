// convert: there and back bit for bit, what a checkpoint gets beside the weights, and every way to fail.
#include "apps/convert/converter.h"
#include "apps/flags/complete_options.h"

#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "apps/config/program_options.h"
#include "apps/train/run_setup.h"
#include "core/base/files/fault.h"
#include "core/base/files/file.h"
#include "core/model/config.h"
#include "parallel/checkpoint/checkpoint.h"
#include "tests/support/matchers.h"
#include "tests/unit/apps/flags_support.h"
#include "tests/unit/apps/hf_folder.h"
#include "tests/unit/checkpoint/expect_error.h"

namespace megalith::test {
namespace {

const std::string kGolden = MEGALITH_SOURCE_DIR "/tests/hf/golden/";
constexpr std::array kFamilies = {"gpt2",  "llama", "llama31",    "llama_yarn", "llama_linear", "mistral",
                                  "qwen2", "qwen3", "qwen3_yarn", "mixtral",    "qwen3_moe"};

std::string run(const Words& flags) { return convert(parse_flags(App::kConvert, flags).options); }

std::string to_native(const std::string& from, const std::string& to, const Words& more = {}) {
  Words flags = {"--from", "hf", "--load", from, "--save", to};
  flags.insert(flags.end(), more.begin(), more.end());
  return run(flags);
}
std::string to_hf(const std::string& from, const std::string& to, const Words& more = {}) {
  Words flags = {"--to", "hf", "--load", from, "--save", to};
  flags.insert(flags.end(), more.begin(), more.end());
  return run(flags);
}

class Converter : public InFolder {
 protected:
  void TearDown() override {
    disarm_faults();
    InFolder::TearDown();
  }

  static ModelConfig model_of(const std::string& family) {
    return parse_hf_config(read_file(kGolden + family + "/config.json"), "config.json");
  }
  static void write_model(const std::string& folder, const ModelConfig& model, const HfFile& tensors) {
    std::filesystem::create_directories(folder);
    write(folder + "/config.json", hf_config_text(model, {}));
    write_safetensors(folder + "/model.safetensors", tensors);
  }
  static LoadedCheckpoint open(const std::string& folder) {
    return std::move(find_checkpoint({.directory = folder}).value());
  }
};

TEST_F(Converter, ThereAndBackBitForBit) {
  for (const std::string family : kFamilies) {
    for (const std::string dtype : {"F32", "BF16"}) {
      for (const bool fused : {false, true}) {
        SCOPED_TRACE(family + " " + dtype + (fused ? " fused" : ""));
        const ModelConfig model = model_of(family);
        const std::string at = family + dtype + (fused ? "f" : "");
        write_model(at, model, tensors_of(model, dtype, {.qkv = fused, .gate_up = fused, .experts = fused}));
        const HfFile want = read_safetensors(at + "/model.safetensors");
        to_native(at, at + ".native");
        to_hf(at + ".native", at + ".back");
        const HfFile got = read_safetensors(at + ".back/model.safetensors");
        EXPECT_TRUE(fused || got == want);
        to_native(at + ".back", at + ".native2", {"--make-vocab-size-divisible-by", "128"});
        const std::string file = "/step_0000000/rank_0000_of_0001.safetensors";
        EXPECT_TRUE(read_file(at + ".native" + file) == read_file(at + ".native2" + file));
      }
    }
  }
}

TEST_F(Converter, GoldenModelsComeBack) {
  for (const std::string family : kFamilies) {
    const std::string type(name_of(hf_family(model_of(family))));
    EXPECT_THAT(to_native(kGolden + family, family), StartsWith(family + "/step_0000000: " + type + ", "));
    to_hf(family, family + ".back", {"--max-shard-size", "9000"});
    HfFile got;
    for (const auto& entry : std::filesystem::directory_iterator(family + ".back")) {
      if (entry.path().extension() == ".safetensors") got.merge(read_safetensors(entry.path().string()));
    }
    EXPECT_EQ(got, read_safetensors(kGolden + family + "/model.safetensors"));
    EXPECT_TRUE(std::filesystem::exists(family + ".back/model.safetensors.index.json"));
    const auto was = nlohmann::json::parse(read_file(kGolden + family + "/config.json"));
    const auto is = nlohmann::json::parse(read_file(family + ".back/config.json"));
    for (const char* key :
         {"model_type", "architectures", "rope_parameters", "attention_bias", "sliding_window", "num_local_experts",
          "num_experts_per_tok", "intermediate_size", "moe_intermediate_size", "norm_topk_prob", "mlp_only_layers",
          "decoder_sparse_step", "router_aux_loss_coef", "router_jitter_noise", "output_router_logits"}) {
      const nlohmann::json none;
      EXPECT_EQ(is.value(key, none), was.value(key, none)) << family << ' ' << key;
    }
  }
}

TEST_F(Converter, PadsTheVocabularyAndTakesThePaddingAway) {
  const ModelConfig model = model_of("llama");  // 40 ids
  write_model("hf", model, tensors_of(model, "F32"));
  for (const auto& [multiple, rows] : {std::pair("1", 40), std::pair("32", 64), std::pair("128", 128)}) {
    const std::string native = std::string("native") + multiple;
    to_native("hf", native, {"--make-vocab-size-divisible-by", multiple});
    LoadedCheckpoint checkpoint = open(native);
    const Shape shape{rows, 32};
    for (const std::string name : {"param/embedding.word_embeddings.weight", "param/output_layer.weight"}) {
      std::vector<float> values(static_cast<std::size_t>(shape.numel()), 1.0f);
      checkpoint.read(name, Slice::whole(shape), std::as_writable_bytes(std::span(values)));
      EXPECT_TRUE(std::all_of(values.begin() + std::ptrdiff_t{40} * 32, values.end(), [](float x) { return x == 0; }));
    }
    to_hf(native, native + ".back");
    EXPECT_EQ(read_safetensors(native + ".back/model.safetensors"), read_safetensors("hf/model.safetensors"));
  }
}

TEST_F(Converter, OtherDtypes) {
  const ModelConfig model = model_of("qwen3");
  HfFile tensors = tensors_of(model, "F16");
  write_model("half", model, tensors);
  EXPECT_THAT(to_native("half", "half.native"), HasSubstr(", fp32,"));
  write_model("float", model, tensors_of(model, "F32"));
  EXPECT_THAT(to_native("float", "float.native", {"--bf16"}), HasSubstr(", bf16,"));
  to_hf("float.native", "float.back");
  for (const auto& [name, tensor] : read_safetensors("float.back/model.safetensors"))
    EXPECT_EQ(tensor.dtype, "BF16") << name;
  EXPECT_THAT(read_file("float.back/config.json"), HasSubstr("\"dtype\": \"bfloat16\""));
}

TEST_F(Converter, TheCheckpointKnowsModelAndTokenizer) {
  ModelConfig model = model_of("gpt2");
  write_model("hf", model, tensors_of(model, "F32"));
  to_native("hf", "null");
  {
    const LoadedCheckpoint checkpoint = open("null");
    EXPECT_EQ(checkpoint.state().tokenizer, "null-40");
    EXPECT_EQ(checkpoint.state().config.at("vocab-size"), "39");  // the tokenizer adds the id that ends documents
    EXPECT_EQ(checkpoint.state().step, 0);
    for (const TensorSpec& tensor : checkpoint.tensors()) EXPECT_EQ(kind_of(tensor.name), kParamKind);
    to_hf("null", "null.back");
    EXPECT_THAT(read_file("null.back/config.json"), HasSubstr("\"eos_token_id\": 39,"));
  }
  EXPECT_ERROR(ExitCode::kUsage, "--tokenizer-type: expected at most the 40 ids of config.json, got 257",
               to_native("hf", "byte", {"--tokenizer-type", "byte"}));
  model.vocab_size = 300;
  resolve(model);
  write_model("hf300", model, tensors_of(model, "F32"));
  to_native("hf300", "byte", {"--tokenizer-type", "byte"});
  EXPECT_EQ(open("byte").state().tokenizer, "byte-257");
  to_hf("byte", "byte.back");
  EXPECT_THAT(read_file("byte.back/config.json"), HasSubstr("\"eos_token_id\": 256,"));
  EXPECT_EQ(nlohmann::json::parse(read_file("byte.back/generation_config.json")),
            (nlohmann::json{{"_from_model_config", true}, {"eos_token_id", 256}}));
}

TEST_F(Converter, TakesTheTokenizerNextToTheWeights) {
  ModelConfig model = model_of("gpt2");
  model.vocab_size = 1000;
  resolve(model);
  write_model("hf", model, tensors_of(model, "BF16"));
  std::filesystem::copy(MEGALITH_SOURCE_DIR "/tests/golden/tokenizer/gpt2.json", "hf/tokenizer.json");
  const std::string tokenizer = read_file("hf/tokenizer.json");
  write("hf/tokenizer_config.json", "{\"model_max_length\": 8}");
  write("hf/generation_config.json", "{\"eos_token_id\": [7, 8]}");
  EXPECT_THAT(to_native("hf", "native"), HasSubstr(", tokenizer bpe-gpt2-"));
  {
    const LoadedCheckpoint checkpoint = open("native");
    EXPECT_EQ(checkpoint.state().config.at("tokenizer-model"), "\"hf/tokenizer.json\"");
    EXPECT_THAT(checkpoint.small_files(),
                testing::UnorderedElementsAre("generation_config.json", "tokenizer.json", "tokenizer_config.json"));
    EXPECT_EQ(checkpoint.read_small_file("tokenizer.json"), tokenizer);
  }
  write("hf/tokenizer.json", "{}");  // what lies there now is no matter
  to_hf("native", "back");
  EXPECT_THAT(read_file("back/config.json"), testing::Not(HasSubstr("\"eos_token_id\": null,")));
  EXPECT_EQ(read_file("back/tokenizer.json"), tokenizer);
  EXPECT_EQ(read_file("back/tokenizer_config.json"), "{\"model_max_length\": 8}");
  EXPECT_EQ(read_file("back/generation_config.json"), "{\"eos_token_id\": [7, 8]}");
  EXPECT_ERROR(ExitCode::kFormat, "; add --tokenizer-type null to convert only the weights", to_native("hf", "other"));
  EXPECT_THAT(to_native("hf", "other", {"--tokenizer-type", "null"}), HasSubstr("tokenizer null-1000"));
}

// What a stranger's folder links to must not go into the checkpoint, nor out of it to where the model is uploaded.
TEST_F(Converter, ALinkOutOfTheFolderIsRefused) {
  const ModelConfig model = model_of("gpt2");
  write_model("hub/models--o--n/snapshots/01", model, tensors_of(model, "BF16"));
  write("secret", "a key");
  const std::string folder = "hub/models--o--n/snapshots/01", link = folder + "/chat_template.jinja";
  std::filesystem::create_directories("hub/models--o--n/blobs");
  write("hub/models--o--n/blobs/cafe", "a template");
  std::filesystem::create_symlink("../../blobs/cafe", link);
  to_native(folder, "native");
  EXPECT_EQ(open("native").read_small_file("chat_template.jinja"), "a template");
  std::filesystem::remove(link);
  std::filesystem::create_symlink("../../../../secret", link);
  EXPECT_ERROR(ExitCode::kFileIo, "cannot read " + link + ": a link to ", to_native(folder, "leak"));
  EXPECT_ERROR(ExitCode::kFileIo, "/secret, outside of its folder; put the file itself there",
               to_native(folder, "leak"));
  EXPECT_FALSE(std::filesystem::exists("leak"));
}

TEST_F(Converter, TheTokenizersConfigNamesItsEnd) {
  ModelConfig model = model_of("gpt2");
  model.vocab_size = 1000;
  resolve(model);
  write_model("hf", model, tensors_of(model, "BF16"));
  nlohmann::json tokenizer = nlohmann::json::parse(read_file(MEGALITH_SOURCE_DIR "/tests/golden/tokenizer/gpt2.json"));
  tokenizer["added_tokens"][0]["content"] = "<|im_end|>";
  tokenizer["model"]["vocab"].erase("<|endoftext|>");
  tokenizer["model"]["vocab"]["<|im_end|>"] = 0;
  write("hf/tokenizer.json", tokenizer.dump());
  EXPECT_ERROR(ExitCode::kUsage, "--eod-token: expected a token of hf/tokenizer.json that ends documents",
               to_native("hf", "native"));
  write("hf/tokenizer_config.json", R"({"eos_token": "<|im_end|>", "bos_token": "a"})");
  to_native("hf", "native");
  std::filesystem::remove_all("hf");  // the copies are enough
  to_hf("native", "back");
  const nlohmann::json config = nlohmann::json::parse(read_file("back/config.json"));
  EXPECT_EQ(config.at("eos_token_id"), 0);
  EXPECT_EQ(config.at("bos_token_id"), 65);
}

// A checkpoint from before copies were kept: its files are where they were, or they are not.
TEST_F(Converter, ACheckpointWithoutCopiesOfItsTokenizer) {
  ModelConfig model = model_of("gpt2");
  model.vocab_size = 1000;
  resolve(model);
  write_model("hf", model, tensors_of(model, "BF16"));
  std::filesystem::copy(MEGALITH_SOURCE_DIR "/tests/golden/tokenizer/gpt2.json", "hf/tokenizer.json");
  to_native("hf", "native");
  LoadedCheckpoint with_copies = open("native");
  std::vector<Shard> shards;
  std::vector<std::vector<std::byte>> bytes;
  for (const TensorSpec& spec : with_copies.tensors()) {
    bytes.emplace_back(static_cast<std::size_t>(spec.shape.numel()) * size_of(spec.dtype));
    with_copies.read(spec.name, Slice::whole(spec.shape), bytes.back());
    shards.push_back({spec.name, spec.dtype, spec.shape, Slice::whole(spec.shape), bytes.back()});
  }
  ASSERT_TRUE(save_checkpoint({.directory = "old", .state = with_copies.state(), .shards = shards}).saved);
  to_hf("old", "found");
  EXPECT_EQ(read_file("found/tokenizer.json"), read_file("hf/tokenizer.json"));
  std::filesystem::remove("hf/tokenizer.json");
  to_hf("old", "lost");  // with a warning
  EXPECT_THAT(read_file("lost/config.json"), HasSubstr("\"eos_token_id\": null,"));
  EXPECT_FALSE(std::filesystem::exists("lost/tokenizer.json"));
}

TEST_F(Converter, ModelTomlIsTheModelForTrainAndPlan) {
  for (const std::string family : {"gpt2", "llama", "qwen2", "qwen3", "mixtral", "qwen3_moe"}) {
    SCOPED_TRACE(family);
    ModelConfig model = model_of(family);
    model.vocab_size = 1000;
    resolve(model);
    write_model(family, model, tensors_of(model, "BF16"));
    std::filesystem::copy(MEGALITH_SOURCE_DIR "/tests/golden/tokenizer/gpt2.json", family + "/tokenizer.json");
    const std::string native = family + ".native";
    to_native(family, native);
    std::filesystem::remove_all(family);
    const Words config = {"--config", native + "/model.toml"};
    Words flags = config;
    flags.insert(flags.end(), {"--load", native, "--finetune", "--mock-data", "--lr", "1", "--train-iters", "1"});
    Options options = parse_flags(App::kTrain, flags).options;
    complete_options(options, tokenizer_of(options), 1);  // out of the copy
    const LoadedCheckpoint checkpoint = open(native);
    EXPECT_EQ(tokenizer_of(options).identity(), checkpoint.state().tokenizer);
    EXPECT_EQ(check_same_model(options, native, checkpoint.state().config), "");
    Options planned = parse_flags(App::kPlan, config).options;
    complete_options(planned, tokenizer_of(planned), 1);
    EXPECT_EQ(count_parameters(planned.model).total, count_parameters(options.model).total);
    EXPECT_EQ(planned.model.moe.router_pre_softmax, model.moe.router_pre_softmax);
    EXPECT_EQ(planned.model.moe.aux_loss_coeff, model.moe.aux_loss_coeff);
  }
}

// A softmax over one choice is 1, as in transformers.
TEST_F(Converter, AMixtralOfOneChoiceGoesThereAndBack) {
  ModelConfig model = model_of("mixtral");
  model.moe.router_topk = 1;
  write_model("hf", model, tensors_of(model, "BF16"));
  to_native("hf", "native");
  to_hf("native", "back");
  EXPECT_EQ(read_safetensors("back/model.safetensors"), read_safetensors("hf/model.safetensors"));
  EXPECT_THAT(read_file("back/config.json"), HasSubstr("\"num_experts_per_tok\": 1,"));
}

TEST_F(Converter, AWidthThatNoTensorHasIsNotCompared) {
  for (const std::string family : {"llama", "mixtral"}) {
    ModelConfig model = model_of(family);
    model.vocab_size = 256;
    resolve(model);
    write_model(family, model, tensors_of(model, "BF16"));
    const std::string native = family + ".native";
    run({"--from", "hf", "--load", family, "--save", native, "--tokenizer-type", "null"});
    const LoadedCheckpoint checkpoint = open(native);
    Options options = parse_flags(App::kTrain, {"--config", native + "/model.toml", "--ffn-hidden-size", "4096",
                                                "--load", native, "--mock-data", "--lr", "1", "--train-iters", "1"})
                          .options;
    complete_options(options, tokenizer_of(options), 1);
    if (family == "mixtral") {
      EXPECT_EQ(check_same_model(options, native, checkpoint.state().config), "");
    } else {
      EXPECT_ERROR(ExitCode::kUsage, "got --ffn-hidden-size 4096",
                   check_same_model(options, native, checkpoint.state().config));
    }
  }
}

TEST_F(Converter, Flags) {
  const auto refused = [](const Words& flags, const std::string& message) {
    EXPECT_EQ(outcome(App::kConvert, flags), "exit 2: " + message);
  };
  const Words folders = {"--load", "a", "--save", "b"};
  const auto with = [&](Words flags) {
    flags.insert(flags.begin(), folders.begin(), folders.end());
    return flags;
  };
  refused(folders, "--from or --to: missing; use hf or native");
  refused(with({"--from", "torch"}),
          "--from: expected hf or native, got \"torch\"; use hf for a folder of transformers, native for a folder of "
          "train");
  refused(
      with({"--to", "torch"}),
      "--to: expected hf or native, got \"torch\"; use hf for a folder of transformers, native for a folder of train");
  refused(with({"--to", "hf", "--from", "hf"}),
          "--from and --to: expected different formats, got hf twice; remove one of the two flags");
  refused({"--from", "hf", "--load", "a"}, "--save: missing; give the folder to write");
  refused({"--from", "hf", "--save", "a"}, "--load: missing; give the folder to convert");
  refused(with({"--to", "hf", "--bf16"}),
          "--bf16 and --to: expected --bf16 only with --to native, got --to hf; use --to native, or remove --bf16");
  refused(with({"--to", "hf", "--ignore-config-keys", "x"}),
          "--ignore-config-keys and --to: expected --ignore-config-keys only with --to native, got --to hf; use --to "
          "native, or remove --ignore-config-keys");
  refused(with({"--from", "hf", "--max-shard-size", "9"}),
          "--max-shard-size and --to: expected --max-shard-size only with --to hf, got --to native; use --to hf, or "
          "remove --max-shard-size");
  for (const Words& direction : {Words{"--from", "hf"}, {"--to", "native"}, {"--from", "hf", "--to", "native"}}) {
    const Options options = parse_flags(App::kConvert, with(direction)).options;
    EXPECT_EQ(options.convert.from, "hf");
    EXPECT_EQ(options.convert.to, "native");
  }
  EXPECT_EQ(parse_flags(App::kConvert, with({"--from", "native"})).options.convert.to, "hf");
}

TEST_F(Converter, FoldersThatAreNotThere) {
  EXPECT_ERROR(ExitCode::kFileIo, "cannot open none/config.json", to_native("none", "out"));
  EXPECT_ERROR(ExitCode::kNoCheckpoint, "--load none: expected a checkpoint, got none", to_hf("none", "out"));
  write_model("hf", model_of("gpt2"), {});
  EXPECT_ERROR(ExitCode::kUsage, "--save hf: expected a new or empty folder", to_native("hf", "hf"));
  EXPECT_ERROR(ExitCode::kFormat, "missing: transformer.wte.weight, transformer.wpe.weight", to_native("hf", "out"));
  EXPECT_FALSE(std::filesystem::exists("out"));
}

TEST_F(Converter, DamagedCheckpoints) {
  to_native(kGolden + "llama", "native");
  const std::string file = "native/step_0000000/rank_0000_of_0001.safetensors";
  std::string bytes = read_file(file);
  bytes[bytes.size() - 5] ^= 1;
  write(file, bytes);
  EXPECT_ERROR(ExitCode::kNoCheckpoint, "the file is damaged", to_hf("native", "back"));
  EXPECT_FALSE(std::filesystem::exists("back"));
}

// Each call on the files that are read fails once: exit code 3, and nothing is written.
TEST_F(Converter, AFailedReadLeavesNothing) {
  const ModelConfig model = model_of("qwen2");
  write_model("hf", model, tensors_of(model, "F32"));
  int failures = 0;
  for (const std::string operation : {"open", "read", "map"}) {
    for (int at = 1;; ++at) {
      SCOPED_TRACE(operation + " " + std::to_string(at));
      arm_faults({parse_fault("convert.input." + operation + ":" + std::to_string(at) + ":eio")});
      ExitCode code = ExitCode::kOk;
      try {
        to_native("hf", "out");
      } catch (const Error& error) {
        code = error.code();
        EXPECT_THAT(error.what(), HasSubstr("(EIO)"));
      }
      const bool fired = faults_fired() > 0;
      disarm_faults();
      if (!fired) break;
      ++failures;
      EXPECT_EQ(code, ExitCode::kFileIo);
      EXPECT_FALSE(std::filesystem::exists("out"));
    }
    std::filesystem::remove_all("out");
  }
  EXPECT_GE(failures, 6);
}

}  // namespace
}  // namespace megalith::test
