#include "apps/convert/converter.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "apps/checkpoint/run_tokenizer.h"
#include "apps/checkpoint/training_checkpoint.h"
#include "apps/config/checkpoint_options.h"
#include "apps/config/data_options.h"
#include "apps/config/program_options.h"
#include "apps/config/training_options.h"
#include "apps/flags/flags.h"
#include "apps/program/version.h"
#include "apps/run/own_model.h"
#include "core/base/counted.h"
#include "core/base/error.h"
#include "core/base/files/fault.h"
#include "core/base/files/file.h"
#include "core/base/files/output_file.h"
#include "core/base/log.h"
#include "core/hf/hf_files.h"
#include "core/model/config.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/checkpoint/manifest.h"

namespace megalith {

namespace {

constexpr std::uint64_t kMaxConfig = std::uint64_t{1} << 20;

std::string summary(const std::string& path, const ModelConfig& model, const std::string& rest) {
  const ParameterCount count = count_parameters(model);
  return fmt::format("{}: {}, {} parameters, {}{}", path, name_of(hf_family(model)), count.total - count.padding,
                     name_of(model.params_dtype), rest);
}

// Tokenizer of a converted checkpoint: the flags' tokenizer, else tokenizer.json next to the weights, else none.
// Without a tokenizer, text is ids, and the last id ends documents.
RunTokenizer choose_tokenizer(const Options& command_line, Options& native) {
  const std::string& folder = command_line.checkpoint.load;
  const std::string candidate = folder + "/tokenizer.json";
  const std::int64_t vocab = native.model.vocab_size;
  native.data = command_line.data;
  const bool named = !command_line.is_default("tokenizer-type");
  const bool found = !named && native.data.tokenizer_model.empty() && Directory::exists(candidate);
  if (!named) native.data.tokenizer_type = found ? TokenizerType::kHuggingFace : TokenizerType::kNull;
  if (found) native.data.tokenizer_model = folder;
  const bool is_null = native.data.tokenizer_type == TokenizerType::kNull;
  if (is_null) native.model.vocab_size = std::max<std::int64_t>(vocab - 1, 1);  // the tokenizer adds one id
  try {
    RunTokenizer chosen = run_tokenizer(native);
    if (found) native.data.tokenizer_model = candidate;
    const std::int64_t ids = chosen.tokenizer.vocab_size();
    if (ids <= vocab) return chosen;
    refuse_usage(found ? candidate : "--tokenizer-type",
                 {.expected = fmt::format("at most the {} ids of config.json", vocab),
                  .got = std::to_string(ids),
                  .remedy = "give the tokenizer of this model"});
  } catch (const Error& error) {
    if (!found) throw;
    throw Error(error.code(), fmt::format("{}; add --tokenizer-type null to convert only the weights", error.what()));
  }
}

// Tokenizer files for the checkpoint: those that were read and related files next to the weights, for the way back. A
// tokenizer of bytes has none.
std::vector<SmallFile> tokenizer_files_of(const Options& options, const Options& native, std::vector<SmallFile> files) {
  if (native.data.tokenizer_type == TokenizerType::kByte) return files;
  for (auto& [name, text] : read_hf_tokenizer(options.checkpoint.load, kMaxSmallFileBytes)) {
    const bool is_there = std::ranges::find(files, name, &SmallFile::name) != files.end();
    if (!is_there) files.push_back({name, std::move(text)});
  }
  return files;
}

// Writes FOLDER/model.toml for train --config: the flags of the model, and the checkpoint's copies of tokenizer files.
void write_model_flags(const std::string& folder, const std::string& checkpoint, Options native) {
  const std::span<const std::string_view> types = tokenizer_types();
  for (const TokenizerFileField& file : tokenizer_files(types[static_cast<std::size_t>(native.data.tokenizer_type)])) {
    tokenizer_path(native.data, file.flag) = fmt::format("{}/{}", checkpoint, file.name);
  }
  const FaultScope scope("convert.output");
  OutputFile file(folder + "/model.toml", "convert.output");
  file.write(
      fmt::format("# The model of {}, for train --config and plan --config. To train it further:\n"
                  "#   train --config {}/model.toml --load {} --finetune ...\n"
                  "# seq-length is the model's maximum; a lower value needs less memory.\n"
                  "{}",
                  checkpoint, folder, folder, print_model_config(std::move(native))));
  file.commit();
}

Slice slice_of(const HfPart& part) {
  Slice slice = Slice::whole(part.whole);
  slice.start[0] = part.begin;
  slice.stop[0] = part.begin + part.shape[0];
  return slice;
}

// Shards of all tensors by name: views of the mapped files if bytes and dtype match, else views of `own`.
std::vector<Shard> shards_of(const HfFolder& folder, const std::vector<HfTensor>& tensors, DType dtype,
                             std::vector<std::vector<std::byte>>& own) {
  const std::size_t item = size_of(dtype);
  std::vector<Shard> shards;
  for (const HfTensor& tensor : tensors) {
    const HfStored& stored = folder.tensors().at(tensor.name);
    const std::vector<std::byte> converted = hf_elements_as(stored, dtype);
    const std::span<const std::byte> theirs = converted.empty() ? stored.bytes : std::span(converted);
    for (std::size_t i = 0; i < tensor.parts.size(); ++i) {
      const HfPart& part = tensor.parts[i];
      const std::size_t bytes = static_cast<std::size_t>(part.shape.numel()) * item;
      std::span<const std::byte> ours;
      if (converted.empty() && !tensor.transposed && part.rows == part.shape[0]) {
        ours = theirs.subspan(static_cast<std::size_t>(part.first * tensor.columns()) * item, bytes);
      } else {
        take_hf_part(tensor, i, item, theirs, own.emplace_back(bytes));
        ours = own.back();
      }
      shards.push_back({.name = shard_name(kParamKind, part.name),
                        .dtype = dtype,
                        .shape = part.whole,
                        .slice = slice_of(part),
                        .data = ours});
    }
  }
  std::ranges::sort(shards, {}, [](const Shard& shard) { return std::tie(shard.name, shard.slice.start); });
  return shards;
}

ModelConfig read_model(const Options& options) {
  const std::string path = options.checkpoint.load + "/config.json";
  HfKeys keys{.ignored = options.convert.ignore_config_keys};
  ModelConfig model = parse_hf_config(read_whole_file(path, kMaxConfig), path, &keys);
  if (!keys.passed_over.empty()) log_warning(fmt::format("{}: ignored keys: {}", path, first_names(keys.passed_over)));
  model.make_vocab_size_divisible_by = options.model.make_vocab_size_divisible_by;
  resolve(model);
  validate(model);
  return model;
}

std::string hf_to_native(const Options& options) {
  const std::string &load = options.checkpoint.load, &save = options.checkpoint.save;
  Options native;
  native.own = own_options();
  TrainState state;
  std::optional<HfFolder> folder;
  std::vector<HfTensor> tensors;
  std::vector<std::vector<std::byte>> own;
  std::vector<Shard> shards;
  std::vector<SmallFile> files;
  ModelConfig model;
  {
    const FaultScope scope("convert.output");
    require_new_folder(save);
  }
  {
    const FaultScope scope("convert.input");
    model = read_model(options);
    folder.emplace(load, hf_family(model));
    tensors = match_hf_tensors(*folder, model);
    const DType stored = hf_params_dtype(*folder, tensors);
    model.params_dtype = options.model.params_dtype == DType::kBf16 ? DType::kBf16 : stored;
    native.model = model;
    RunTokenizer chosen = choose_tokenizer(options, native);
    state.tokenizer = chosen.tokenizer.identity();
    files = tokenizer_files_of(options, native, std::move(chosen.files));
    shards = shards_of(*folder, tensors, model.params_dtype, own);
  }
  state.seed = static_cast<std::uint64_t>(native.train.seed);
  state.program_version = program_version();
  state.program_commit = program_commit();
  state.config = model_config_of(native);
  const SaveResult result =
      save_checkpoint({.directory = save, .state = state, .shards = std::move(shards), .files = &files});
  if (!result.saved) {
    fail({.code = ExitCode::kFileIo,
          .subject = "--save " + save + ": no checkpoint was written: " + result.message,
          .show_place = false});
  }
  if (!result.message.empty()) log_warning(result.message);
  write_model_flags(save, result.path, native);
  return summary(result.path, model, fmt::format(", tokenizer {}", state.tokenizer));
}

// Options of a checkpoint's model, with the ids of its tokenizer.
Options saved_options(const LoadedCheckpoint& checkpoint) {
  Options saved = options_from_config(App::kPlan, checkpoint.state().config, own_options());
  take_copied_files(saved.data, checkpoint);
  if (saved.model.vocab_size == 0) {
    refuse_format(checkpoint.path() + ": vocab-size in the configuration of state.json", "a number of ids", "none",
                  "convert a checkpoint that train or convert wrote");
  }
  return saved;
}

// Tokenizer of the output folder: its files, and the ids that begin and end documents. For an old checkpoint without
// copies the files come from their original paths, if they are unchanged.
struct TokenizerOutput {
  std::map<std::string, std::string> texts;
  HfTokenIds ids;
};
TokenizerOutput tokenizer_output(const Options& saved, const LoadedCheckpoint& checkpoint) {
  TokenizerOutput output;
  std::vector<SmallFile> files;
  try {
    RunTokenizer run = run_tokenizer(saved, &checkpoint);
    if (run.tokenizer.identity() == checkpoint.state().tokenizer) {
      output.ids = {.bos = run.tokenizer.bos(), .eos = run.tokenizer.eod()};
      files = std::move(run.files);
    } else {
      log_warning("the tokenizer's files differ from those of the checkpoint: config.json gets no eos_token_id");
    }
  } catch (const Error& error) {
    log_warning(fmt::format("config.json gets no eos_token_id: {}", error.what()));
  }
  add_small_files(checkpoint, files);
  for (SmallFile& file : files) output.texts[file.name] = std::move(file.bytes);
  if (output.ids.eos) output.texts.try_emplace("generation_config.json", hf_generation_config_text(output.ids));
  return output;
}

std::string native_to_hf(const Options& options) {
  const CheckpointOptions& wanted = options.checkpoint;
  {
    const FaultScope scope("convert.output");
    require_new_folder(wanted.save);
  }
  LoadedCheckpoint checkpoint = load_wanted(wanted);
  const Options saved = saved_options(checkpoint);
  ModelConfig model = saved.model;
  if (saved.data.tokenizer_type == TokenizerType::kNull) ++model.vocab_size;
  resolve(model);
  validate(model);
  TokenizerOutput tokenizer = tokenizer_output(saved, checkpoint);
  HfOutput output{.path = wanted.save,
                  .config = hf_config_text(model, tokenizer.ids),
                  .texts = std::move(tokenizer.texts),
                  .tensors = hf_tensors(model),
                  .dtype = model.params_dtype,
                  .max_shard_size = static_cast<std::uint64_t>(options.convert.max_shard_size),
                  .fill = {}};
  std::vector<TensorSpec> specs;
  for (const HfTensor& tensor : output.tensors) {
    for (const HfPart& part : tensor.parts) {
      if (part.begin == 0) specs.push_back({shard_name(kParamKind, part.name), output.dtype, part.whole});
    }
  }
  checkpoint.check_tensors(specs);
  const std::size_t item = size_of(output.dtype);
  std::string held;  // tensor that was read last; the next part may belong to it
  std::vector<std::byte> ours;
  output.fill = [&](const HfTensor& tensor, std::span<std::byte> theirs) {
    for (std::size_t i = 0; i < tensor.parts.size(); ++i) {
      const HfPart& part = tensor.parts[i];
      if (part.name != held) {
        held.clear();
        ours.resize(static_cast<std::size_t>(part.whole.numel()) * item);
        checkpoint.read(shard_name(kParamKind, part.name), Slice::whole(part.whole), ours);
        held = part.name;
      }
      const std::size_t bytes = static_cast<std::size_t>(part.shape.numel()) * item;
      const std::size_t begin = static_cast<std::size_t>(part.begin * tensor.columns()) * item;
      put_hf_part(tensor, i, item, std::span(ours).subspan(begin, bytes), theirs);
    }
  };
  const FaultScope scope("convert.output");
  write_hf_folder(output);
  return summary(wanted.save, model, fmt::format(", of {}", checkpoint.path()));
}

}  // namespace

std::string convert(const Options& options) {
  return options.convert.to == "native" ? hf_to_native(options) : native_to_hf(options);
}

}  // namespace megalith
