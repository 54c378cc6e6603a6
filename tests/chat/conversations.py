"""Conversations and tools that make_golden.py renders with each template."""

TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "Weather of \"a\" city <\u00e9>.\nSecond line",
        "parameters": {"type": "object", "properties": {
            "city": {"type": "string", "description": "City", "enum": ["Paris", "Bonn"], "default": "Bonn"},
            "days": {"type": ["integer", "null"], "default": 3},
            "flags": {"type": "array", "items": {"type": "string"}, "nullable": True},
            "places": {"type": "array", "items": {"type": "object", "properties": {"x": {"type": "number"}},
                                                  "required": ["x"]}},
            "either": {"oneOf": [{"type": "string", "description": "a word"}, {"type": "number"}]}},
            "required": ["city"]},
        "return": {"type": "string"}}},
    {"type": "function", "function": {"name": "noop", "description": "Does nothing",
                                      "parameters": {"type": "object", "properties": {}}}},
]


def user(content):
    return {"role": "user", "content": content}


def assistant(content, **other):
    return {"role": "assistant", "content": content, **other}


def result(call, name, content):
    return {"role": "tool", "name": name, "tool_call_id": call, "content": content}


CALL = {"id": "call12345", "type": "function", "function": {
    "name": "get_weather", "arguments": {"city": "Paris", "days": 2, "x": 1.5, "t": True, "z": None, "l": ["\u00e9"]}}}
NOOP = {"id": "call67890", "type": "function", "function": {"name": "noop", "arguments": {}}}
RESULT = result("call12345", "get_weather", "{\"t\": 20}")

CONVERSATIONS = {
    "simple": [user("Hi"), assistant("Hello!")],
    "system": [{"role": "system", "content": " Be brief. \n"}, user("Hi \n there"), assistant(" Hello!\n")],
    "several": [user("Hi"), assistant("Hello!"), user("How are\nyou? \u4e2d\u6587 \U0001f600"), assistant("Fine.\n\n")],
    "open": [{"role": "system", "content": "S /no_think"}, user("Hi"), assistant("Hello!"), user("again")],
    "think": [user("2+2"), assistant("<think>\nadd\n</think>\n\n4"), user("3+3"),
              assistant("<think>\nadd more\n</think>\n\n6")],
    "reasoning": [user("2+2"), assistant("4", reasoning_content="add", thinking="add"), user("3+3"),
                  assistant("6", reasoning_content="more", thinking="more")],
    "call": [user("Weather?"), assistant("", tool_calls=[CALL]), RESULT, assistant("20 degrees."), user("Thanks"),
             assistant("Bye")],
    "call without content": [user("Weather?"), assistant(None, tool_calls=[CALL]), RESULT, assistant("20.")],
    "two calls": [user("Weather?"), assistant("I ask.", tool_calls=[CALL, NOOP]), RESULT,
                  result("call67890", "noop", "done"), assistant("20.")],
    "open call": [user("Weather?"), assistant("", tool_calls=[CALL], thinking="ask"), RESULT],
    "parts": [user([{"type": "text", "text": "Hi "}, {"type": "image"}, {"type": "text", "text": "there"}]),
              assistant([{"type": "text", "text": "Yes"}])],
    "developer": [{"role": "developer", "content": "D"}, user("Hi"), assistant("Hello")],
    "assistant first": [assistant("first"), user("then")],
    "unknown role": [{"role": "critic", "content": "x"}, user("y")],
    "empty": [],
}

# Contents with special tokens, white space at the borders of answers, and text that NFC changes.
TOKENIZED = {
    "simple": [user("Hi"), assistant("Hello!")],
    "system": [{"role": "system", "content": "Be brief."}, user("It is a truth"), assistant(" universally\n"),
               user("acknowledged?"), assistant("\n\nthat a single man")],
    "special": [user("a<|endoftext|>b <|im_start|> c"), assistant("<|endoftext|>d<|im_start|>")],
    "normalized": [user("cafe\u0301 A\u030angstro\u0308m"), assistant("e\u0301te\u0301"), user("x"), assistant("\u2126")],
    "unicode": [user("\u4e2d\u6587 \U0001f600"), assistant("\u65e5\u672c\u8a9e 123 1234567")],
}
