// Values of a command line, checked together; only for the files of apps/flags*.
#pragma once

#include <string>
#include <vector>

#include "apps/flags/flags_table.h"
#include "apps/flags/megatron_line.h"
#include "core/flags/values.h"

namespace megalith {

struct GivenValues {
  std::vector<RawValue> values;  // in the order of the table
  MegatronNotes notes;
};

// Values of the command line. Fails with one message for all words that are unknown, all flags without a value and all
// values that a flag does not accept. The check sets the fields of the table. A plan of a line of Megatron-LM accepts
// the flags of train.
GivenValues read_given_values(App app, const FlagTable& table, const std::vector<std::string>& arguments);

// Remedy for a wrong value: the nearest choice, or --help.
std::string remedy_for(const Flag& flag, const RawValue& value);

// Removes values of flags that Megatron-LM ignores without a flag that is not given, and adds the type of a tokenizer
// whose files are given without it. The table has all values. Returns texts such as "--save-interval (only with
// --save)".
std::vector<std::string> settle_megatron_line(const FlagTable& table, App app, std::vector<RawValue>& given);

}  // namespace megalith
