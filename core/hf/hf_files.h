// The weights of a folder of Hugging Face transformers: model.safetensors, or its parts and
// model.safetensors.index.json. Everything read here may come from anywhere: errors are kFormat and name file and
// tensor. Pickled files (pytorch_model.bin) are never read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/files/mapped_file.h"
#include "core/hf/hf_names.h"
#include "core/tensor/dtype.h"

namespace megalith {

// model.safetensors.index.json: the file of each tensor. At most 1 M tensors in 10,000 files, all of them
// NAME.safetensors beside the index; what "metadata" says beside its total_size is passed over.
std::map<std::string, std::string> parse_hf_index(std::string_view text, const std::string& subject);
std::string hf_index_text(const std::map<std::string, std::string>& files, std::uint64_t total_size);

struct HfStored {
  std::string name;   // as stored
  std::string dtype;  // as stored
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;  // of the mapped file
};

// Tensors by the name that hf_tensors gives them, mapped into memory.
class HfFolder {
 public:
  HfFolder(const std::string& path, HfFamily family);
  const std::string& path() const { return path_; }
  const std::map<std::string, HfStored>& tensors() const { return tensors_; }

 private:
  void add_file(const std::string& name, HfFamily family, const std::map<std::string, std::string>* index);

  std::string path_;
  std::vector<MappedFile> files_;
  std::map<std::string, HfStored> tensors_;
};

// The tensors of the model, fused as the folder has them. Fails with the names of all that are missing, unknown, of
// another shape or of a dtype other than F32, BF16 and F16; buffers, and an output layer that equals the word table it
// is tied to, may be there.
std::vector<HfTensor> match_hf_tensors(const HfFolder& folder, const ModelConfig& model);

// What holds every value: bf16 where all tensors are BF16, else fp32.
DType hf_params_dtype(const HfFolder& folder, std::span<const HfTensor> tensors);

// The elements of a tensor as fp32 or bf16 (F32 is rounded to nearest even); empty where they are stored so.
std::vector<std::byte> hf_elements_as(const HfStored& stored, DType dtype);

// The files of a tokenizer that lie in a folder of transformers, by name. Error kFormat for one beyond `max_bytes`.
std::map<std::string, std::string> read_hf_tokenizer(const std::string& path, std::uint64_t max_bytes);

// Fails (kUsage) unless `path` is missing or an empty folder.
void require_new_folder(const std::string& path);

struct HfOutput {
  std::string path;                          // the folder appears when it is complete
  std::string config;                        // text of config.json
  std::map<std::string, std::string> texts;  // of other files, by name: the tokenizer's
  std::vector<HfTensor> tensors;
  DType dtype = DType::kFp32;
  std::uint64_t max_shard_size = 0;  // bytes of tensors in one file, unless a single one has more
  std::function<void(const HfTensor&, std::span<std::byte>)> fill;  // the bytes of a tensor as it is stored
};
void write_hf_folder(const HfOutput& output);

}  // namespace megalith
