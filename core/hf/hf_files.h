// Weights of a folder of Hugging Face transformers: model.safetensors, or its parts and model.safetensors.index.json.
// Files are untrusted: errors are kFormat with file and tensor. Pickled files (pytorch_model.bin) are never read.
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

// Parses model.safetensors.index.json: the file of each tensor. At most 1 M tensors in 10,000 files, all
// NAME.safetensors next to the index. "metadata" other than total_size is ignored.
std::map<std::string, std::string> parse_hf_index(std::string_view text, const std::string& subject);
std::string hf_index_text(const std::map<std::string, std::string>& files, std::uint64_t total_size);

struct HfStored {
  std::string name;   // as stored
  std::string dtype;  // as stored
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;  // in the mapped file
};

// Tensors of a folder, mapped into memory, by their names from hf_tensors.
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

// Returns the tensors of the model, fused as in the folder. Fails with the names of missing, unknown and mis-shaped
// tensors, and of dtypes other than F32, BF16 and F16. Buffers may exist, and so may an output layer that equals its
// tied word table.
std::vector<HfTensor> match_hf_tensors(const HfFolder& folder, const ModelConfig& model);

// Returns a dtype that holds every value: bf16 if all tensors are BF16, else fp32.
DType hf_params_dtype(const HfFolder& folder, std::span<const HfTensor> tensors);

// Converts a tensor's elements to fp32 or bf16 (F32 is rounded to nearest even); empty if already stored in `dtype`.
std::vector<std::byte> hf_elements_as(const HfStored& stored, DType dtype);

// Returns the tokenizer's files and generation_config.json in a folder of transformers, by name. Error kFormat for a
// file above `max_bytes`.
std::map<std::string, std::string> read_hf_tokenizer(const std::string& path, std::uint64_t max_bytes);

// Fails with kUsage unless `path` is missing or an empty folder.
void require_new_folder(const std::string& path);

struct HfOutput {
  std::string path;                          // the folder appears once it is complete
  std::string config;                        // text of config.json
  std::map<std::string, std::string> texts;  // other files by name: those of the tokenizer
  std::vector<HfTensor> tensors;
  DType dtype = DType::kFp32;
  std::uint64_t max_shard_size = 0;  // bytes of tensors per file; a larger tensor has a separate file
  std::function<void(const HfTensor&, std::span<std::byte>)> fill;  // writes the bytes of a tensor as stored
};
void write_hf_folder(const HfOutput& output);

}  // namespace megalith
