// Files that transformers writes next to weights. An even first byte: config.json, its tensor names, and the
// configuration written again; an odd one: model.safetensors.index.json.
#include "core/hf/hf_config.h"

#include "core/hf/hf_files.h"
#include "core/hf/hf_names.h"
#include "core/model/config.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace megalith;

void try_config(std::string_view text) {
  const ModelConfig model = parse_hf_config(text, "config.json");
  const std::string written = hf_config_text(model, {.eos = model.vocab_size - 1});
  const ModelConfig again = parse_hf_config(written, "config.json, written again");
  if (hf_config_text(again, {.eos = model.vocab_size - 1}) != written)
    fuzz::defect("a configuration that changes: " + written);
  if (model.num_layers > 8) return;
  std::int64_t elements = 0;
  for (const HfTensor& tensor : hf_tensors(model)) {
    for (const HfPart& part : tensor.parts) elements += part.rows * tensor.columns();
    if (tensor.rows() < 1 || tensor.columns() < 1) fuzz::defect("an empty tensor: " + tensor.name);
  }
  const ParameterCount count = count_parameters(model);
  if (elements != count.total - count.padding) fuzz::defect("names that are not the model's");
}

void try_index(std::string_view text) {
  const auto files = parse_hf_index(text, "index");
  if (parse_hf_index(hf_index_text(files, 1), "index, written again") != files) fuzz::defect("an index that changes");
  for (const auto& [tensor, file] : files) {
    if (file.find('/') != std::string::npos || file[0] == '.') fuzz::defect("a file elsewhere: " + file);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  const bool is_index = input.byte() % 2 == 1;
  fuzz::expect_result_or_error([&] { is_index ? try_index(input.rest()) : try_config(input.rest()); });
  return 0;
}
