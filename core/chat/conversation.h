// Conversations of fine-tuning data, one JSON object a line.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/chat/jinja_value.h"

namespace megalith {

struct Conversation {
  jinja::Value messages;                      // a list of dictionaries with role and content
  jinja::Value tools = jinja::Value::none();  // a list, or None
  std::vector<bool> trained;                  // per message: an assistant's answer to train
};

// Parses one of these forms; other members of the object are ignored. `place` is FILE:LINE for Errors (kFormat).
// - {"messages": [{"role": ..., "content": ...}, ...]}: all answers of the assistant are trained, except those with
//   "weight": 0. `content` is a text, a list of parts, or null; other members of a message reach the template.
// - {"conversations": [{"from": ..., "value": ...}, ...]} (ShareGPT), with "system" if it is not the first message.
// - {"prompt": ..., "completion": ...}: two texts, which become a message of the user and one of the assistant, or two
//   lists of messages, of which the completion's are trained.
// The first two may have "tools", a list or JSON text of one. As in transformers, reasoning_content, thinking and
// reasoning of a message fill each other. Members that are null are dropped, except content: tables store absent
// members as null.
Conversation parse_conversation(std::string_view line, const std::string& place);

// Trains the last answer alone, of those that are trained, and removes the messages after it. So no template sees more
// messages, for which it may change the answer.
void train_last_answer(Conversation& conversation);

}  // namespace megalith
