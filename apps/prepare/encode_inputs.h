// Documents of all inputs, encoded on several threads and stored in order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/data/document_reader.h"
#include "core/tokenizer/tokenizer.h"

namespace megalith {

// Result for a DocumentChunk.
struct EncodedChunk {
  std::vector<std::uint32_t> words;   // ids, with marks (marked_token) where the caller needs them
  std::vector<std::int32_t> lengths;  // of the documents in `words`
  std::vector<Error> errors;          // of invalid lines, in order
  std::optional<Error> error;         // that ends the program after these documents
  std::int64_t text_bytes = 0;
  std::int64_t untrained = 0;  // conversations that are left out
};

struct EncodeInputs {
  std::vector<std::string> inputs;
  DocumentOptions documents;
  const Tokenizer& tokenizer;  // copied for each thread
  std::size_t threads = 1;
  // Encodes a chunk, on several threads. An Error kFormat that it throws ends the program after the chunk's documents.
  std::function<void(const DocumentChunk&, const Tokenizer&, EncodedChunk&)> encode;
  std::function<void(const EncodedChunk&)> store;  // called for each chunk in order, one at a time
};

// Runs the functions for all inputs and shows the progress. The calls of `store` do not depend on the number of
// threads, nor does the Error that is thrown. Memory holds a few MiB per thread and the longest documents.
void encode_inputs(const EncodeInputs& work, BadLines& bad);

// Returns --workers, or the number of processors that this process may use.
std::size_t num_workers(std::int64_t workers);

}  // namespace megalith
