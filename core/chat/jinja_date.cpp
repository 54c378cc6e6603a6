// strftime in the C locale.
#include <fmt/format.h>

#include "core/chat/jinja_interpreter.h"

namespace megalith::jinja {

namespace {

constexpr std::string_view kMonths[] = {"January", "February", "March",     "April",   "May",      "June",
                                        "July",    "August",   "September", "October", "November", "December"};
constexpr std::string_view kDays[] = {"Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"};

bool is_leap(int year) { return year % 4 == 0 && (year % 100 != 0 || year % 400 == 0); }

int day_of_year(const Date& date) {
  constexpr int kBefore[] = {0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334};
  return kBefore[date.month - 1] + date.day + static_cast<int>(date.month > 2 && is_leap(date.year));
}

int day_of_week(const Date& date) {  // 0: Sunday
  const int years = date.year - 1;
  return (years * 365 + years / 4 - years / 100 + years / 400 + day_of_year(date)) % 7;
}

std::string field(const Date& date, char letter) {
  const std::string_view month = kMonths[date.month - 1], day = kDays[day_of_week(date)];
  switch (letter) {
    case 'Y': return fmt::format("{:04}", date.year);
    case 'y': return fmt::format("{:02}", date.year % 100);
    case 'm': return fmt::format("{:02}", date.month);
    case 'd': return fmt::format("{:02}", date.day);
    case 'e': return fmt::format("{:2}", date.day);
    case 'H': return fmt::format("{:02}", date.hour);
    case 'I': return fmt::format("{:02}", (date.hour + 11) % 12 + 1);
    case 'M': return fmt::format("{:02}", date.minute);
    case 'S': return fmt::format("{:02}", date.second);
    case 'p': return date.hour < 12 ? "AM" : "PM";
    case 'B': return std::string(month);
    case 'b':
    case 'h': return std::string(month.substr(0, 3));
    case 'A': return std::string(day);
    case 'a': return std::string(day.substr(0, 3));
    case 'w': return std::to_string(day_of_week(date));
    case 'j': return fmt::format("{:03}", day_of_year(date));
    case 'F': return fmt::format("{:04}-{:02}-{:02}", date.year, date.month, date.day);
    case 'T': return fmt::format("{:02}:{:02}:{:02}", date.hour, date.minute, date.second);
    case 'D': return fmt::format("{:02}/{:02}/{:02}", date.month, date.day, date.year % 100);
    case '%': return "%";
    default: throw Problem(fmt::format("strftime_now's %{}, which is not supported", letter), "use %Y, %m and %d");
  }
}

// %-d: without leading zeros.
std::string without_zeros(std::string text) {
  const std::size_t digit = text.find_first_not_of("0 ");
  return digit == std::string::npos ? "0" : text.substr(digit);
}

}  // namespace

std::string format_date(const Date& date, std::string_view format) {
  const bool is_date = date.month >= 1 && date.month <= 12 && date.day >= 1 && date.day <= 31 && date.year >= 1;
  if (!is_date) throw Problem("a date outside the calendar", "give a day of a month");
  std::string text;
  for (std::size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%') {
      text += format[i];
      continue;
    }
    const bool is_short = i + 1 < format.size() && format[i + 1] == '-';
    i += is_short ? 2 : 1;
    if (i >= format.size()) throw Problem("strftime_now's format, which ends in %");
    const std::string value = field(date, format[i]);
    text += is_short ? without_zeros(value) : value;
  }
  return text;
}

}  // namespace megalith::jinja
