#include "apps/generate/evaluate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>

#include "apps/config/program_options.h"
#include "apps/generate/json_lines.h"
#include "apps/generate/programs.h"
#include "core/base/counted.h"
#include "core/base/error.h"
#include "core/base/log.h"

namespace megalith {

namespace {

void print_accuracy(const char* name, const Accuracy& accuracy) {
  fmt::print("{:<9} {:.4f}", name, accuracy.mean);
  if (accuracy.standard_error) fmt::print(" +- {:.4f}", *accuracy.standard_error);
  fmt::print("\n");
}

void print_scores(const std::vector<Question>& questions, const std::vector<QuestionScore>& scores) {
  const auto count = std::ssize(questions);
  std::int64_t right = 0, right_norm = 0;
  for (std::size_t q = 0; q < questions.size(); ++q) {
    right += scores[q].best == questions[q].gold ? 1 : 0;
    right_norm += scores[q].best_norm == questions[q].gold ? 1 : 0;
  }
  fmt::print("questions {}\n", count);
  print_accuracy("acc", accuracy_of(right, count));
  print_accuracy("acc_norm", accuracy_of(right_norm, count));
  std::fflush(stdout);
}

nlohmann::ordered_json result_of(const Question& question, std::size_t index, const QuestionScore& score) {
  nlohmann::ordered_json result;
  if (!question.id.empty()) result["id"] = nlohmann::ordered_json::parse(question.id);
  result["index"] = index;
  result["gold"] = question.gold;
  result["acc"] = score.best == question.gold ? 1 : 0;
  result["acc_norm"] = score.best_norm == question.gold ? 1 : 0;
  result["choice"] = score.best;
  result["choice_norm"] = score.best_norm;
  result["log_likelihoods"] = score.log_likelihoods;
  return result;
}

}  // namespace

Evaluation plan_evaluation(const std::vector<Question>& questions, const Tokenizer& tokenizer,
                           const PairOptions& options, std::int64_t batch_tokens) {
  Evaluation evaluation;
  std::vector<std::int32_t> rows;
  std::int64_t longest = 0, total = 0;
  for (const Question& question : questions) {
    for (std::size_t choice = 0; choice < question.choices.size(); ++choice) {
      const ScoredSequence& sequence =
          evaluation.sequences.emplace_back(encode_pair(tokenizer, question, choice, options));
      evaluation.num_cut += sequence.cut > 0 ? 1 : 0;
      if (sequence.rows() > std::numeric_limits<std::int32_t>::max())
        refuse_format(question.place, "less than 2^31 tokens", std::to_string(sequence.rows()), "shorten it");
      rows.push_back(static_cast<std::int32_t>(sequence.rows()));
      longest = std::max(longest, sequence.rows());
      total += sequence.rows();
    }
  }
  evaluation.sizes.rows = std::max(longest, std::min(batch_tokens, total));
  evaluation.packing = pack_documents(rows, {.seq_length = evaluation.sizes.rows});
  for (std::int64_t p = 0; p < evaluation.packing.num_packs(); ++p)
    evaluation.sizes.documents = std::max(evaluation.sizes.documents, std::ssize(evaluation.packing.pack(p)));
  return evaluation;
}

std::vector<QuestionScore> run_evaluation(Scorer& scorer, const Evaluation& evaluation,
                                          const std::vector<Question>& questions) {
  std::vector<double> sums(evaluation.sequences.size());
  for (std::int64_t p = 0; p < evaluation.packing.num_packs(); ++p) {
    std::vector<const ScoredSequence*> pack;
    for (const std::int32_t s : evaluation.packing.pack(p))
      pack.push_back(&evaluation.sequences[static_cast<std::size_t>(s)]);
    const std::vector<double> scores = scorer.score(pack);
    for (std::size_t i = 0; i < scores.size(); ++i)
      sums[static_cast<std::size_t>(evaluation.packing.pack(p)[i])] = scores[i];
  }
  std::vector<QuestionScore> scores;
  auto next = sums.begin();
  for (const Question& question : questions) {
    const auto end = next + std::ssize(question.choices);
    if (!std::all_of(next, end, [](double sum) { return std::isfinite(sum); }))
      fail({.code = ExitCode::kNumeric,
            .subject = question.place,
            .expected = "finite log-likelihoods",
            .got = fmt::format("{}", fmt::join(next, end, ", ")),
            .remedy = "check the weights, such as by the losses of the training",
            .show_place = false});
    scores.push_back(score_question(question, {next, end}));
    next = end;
  }
  return scores;
}

void evaluate_questions(Session& session) {
  const GenerateOptions& options = session.options().generate;
  std::vector<Question> questions;
  Evaluation evaluation;
  std::optional<ResultsFile> results;  // of the rank that writes
  session.together([&] {
    questions = read_questions(options.questions);
    evaluation =
        plan_evaluation(questions, session.tokenizer(),
                        {.delimiter = options.target_delimiter, .max_positions = max_positions(session.options())},
                        options.batch_tokens);
    check_memory([&](int ranks) { return Scorer::bytes(session.options(), evaluation.sizes, ranks); }, session.ranks(),
                 session.free_bytes(), "lower --batch-tokens, or shorten the longest question");
    if (session.shows()) results.emplace(options.results);
  });
  if (evaluation.num_cut > 0 && session.shows())
    log_warning(fmt::format("{} cut at the start of the context to the {} of the model",
                            counted(evaluation.num_cut, "sequence"),
                            counted(*max_positions(session.options()), "learned position")));
  Communicator& ranks = session.connect();
  Scorer scorer(session.options(), session.options().device, evaluation.sizes, &ranks);
  const AbortOnUnwind guard(ranks);  // its streams may wait for peers
  session.load(scorer.parameters(), scorer.compute());
  const std::vector<QuestionScore> scores = run_evaluation(scorer, evaluation, questions);
  session.together([&] {
    if (!results) return;
    for (std::size_t q = 0; q < questions.size(); ++q) results->add(result_of(questions[q], q, scores[q]));
    results->finish();
    print_scores(questions, scores);
  });
}

}  // namespace megalith
