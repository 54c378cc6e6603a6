#include "tests/distributed/e2e/program.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <thread>

namespace megalith::test {

namespace {

namespace fs = std::filesystem;
constexpr std::chrono::minutes kTimeout{2};

std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  content << file.rdbuf();
  return content.str();
}

Words lines_of(const std::string& text) {
  Words lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

Words lines_with(const std::string& text, const std::string& part) {
  Words found;
  for (const std::string& line : lines_of(text)) {
    if (line.find(part) != std::string::npos) found.push_back(line);
  }
  return found;
}

// In the child: never returns.
[[noreturn]] void execute(const Words& command, const std::string& folder, const std::string& out,
                          const std::string& err, const std::string& codes) {
  setpgid(0, 0);
  if (chdir(folder.c_str()) != 0) _exit(126);
  dup2(open("/dev/null", O_RDONLY), STDIN_FILENO);
  dup2(open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDOUT_FILENO);
  dup2(open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDERR_FILENO);
  setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
  setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
  setenv("PMIX_MCA_gds", "hash", 1);  // README: or mpirun may hang where its ranks are killed as they start
  setenv("MEGALITH_EXIT_CODES", codes.c_str(), 1);
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  execv(arguments[0], arguments.data());
  _exit(127);
}

std::string value_of(const std::string& line, const std::string& key) {
  const std::string quoted = '"' + key + "\": ";
  const std::size_t at = line.find(quoted);
  if (at == std::string::npos) return "-";
  const std::size_t begin = at + quoted.size();
  return line.substr(begin, line.find_first_of(",}", begin) - begin);
}

// The first recorded code that is not 0, for an mpirun of Open MPI 4.1.4 that crashes after its ranks have ended;
// `otherwise` if no rank recorded one.
int code_of_ranks(const std::string& codes, int otherwise) {
  int code = otherwise;
  for (const std::string& line : lines_of(codes)) {
    code = std::stoi(line);
    if (code != 0) break;
  }
  return code;
}

// Also a child of a child.
bool descends_from(long pid, long ancestor) {
  while (pid > 1) {
    const Words parent = lines_with(content_of("/proc/" + std::to_string(pid) + "/status"), "PPid:");
    pid = parent.empty() ? 0 : std::stol(parent[0].substr(5));
    if (pid == ancestor) return true;
  }
  return false;
}

}  // namespace

std::string Folder::read(const std::string& name) const { return content_of(path(name)); }
Words Folder::read_lines(const std::string& name) const { return lines_of(read(name)); }

void Folder::write(const std::string& name, const std::string& content) const {
  std::ofstream(path(name), std::ios::binary) << content;
}

void Folder::overwrite(const std::string& name, std::size_t offset, const std::string& bytes) const {
  std::fstream file(path(name), std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(static_cast<std::streamoff>(offset));
  file << bytes;
}

void Folder::truncate(const std::string& name, std::size_t bytes) const { fs::resize_file(path(name), bytes); }

void Folder::copy(const std::string& from, const std::string& to) const {
  fs::copy(path(from), path(to), fs::copy_options::recursive | fs::copy_options::overwrite_existing);
}

void Folder::make_text() const {
  run_ok(program("prepare", {"--input", MEGALITH_SOURCE_DIR "/configs/text/pride_and_prejudice.txt", "--document-start",
                             "Chapter", "--append-eod", "--output-prefix", "text"}),
         *this);
}

Words Outcome::errors() const { return lines_with(err, ": error: "); }
Words Outcome::warnings() const { return lines_with(err + out, "[megalith] warning: "); }

Process::Process(const Words& command, const Folder& folder)
    : out_(folder.path("stdout")), err_(folder.path("stderr")), codes_(folder.path("exit_codes")) {
  for (const std::string& earlier : {out_, err_}) fs::remove(earlier);  // or wait_for_output finds what it wrote
  std::ofstream{codes_};
  pid_ = fork();
  if (pid_ < 0) throw std::runtime_error("fork failed");
  if (pid_ == 0) execute(command, folder.path("."), out_, err_, codes_);
}

Process::~Process() {
  if (ended_) return;
  kill(-pid_, SIGKILL);
  ended(true);
}

bool Process::ended(bool wait) {
  if (!ended_) ended_ = waitpid(pid_, &status_, wait ? 0 : WNOHANG) == pid_;
  return ended_;
}

bool Process::wait_for_output(const std::string& text) {
  const auto end = std::chrono::steady_clock::now() + kTimeout;
  while (std::chrono::steady_clock::now() < end) {
    const bool over = ended(false);
    if ((content_of(out_) + content_of(err_)).find(text) != std::string::npos) return true;
    if (over) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

bool Process::wait_for_handler(int number) {
  const std::string status = "/proc/" + std::to_string(pid_) + "/status";
  while (!ended(false)) {
    const Words caught = lines_with(content_of(status), "SigCgt:");
    if (!caught.empty() && (std::stoull(caught[0].substr(7), nullptr, 16) >> (number - 1) & 1) != 0) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

void Process::signal(int number) const { kill(pid_, number); }

std::vector<pid_t> Process::ranks() const {
  std::vector<pid_t> ranks;
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    if (!descends_from(std::stol(name), pid_)) continue;
    const std::string environment = content_of(entry.path() / "environ");
    const std::string key("\0OMPI_COMM_WORLD_RANK=", 22);
    const std::size_t at = environment.find(key);
    if (at == std::string::npos) continue;
    const auto rank = static_cast<std::size_t>(std::stoul(environment.substr(at + key.size(), 6)));
    if (ranks.size() <= rank) ranks.resize(rank + 1);
    ranks[rank] = static_cast<pid_t>(std::stol(name));
  }
  return ranks;
}

Outcome Process::finish() {
  const auto end = std::chrono::steady_clock::now() + kTimeout;
  while (!ended(false)) {
    if (std::chrono::steady_clock::now() > end) {
      ADD_FAILURE() << "the program hangs: it was killed";
      kill(-pid_, SIGKILL);
      ended(true);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  Outcome outcome{.code = WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_),
                  .out = content_of(out_),
                  .err = content_of(err_)};
  if (outcome.code == 128 + SIGSEGV && outcome.err.find("PMIx_server_finalize") != std::string::npos)
    outcome.code = code_of_ranks(content_of(codes_), outcome.code);
  return outcome;
}

Words program(const std::string& name, const Words& arguments) {
  const bool computes = name == "train" || name == "generate" || name == "plan";
  const Words device = computes ? Words{"--device", "cpu"} : Words{};  // a --device of the test's own comes later
  // A part of a program, as generate evaluate, precedes its flags.
  const auto flags = std::ranges::find_if(arguments, [](const std::string& word) { return word.starts_with("-"); });
  return Words{std::string(MEGALITH_BIN_DIR "/") + name} + Words(arguments.begin(), flags) + device +
         Words(flags, arguments.end());
}

Words mpi_command(int ranks, const Words& command) {
  Words words;
  std::istringstream mpiexec(MEGALITH_MPIEXEC);
  for (std::string word; mpiexec >> word;) words.push_back(word);
  return words + Words{"-n", std::to_string(ranks)} + command;
}

Words program_on(int ranks, const std::string& name, const Words& arguments) {
  return mpi_command(ranks, program(name, arguments));
}

bool is_running(pid_t pid) {
  const Words state = lines_with(content_of("/proc/" + std::to_string(pid) + "/status"), "State:");
  return !state.empty() && state[0].find('Z') == std::string::npos && state[0].find('X') == std::string::npos;
}

Outcome run(const Words& command, const Folder& folder) { return Process(command, folder).finish(); }

Outcome run_ok(const Words& command, const Folder& folder) {
  Outcome outcome = run(command, folder);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return outcome;
}

int train_on_two(const Folder& folder, const Words& flags) { return run(program_on(2, "train", flags), folder).code; }

void expect_error(const Folder& folder, const Words& command, int code, const testing::Matcher<std::string>& line) {
  const Outcome outcome = run(command, folder);
  EXPECT_EQ(outcome.code, code) << outcome.err;
  EXPECT_THAT(outcome.errors(), testing::ElementsAre(line)) << outcome.err;
}

void expect_train_error(const Folder& folder, const Words& flags, int code, const std::string& message) {
  expect_error(folder, program("train", flags), code, "train: error: [rank 0/1] " + message);
}

Words tiny() { return small_run() + Words{"--log-interval", "1"}; }

Words tiny_mock() { return tiny() + Words{"--mock-data"}; }

Words stateful() {
  return tiny() + Words{"--data-path",     "text", "--hidden-dropout", "0.1", "--lr-warmup-iters", "2",
                        "--eval-interval", "2",    "--eval-iters",     "1"};
}

Words llama() {
  return words(
      "--position-embedding-type rope --swiglu --normalization RMSNorm --disable-bias-linear "
      "--group-query-attention --num-query-groups 2");
}

Words steps_of(const Words& metrics) {
  Words steps;
  for (const std::string& line : metrics) {
    std::string step;
    for (const char* key : {"iteration", "consumed_samples", "lm_loss_hex", "grad_norm_hex", "validation_loss"})
      step.append(step.empty() ? "" : " ").append(value_of(line, key));
    steps.push_back(step);
  }
  return steps;
}

std::vector<double> losses_of(const Words& metrics) {
  std::vector<double> losses;
  for (const std::string& line : metrics) {
    const std::string hex = value_of(line, "lm_loss_hex");  // in quotes
    EXPECT_EQ(hex.front(), '"') << line;
    losses.push_back(std::strtod(hex.c_str() + 1, nullptr));
  }
  return losses;
}

void expect_same_tensors(const Folder& folder, const std::string& save, const std::string& other, int step) {
  for (const int rank : {0, 1}) {
    const std::string file = fmt::format("/step_{:07}/rank_{:04}_of_0002.safetensors", step, rank);
    EXPECT_TRUE(folder.read(save + file) == folder.read(other + file)) << file;
  }
}

std::string number_after(const std::string& text, const std::string& pattern) {
  std::smatch match;
  return std::regex_search(text, match, std::regex(pattern + "([0-9.]+)")) ? match[1].str() : "none";
}

std::mt19937 random_from_seed() {
  const char* seed = std::getenv("SEED");
  return std::mt19937(seed == nullptr ? 1u : static_cast<unsigned>(std::stoul(seed)));
}

}  // namespace megalith::test
