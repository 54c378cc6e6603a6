// Golden error messages: tests/golden_messages/*.txt, one case each paragraph:
//   a key that no program has
//     file run.toml: [model]\nhiden-size = 32\n
//     $ train TINY --config run.toml
//     exit 2: run.toml:2:1: unknown key hiden-size; did you mean hidden-size?
// Steps are indented by two and run in a fresh folder. Those before the last two prepare it:
//   file NAME: TEXT            with \n, \\ and \xHH
//   set NAME BYTE: TEXT        overwrites from that byte on
//   cut NAME BYTES             shortens
//   folder NAME, copy NAME TO, remove NAME
//   text PREFIX                an indexed dataset of three documents, byte tokens
//   checkpoint DIR FLAG...     what the tiny run leaves in DIR: steps 1 and 2
// The step before the last is a command line ("$ PROGRAM ARGUMENT...", an argument with blanks in single quotes, TINY
// for the flags of the tiny run) or a call of golden_calls.cpp ("call NAME ARGUMENT..."); the last is the exit code
// and the exact message. A line of a source file in a message stands as FILE:*, a hash as HASH.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace megalith::test {

struct GoldenMessage {
  std::string file;
  int line = 0;  // of the title
  std::string title;
  std::vector<std::string> steps;  // without the last
  std::string expected;            // "exit 2: ..."
};

std::vector<GoldenMessage> golden_messages(const std::string& file);

// Runs the steps in the current folder and returns "exit CODE: MESSAGE", or "no error".
std::string outcome_of(const GoldenMessage& message);

// API calls that must throw.
using GoldenCall = std::function<void(const std::vector<std::string>& arguments)>;
const std::map<std::string, GoldenCall>& golden_calls();

}  // namespace megalith::test
