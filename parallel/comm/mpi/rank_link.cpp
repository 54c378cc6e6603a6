#include "parallel/comm/mpi/rank_link.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string>
#include <vector>

#include "core/base/digest.h"
#include "core/base/error.h"
#include "core/base/exit_record.h"
#include "core/base/log.h"
#include "parallel/comm/mpi/mpi_process.h"

namespace megalith {

namespace {

constexpr const char* kLinkWord = "--rank-link";
constexpr int kNoMpirun = 127;
constexpr std::size_t kMaxEnvironment = std::size_t{1} << 20;

// Address without a file: it ends with its socket.
struct Address {
  sockaddr_un name{};
  socklen_t bytes = 0;
};

Address address_of(const std::string& key, int rank) {
  const std::string text = fmt::format("megalith/{}/{}/{}", getuid(), key, rank);
  Address address;
  address.name.sun_family = AF_UNIX;
  std::memcpy(address.name.sun_path + 1, text.data(), std::min(text.size(), sizeof(address.name.sun_path) - 1));
  address.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  return address;
}

const sockaddr* as_socket(const Address& address) { return reinterpret_cast<const sockaddr*>(&address.name); }

Descriptor new_socket(int flags = 0) { return Descriptor(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | flags, 0)); }

// True if the peer is a process of the same user.
bool is_own(int socket) {
  ucred peer{};
  socklen_t bytes = sizeof(peer);
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && peer.uid == getuid();
}

bool is_of_mpi(std::string_view variable) {
  for (const std::string_view prefix : {"OMPI_", "PMIX_", "ORTE_"})
    if (variable.starts_with(prefix)) return true;
  return false;
}

[[noreturn]] void fail_link(const std::string& expected, const std::string& got, const std::string& remedy) {
  fail({.code = ExitCode::kCommunication,
        .subject = "ranks without MPI's launcher",
        .expected = expected,
        .got = got,
        .remedy = remedy,
        .show_place = false});
}

bool write_all(int socket, std::string_view text) {
  while (!text.empty()) {
    const ssize_t sent = ::send(socket, text.data(), text.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(sent));
  }
  return true;
}

// Bytes until `end`, or until the peer ends.
std::string read_until(int socket, char end) {
  std::string text;
  char byte = 0;
  while (text.size() < kMaxEnvironment) {
    const ssize_t got = ::read(socket, &byte, 1);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0 || byte == end) break;
    text += byte;
  }
  return text;
}

}  // namespace

std::unique_ptr<RankLink> RankLink::connect(std::chrono::milliseconds timeout) {
  const std::optional<LaunchPlace> place = place_without_mpi([](const char* name) { return std::getenv(name); });
  if (!place) return nullptr;
  if (place->local_ranks != place->ranks) {
    refuse_usage(fmt::format("{} ranks of {}", place->ranks, place->launcher),
                 {.expected = "all ranks on one host",
                  .got = place->local_ranks == 0 ? "an unknown number on this host"
                                                 : fmt::format("{} on this host", place->local_ranks),
                  .remedy = "start ranks on several hosts by mpirun, which uses srun in a job of Slurm, or by "
                            "srun --mpi=pmix"});
  }
  std::uint64_t digest = kEmptyDigest;
  fold(digest, place->id);
  const std::string key = fmt::format("{:016x}", digest);
  const Address address = address_of(key, place->rank);
  const Descriptor listener = new_socket(SOCK_NONBLOCK);
  if (!listener || ::bind(listener.get(), as_socket(address), address.bytes) != 0 || ::listen(listener.get(), 1) != 0) {
    fail_link(fmt::format("one process of rank {}", place->rank), std::strerror(errno),
              "start each rank once, and each launch of one host with another MASTER_PORT");
  }
  std::unique_ptr<RankLink> link(new RankLink(*place));
  if (place->rank == 0) link->start_mpirun(key);
  link->accept_link(listener, timeout);
  link->take_environment();
  record_exit_code_to(link->link_.get());
  link->watch();
  return link;
}

RankLink::~RankLink() {
  record_exit_code_to(-1);
  is_ending_ = true;
  if (link_) ::shutdown(link_.get(), SHUT_RDWR);  // also ends the watcher
  if (watcher_.joinable()) watcher_.join();
  if (mpirun_ < 0) return;
  Backoff wait(std::chrono::seconds(10));
  if (!link_) ::kill(mpirun_, SIGKILL);
  while (::waitpid(mpirun_, nullptr, WNOHANG) == 0 && wait.pause()) continue;
}

