#include "core/base/log.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <span>
#include <string>

#include "core/base/text/text.h"

namespace megalith {

namespace {

constexpr std::string_view kErase = "\r\033[K";
std::atomic<bool> has_status = false;

// Writes each line with one call, so that lines of several ranks and threads do not mix.
void write_line(std::string_view prefix, std::string_view text) {
  constexpr std::size_t kMost = 16'384;
  std::string line(has_status.exchange(false) ? kErase : "");
  line += prefix;
  line += in_one_line(text.substr(0, kMost));
  if (text.size() > kMost) line += "... and " + std::to_string(text.size() - kMost) + " bytes more";
  line += '\n';
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace

void log_info(std::string_view text) { write_line("[megalith] ", text); }
void log_warning(std::string_view text) { write_line("[megalith] warning: ", text); }

void log_last_words(std::string_view text) {
  std::array<char, 8192> line;
  const std::size_t size = put_in_one_line(text, std::span(line).first(line.size() - 1));
  line[size] = '\n';
  std::fwrite(line.data(), 1, size + 1, stderr);
}

void show_status(std::string_view text) {
  winsize size{};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1) text = text.substr(0, size.ws_col - 1U);
  has_status = true;
  const std::string line = std::string(kErase).append(text);
  std::fwrite(line.data(), 1, line.size(), stderr);
}

void erase_status() {
  if (has_status.exchange(false)) std::fwrite(kErase.data(), 1, kErase.size(), stderr);
}

void end_status() {
  if (has_status.exchange(false)) std::fputc('\n', stderr);
}

}  // namespace megalith
