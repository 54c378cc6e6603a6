#include "parallel/tensor_parallel/tensor_parallel.h"

#include "parallel/tensor_parallel/parallel_linear.h"
#include "parallel/tensor_parallel/vocab_parallel.h"

namespace megalith {

GptFactories tensor_parallel_factories(const ModelConfig& config, TensorGroup& group) {
  if (group.split().ranks == 1) return default_factories();
  const VocabRange range = vocab_range(config.vocab_size, config.make_vocab_size_divisible_by, group.split());
  return {.column_linear = [&group](ParameterStore& store, const LinearSpec& spec) -> std::unique_ptr<Layer> {
            return std::make_unique<ColumnParallelLinear>(store, spec, group);
          },
          .row_linear = [&group](ParameterStore& store, const LinearSpec& spec) -> std::unique_ptr<Layer> {
            return std::make_unique<RowParallelLinear>(store, spec, group);
          },
          .embedding = [&group, range](ParameterStore& store, const Embedding::Spec& spec) -> EmbeddingPart {
            auto embedding = std::make_unique<VocabParallelEmbedding>(store, spec, range, group);
            Parameter* words = &embedding->word_table();
            return {.segment = std::move(embedding), .words = words};
          },
          .head = [&group, range](ParameterStore& store, const HeadSpec& spec, Norm norm) -> HeadPart {
            auto head = std::make_unique<VocabParallelHead>(store, spec, range, std::move(norm), group);
            Parameter* table = &head->table();
            return {.segment = std::move(head), .table = table};
          },
          .split = group.split()};
}

}  // namespace megalith
