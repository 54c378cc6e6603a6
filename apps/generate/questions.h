// Multiple-choice questions and their sequences, by the rules of EleutherAI's lm-evaluation-harness for the output type
// multiple_choice (Gao et al. 2024, doi:10.5281/zenodo.12608602).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/generate/scorer.h"
#include "core/tokenizer/tokenizer.h"

namespace megalith {

struct Question {
  std::string context;
  std::vector<std::string> choices;
  std::size_t gold = 0;    // index of the right choice
  std::string id = {};     // JSON; empty: none
  std::string place = {};  // FILE:LINE
};

// Reads a file of --questions: JSON lines with a text under "context", "question" or "query", non-empty texts under
// "choices", and under "gold" or "answer" an index from 0 or a letter from A. Error kFormat with FILE:LINE.
std::vector<Question> read_questions(const std::string& path);

struct PairOptions {
  std::string delimiter = " ";                  // between context and choice
  std::optional<std::int64_t> max_positions{};  // rows of a sequence; more are cut at the start of the context
};

// Encodes a choice after its context. White space at the end of the context belongs to the continuation; the tokens of
// the continuation are those of the joined text after as many as the context has. BOS, or else EOD, stands for an empty
// context. Error kFormat if the continuation has no token, or more than max_positions.
ScoredSequence encode_pair(const Tokenizer& tokenizer, const Question& question, std::size_t choice,
                           const PairOptions& options);

struct QuestionScore {
  std::vector<double> log_likelihoods;  // of each choice
  std::size_t best = 0;                 // choice of the largest log-likelihood, the first of equal ones
  std::size_t best_norm = 0;            // of the largest log-likelihood per byte of the choice
};
QuestionScore score_question(const Question& question, std::vector<double> log_likelihoods);

struct Accuracy {
  double mean = 0;
  std::optional<double> standard_error;  // sqrt(p (1 - p) / (n - 1)), for n above 1
};
Accuracy accuracy_of(std::int64_t correct, std::int64_t questions);

}  // namespace megalith