void RankLink::start_mpirun(const std::string& key) {
  std::array<char, 4096> self{};
  if (::readlink("/proc/self/exe", self.data(), self.size() - 1) <= 0)
    fail_link("/proc/self/exe", "none", "mount /proc");
  const char* const given = std::getenv("MPIRUN");
  const std::string mpirun = given != nullptr ? given : "mpirun", ranks = fmt::to_string(place_.ranks);
  const std::vector<const char*> words = {
      mpirun.c_str(), "--quiet",     "--allow-run-as-root", "--oversubscribe", "--bind-to", "none",
      "-np",          ranks.c_str(), self.data(),           kLinkWord,         key.c_str(), nullptr};
  const Descriptor null = File::open_stream("/dev/null").duplicate();
  const pid_t parent = ::getpid();
  mpirun_ = ::fork();
  if (mpirun_ < 0) fail_link("a process for mpirun", std::strerror(errno), "raise the limit of processes");
  if (mpirun_ > 0) return;
  // Signals of a terminal go to the ranks alone.
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) ::_exit(kNoMpirun);
  ::dup2(null.get(), STDIN_FILENO);
  ::dup2(STDERR_FILENO, STDOUT_FILENO);
  ::execvp(words[0], const_cast<char* const*>(words.data()));
  ::_exit(kNoMpirun);
}

void RankLink::check_mpirun() {
  int status = 0;
  if (mpirun_ < 0 || ::waitpid(mpirun_, &status, WNOHANG) != mpirun_) return;
  mpirun_ = -1;
  const bool is_missing = WIFEXITED(status) && WEXITSTATUS(status) == kNoMpirun;
  fail_link("mpirun of Open MPI to connect the ranks",
            is_missing ? "no such program"
                       : fmt::format("its end with status {}", WIFEXITED(status) ? WEXITSTATUS(status) : 128),
            "install Open MPI's mpirun on this host, or set MPIRUN to its path");
}

void RankLink::accept_link(const Descriptor& listener, std::chrono::milliseconds timeout) {
  Backoff wait(timeout);
  while (!link_) {
    if (!wait.pause())
      fail_link("all ranks", "a timeout", "check that the launcher starts every rank, and rank 0 on this host");
    check_mpirun();
    Descriptor accepted(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (accepted && is_own(accepted.get())) link_ = std::move(accepted);
  }
}

void RankLink::take_environment() {
  int variables = 0;
  for (;;) {
    const std::string variable = read_until(link_.get(), '\0');
    if (variable == "end") break;
    const std::size_t equals = variable.find('=');
    if (!is_of_mpi(variable) || equals == std::string::npos)
      fail_link("the environment of mpirun's child", "its end", "see the message of mpirun above");
    ::setenv(variable.substr(0, equals).c_str(), variable.c_str() + equals + 1, 1);
    ++variables;
  }
  const char* const size = std::getenv("OMPI_COMM_WORLD_SIZE");
  if (size == nullptr || fmt::to_string(place_.ranks) != size)
    fail_link(fmt::format("OMPI_COMM_WORLD_SIZE={}", place_.ranks), size == nullptr ? "none" : size,
              "use the mpirun of the Open MPI that this program was built with");
}

void RankLink::watch() {
  watcher_ = std::thread([this] {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
    char byte = 0;
    ssize_t got = 0;
    do got = ::read(link_.get(), &byte, 1);
    while (got > 0 || (got < 0 && errno == EINTR));
    if (is_ending_) return;
    const int code = recorded_exit_code();
    if (code < 0 && place_.rank == 0) {
      log_last_words(fmt::format("{}: error: [rank 0/{}] another rank ended; see its error",
                                 program_invocation_short_name, place_.ranks));
    }
    ::_exit(code >= 0 ? code : static_cast<int>(ExitCode::kCommunication));
  });
}

std::optional<int> run_rank_link(int argc, char** argv) {
  if (argc != 3 || std::string_view(argv[1]) != kLinkWord) return std::nullopt;
  const pid_t mpirun = ::getppid();
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (const int signal : {SIGHUP, SIGINT, SIGUSR1, SIGUSR2, SIGALRM, SIGPIPE}) std::signal(signal, SIG_IGN);
  const char* const rank = std::getenv("OMPI_COMM_WORLD_RANK");
  if (rank == nullptr) return kNoMpirun;
  const Address address = address_of(argv[2], std::atoi(rank));
  Descriptor socket = new_socket();
  while (::connect(socket.get(), as_socket(address), address.bytes) != 0) {
    if (::getppid() != mpirun) return kNoMpirun;
    ::usleep(2000);
    socket = new_socket();
  }
  std::string text;
  for (char** variable = environ; *variable != nullptr; ++variable)
    if (is_of_mpi(*variable)) text.append(*variable).push_back('\0');
  text.append("end").push_back('\0');
  if (!is_own(socket.get()) || !write_all(socket.get(), text)) return static_cast<int>(ExitCode::kCommunication);
  // The rank's exit code, then its end.
  int code = -1;
  for (unsigned char byte = 0;;) {
    const ssize_t got = ::read(socket.get(), &byte, 1);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    if (code < 0) code = byte;
  }
  return code < 0 ? static_cast<int>(ExitCode::kCommunication) : code;
}

}  // namespace megalith
