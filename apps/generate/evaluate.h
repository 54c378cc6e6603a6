// Scoring of questions in packs.
#pragma once

#include <vector>

#include "apps/generate/questions.h"
#include "apps/generate/scorer.h"
#include "core/data/packing.h"

namespace megalith {

// Sequences of all choices of all questions, in order, and the passes that score them.
struct Evaluation {
  std::vector<ScoredSequence> sequences;
  Packing packing;
  Scorer::Sizes sizes;       // of each pass
  std::int64_t num_cut = 0;  // sequences whose context was cut
};
// `batch_tokens`: rows of a pass, unless a sequence is longer or all sequences together are shorter.
Evaluation plan_evaluation(const std::vector<Question>& questions, const Tokenizer& tokenizer,
                           const PairOptions& options, std::int64_t batch_tokens);

// Scores each question by the log-likelihoods of its choices. Error kNumeric if one is NaN or infinite. Collective.
std::vector<QuestionScore> run_evaluation(Scorer& scorer, const Evaluation& evaluation,
                                          const std::vector<Question>& questions);

}  // namespace megalith
