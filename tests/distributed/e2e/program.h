// Starts the programs of this build in a folder of the test's own and looks at what they leave: exit code, both
// outputs, files.
#pragma once

#include <gmock/gmock.h>
#include <sys/types.h>

#include <cstddef>
#include <random>
#include <string>
#include <vector>

#include "tests/support/test_folder.h"
#include "tests/support/words.h"

namespace megalith::test {

// A folder that is removed at the end of the test.
class Folder : public TestFolder {
 public:
  std::string read(const std::string& name) const;
  Words read_lines(const std::string& name) const;
  void write(const std::string& name, const std::string& content) const;
  void overwrite(const std::string& name, std::size_t offset, const std::string& bytes) const;
  void truncate(const std::string& name, std::size_t bytes) const;
  void copy(const std::string& from, const std::string& to) const;  // folders too
  void make_text() const;                                           // text.bin and text.idx, byte tokens of a novel
};

struct Outcome {
  int code = -1;  // 128 + N after signal N
  std::string out;
  std::string err;

  // Lines of standard error that a program of ours wrote as errors or warnings: without what mpirun adds.
  Words errors() const;
  Words warnings() const;
};

// A running program, in `folder`; killed with all its children when the object dies or after two minutes.
class Process {
 public:
  Process(const Words& command, const Folder& folder);
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  bool wait_for_output(const std::string& text);  // on standard output or error; false if it ended before
  bool wait_for_handler(int number);              // until the program itself takes the signal; false if it ended before
  void signal(int number) const;
  pid_t pid() const { return pid_; }
  std::vector<pid_t> ranks() const;  // of Open MPI's mpirun, below this process: by rank
  Outcome finish();

 private:
  bool ended(bool wait);

  pid_t pid_ = -1;
  int status_ = 0;
  bool ended_ = false;
  std::string out_;
  std::string err_;
  std::string codes_;  // file of the exit codes that ranks record
};

// On the CPU unless the arguments name a device, so that results do not depend on the machine.
Words program(const std::string& name, const Words& arguments);                // in this process's place
Words program_on(int ranks, const std::string& name, const Words& arguments);  // under mpirun
Words mpi_command(int ranks, const Words& command);                            // any program under mpirun
bool is_running(pid_t pid);                                                    // and no zombie
Outcome run(const Words& command, const Folder& folder);
Outcome run_ok(const Words& command, const Folder& folder);  // whose exit code is 0
int train_on_two(const Folder& folder, const Words& flags);  // its exit code

// One line says what is wrong, and nothing follows from the run.
void expect_error(const Folder& folder, const Words& command, int code, const testing::Matcher<std::string>& line);
void expect_train_error(const Folder& folder, const Words& flags, int code, const std::string& message);

// Flags of a training run that takes milliseconds: 2 layers, hidden 32, sequence 16, global batch 8, 6 steps.
Words tiny();
Words tiny_mock();  // with --mock-data
Words stateful();   // with everything that has a state, of text.bin: dropout, warm-up, validation
Words llama();      // rotary positions, SwiGLU, RMSNorm, groups of heads, no biases

// iteration, loss, gradient norm and validation loss of each line of a metrics file, as written.
Words steps_of(const Words& metrics);
std::vector<double> losses_of(const Words& metrics);  // exactly
// The checkpoints that runs of two ranks saved at this step are the same, byte for byte.
void expect_same_tensors(const Folder& folder, const std::string& save, const std::string& other, int step);

// The first number behind `pattern`, a regular expression, in `text`; "none" without one.
std::string number_after(const std::string& text, const std::string& pattern);
std::mt19937 random_from_seed();  // $SEED, or 1

}  // namespace megalith::test
