// What generate does with a checkpoint, and what these programs share. All functions but those that print are
// collective.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "apps/generate/continuation.h"
#include "apps/generate/generator.h"
#include "apps/generate/session.h"

namespace megalith {

void continue_prompt(Session& session);       // of --prompt, printed token by token
void continue_prompt_file(Session& session);  // of --prompt-file
void chat(Session& session);                  // with standard input
void evaluate_questions(Session& session);    // generate evaluate

// Generator with the checkpoint's weights, for calls up to `most`.
std::unique_ptr<Generator> make_generator(Session& session, const Generator::Sizes& most, Communicator& ranks);

TextRules text_rules(const Session& session, const std::string& stop_text = {});

// Print on the first rank: to standard output at once, and the speed to standard error with --print-speed.
void print_text(const Session& session, std::string_view text);
void print_speed(const Session& session, const Generator::Speed& speed);

}  // namespace megalith
