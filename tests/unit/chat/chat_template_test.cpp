// Templates of folders, files and built-in ones, and the parts of a text that the assistant writes.
#include "core/chat/chat_template.h"

#include <filesystem>

#include "core/chat/built_in_templates.h"
#include "tests/unit/chat/chat_files.h"

namespace megalith {
namespace {

const std::string kMessages =
    R"([{"role": "system", "content": "S"}, {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"}, {"role": "user", "content": "2"},
        {"role": "assistant", "content": "two\n"}])";
const jinja::Value kNone = jinja::Value::none();

std::string text_of(const ChatTemplate& chat, bool prompts = false) {
  return chat.render(json(kMessages), kNone, prompts);
}

class ChatFolder : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) const { write_bytes(folder_ / name, text); }
  ChatTemplate load(ChatOptions options = {}) const {
    return ChatTemplate::load(folder_.path(), "", std::move(options));
  }
  std::string rendered() const { return text_of(load()); }
  const TestFolder folder_;
};

TEST_F(ChatFolder, ConfigHasTheTemplateAndTheTokens) {
  write("tokenizer_config.json",
        R"({"chat_template": "{{ bos_token ~ eos_token ~ pad_token ~ additional_special_tokens }}",
    "bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": false}, "pad_token": null,
    "additional_special_tokens": ["<a>", {"content": "<b>"}], "model_max_length": 1000000000000000019884624838656})");
  EXPECT_EQ(rendered(), "<s></s>['<a>', '<b>']");
  EXPECT_EQ(load().special().find("eos_token")->as_text(), "</s>");
  EXPECT_EQ(parse_special_texts(R"({"eos_token": "e", "bos_token": null})", "f").members.size(), 1u);
}

TEST_F(ChatFolder, FileComesBeforeTheConfig) {
  write("tokenizer_config.json", R"({"chat_template": "config", "bos_token": "<s>"})");
  write("chat_template.jinja", "{{ bos_token }}file");
  EXPECT_EQ(rendered(), "<s>file");
  EXPECT_EQ(load().name(), folder_ / "chat_template.jinja");
  std::filesystem::create_directory(folder_ / "additional_chat_templates");
  write("additional_chat_templates/tool_use.jinja", "{{ tools | length }} tools");
  EXPECT_EQ(rendered(), "<s>file");
  EXPECT_EQ(load().render(json(kMessages), json("[{}]"), false), "1 tools");
}

TEST_F(ChatFolder, NamedTemplates) {
  write("tokenizer_config.json",
        R"({"chat_template": [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"},
                              {"name": "rag", "template": "rag"}]})");
  EXPECT_EQ(rendered(), "plain");
  EXPECT_EQ(load().render(json(kMessages), json("[{}]"), false), "tools");
}

TEST_F(ChatFolder, OtherTokensAndOptions) {
  write("own.jinja", "{{ bos_token }}{{ enable_thinking }}{{ strftime_now('%Y') }}");
  const TestFolder tokenizer;
  write_bytes(tokenizer / "tokenizer_config.json", R"({"bos_token": "<t>"})");
  ChatOptions options{
      .variables = json(R"({"enable_thinking": false})").as_dict(), .date = {.year = 2030}, .limits = {}};
  EXPECT_EQ(text_of(ChatTemplate::load(folder_ / "own.jinja", tokenizer.path(), options)), "<t>False2030");
  EXPECT_EQ(text_of(ChatTemplate::load(folder_ / "own.jinja", "", options)), "False2030");
  write("chat_template.jinja", "{{ bos_token }}");
  write("tokenizer_config.json", R"({"bos_token": "<f>"})");
  EXPECT_EQ(rendered(), "<f>");
  EXPECT_EQ(text_of(ChatTemplate::load(folder_.path(), tokenizer.path())), "<t>");
}

TEST_F(ChatFolder, BadFilesAreRejected) {
  const auto refused = [&](ExitCode code, const std::string& where) {
    return error_of(code, [&] { ChatTemplate::load(where, ""); });
  };
  EXPECT_THAT(
      refused(ExitCode::kUsage, folder_.path()),
      AllOf(HasSubstr("chat template: expected chatml, llama3, identity, nemotron-h-aligned, nemotron-nano-v2, a file"),
            HasSubstr("which has no chat template; name a built-in template or a file")));
  EXPECT_THAT(refused(ExitCode::kUsage, "chatlm"), HasSubstr("got 'chatlm'; check the name and the path"));
  EXPECT_THAT(refused(ExitCode::kFileIo, folder_ / "missing.jinja"), HasSubstr("missing.jinja"));
  for (const char* config :
       {R"({"chat_template": 1})", R"({"chat_template": [1]})", R"({"chat_template": [{"name": "a"}]})",
        R"({"chat_template": "{{", "bos_token": "a"})", R"({"chat_template": "", "bos_token": 1})",
        R"({"chat_template": "", "bos_token": {}})", R"([])", R"({)"}) {
    write("tokenizer_config.json", config);
    EXPECT_THAT(refused(ExitCode::kFormat, folder_.path()), HasSubstr("tokenizer_config.json")) << config;
  }
  write("tokenizer_config.json", R"({"chat_template": "a\n{% nope %}"})");
  EXPECT_THAT(refused(ExitCode::kFormat, folder_.path()),
              HasSubstr("tokenizer_config.json: chat_template:2:1: expected"));
}

TEST(ChatTemplate, BuiltInTemplates) {
  const ChatTemplate chatml = ChatTemplate::load("chatml", "");
  EXPECT_EQ(text_of(chatml, true),
            "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n"
            "<|im_start|>user\n2<|im_end|>\n<|im_start|>assistant\ntwo\n<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_THAT(trained_parts(chatml.render_labelled(json(kMessages), kNone)),
              ElementsAre("Hello<|im_end|>", "two\n<|im_end|>"));
  const ChatTemplate llama3 = ChatTemplate::load("llama3", "");
  EXPECT_EQ(text_of(llama3, true),
            "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|><|start_header_id|>user"
            "<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nHello<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\n2<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
            "two<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n");
  EXPECT_THAT(trained_parts(llama3.render_labelled(json(kMessages), kNone)),
              ElementsAre("Hello<|eot_id|>", "two<|eot_id|>"));
  const ChatTemplate identity = ChatTemplate::load("identity", "");
  EXPECT_EQ(text_of(identity), "SHiHello2two\n");
  EXPECT_THAT(trained_parts(identity.render_labelled(json(kMessages), kNone)), ElementsAre("Hello", "two\n"));
  for (const BuiltInTemplate& built_in : kBuiltInTemplates) {
    const ChatTemplate chat = ChatTemplate::load(std::string(built_in.name), "");
    const auto refused = [&](const std::string& messages, const std::string& tools) {
      return error_of(ExitCode::kFormat, [&] { chat.render(json(messages), json(tools), false); });
    };
    EXPECT_THAT(refused(kMessages, "[{}]"), HasSubstr("has no tools"));
    EXPECT_THAT(refused(R"([{"role": "user", "content": []}])", "null"), HasSubstr("content of text alone"));
  }
}

// Texts that Megatron-LM's templates of these names give, and the parts whose targets its SFTTokenizer keeps: of
// nano-v2 without the first three tokens of a turn, <SPECIAL_11>, Assistant and the line's end.
TEST(ChatTemplate, FormatsOfMegatron) {
  const jinja::Value messages = json(
      R"([{"role": "system", "content": " Be /think brief. "}, {"role": "user", "content": "/no_think Hi\n"},
          {"role": "assistant", "content": " Hello\n/think"}, {"role": "user", "content": "2"},
          {"role": "assistant", "content": "two\n"}])");
  const auto labelled = [&](const char* name) { return ChatTemplate::load(name, "").render_labelled(messages, kNone); };
  const LabelledText aligned = labelled("nemotron-h-aligned");
  EXPECT_EQ(aligned.text,
            "<SPECIAL_10>System\nBe /think brief.\n<SPECIAL_11>User\n/no_think Hi\n<SPECIAL_11>Assistant\nHello\n"
            "/think\n<SPECIAL_11>User\n2\n<SPECIAL_11>Assistant\ntwo\n");
  EXPECT_THAT(trained_parts(aligned), ElementsAre("Hello\n/think\n", "two\n"));
  const LabelledText nano = labelled("nemotron-nano-v2");
  EXPECT_EQ(nano.text,
            "<SPECIAL_10>System\nBe  brief.\n<SPECIAL_11>User\nHi\n<SPECIAL_11>Assistant\nHello\n/think\n"
            "<SPECIAL_12>\n<SPECIAL_11>User\n2\n<SPECIAL_11>Assistant\ntwo\n<SPECIAL_12>\n");
  EXPECT_THAT(trained_parts(nano), ElementsAre("Hello\n/think\n<SPECIAL_12>\n", "two\n<SPECIAL_12>\n"));
  const LabelledText identity = labelled("identity");
  EXPECT_EQ(identity.text, " Be /think brief. /no_think Hi\n Hello\n/think2two\n");
  EXPECT_THAT(trained_parts(identity), ElementsAre(" Hello\n/think", "two\n"));
}

TEST(ChatTemplate, AnswersWithoutMarksFollowTheGenerationPrompt) {
  for (const std::string name : {"chatml", "llama3", "mistral", "gemma", "deepseek", "zephyr", "llama2", "olmo"}) {
    const ChatTemplate chat = chat_template(read_bytes(kTests + "chat/templates/" + name + ".jinja"),
                                            R"({"bos_token": "<s>", "eos_token": "</s>"})");
    const jinja::Value messages =
        json(R"([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}])");
    if (name == "deepseek") {  // its prompt begins reasoning, which its answers drop
      EXPECT_THAT(error_of(ExitCode::kFormat, [&] { chat.render_labelled(messages, kNone); }),
                  AllOf(HasSubstr("t: expected the text of 1 message and the generation prompt to begin that of 2"),
                        HasSubstr("mark answers in the template by {% generation %}")));
      continue;
    }
    const LabelledText labelled = chat.render_labelled(messages, kNone);
    ASSERT_EQ(labelled.trained.size(), 1u) << name;
    EXPECT_THAT(trained_parts(labelled)[0], HasSubstr("Yes")) << name;
    EXPECT_THAT(trained_parts(labelled)[0], Not(HasSubstr("Hi"))) << name;
    EXPECT_EQ(labelled.trained[0].end, labelled.text.size()) << name;
    EXPECT_EQ(labelled.text, chat.render(messages, kNone, false));
  }
}

TEST(ChatTemplate, EarlierAnswersThatChangeAreAnError) {
  const ChatTemplate qwen = chat_template(read_bytes(kTests + "chat/templates/qwen3.jinja"));
  const jinja::Value messages = json(kMessages);
  EXPECT_THAT(
      error_of(ExitCode::kFormat, [&] { qwen.render_labelled(messages, kNone); }),
      AllOf(HasSubstr("expected the text of 3 messages to begin that of all 5"),
            HasSubstr("as if the template changes earlier answers; train the last answer alone (--sft-train last)")));
  EXPECT_THAT(trained_parts(qwen.render_labelled(messages, kNone, {false, false, false, false, true})),
              ElementsAre("<think>\n\n</think>\n\ntwo\n<|im_end|>\n"));
}

TEST(ChatTemplate, SomeAnswersAreTrained) {
  const std::vector<bool> first = {false, false, true, false, false}, last = {false, false, false, false, true};
  const std::string unmarked = read_bytes(kTests + "chat/templates/chatml.jinja");
  for (const ChatTemplate& chat : {chat_template(unmarked), ChatTemplate::load("chatml", "")}) {
    const auto parts = [&](const std::vector<bool>& trained) {
      return trained_parts(chat.render_labelled(json(kMessages), kNone, trained));
    };
    EXPECT_THAT(parts(first), ElementsAre(StartsWith("Hello<|im_end|>")));
    EXPECT_THAT(parts(last), ElementsAre(StartsWith("two\n<|im_end|>")));
    EXPECT_THAT(parts({false, true, false, false, false}), IsEmpty());  // no answer
    EXPECT_EQ(parts({}).size(), 2u);
  }
}

TEST(ChatTemplate, MarksAreUnitedAndCounted) {
  const ChatTemplate two = chat_template(
      "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}a{% endgeneration %}{% generation %}b"
      "{% endgeneration %}{% generation %}{% endgeneration %}{% else %}u{% endif %}{% endfor %}");
  EXPECT_THAT(trained_parts(two.render_labelled(json(kMessages), kNone)), ElementsAre("ab", "ab"));
  const LabelledText last = two.render_labelled(json(kMessages), kNone, {false, false, false, false, true});
  EXPECT_EQ(last.trained, (std::vector<jinja::Range>{{.begin = 5, .end = 7}}));
  const ChatTemplate fewer = chat_template(
      "{% if messages | length < 5 %}{% for m in messages %}{% generation %}a{% endgeneration %}{% endfor %}{% endif "
      "%}");
  EXPECT_THAT(error_of(ExitCode::kFormat,
                       [&] {
                         fewer.render_labelled(json(kMessages), kNone, {false, false, false, false, true});
                       }),
              HasSubstr("as many {% generation %} blocks"));
}

TEST(ChatTemplate, IdentityFollowsFromWhatIsRendered) {
  const std::string same = chat_template("a", R"({"x": "1", "y": "2"})").identity();
  EXPECT_THAT(same, StartsWith("chat-"));
  EXPECT_EQ(chat_template("a\n", R"({"y": "2", "x": "1"})").identity(), same);
  EXPECT_NE(chat_template("b", R"({"x": "1", "y": "2"})").identity(), same);
  EXPECT_NE(chat_template("a", R"({"x": "1"})").identity(), same);
  EXPECT_NE(
      chat_template("a", R"({"x": "1", "y": "2"})", {.variables = {}, .date = {.day = 1}, .limits = {}}).identity(),
      same);
  ChatTemplate tools = chat_template("a", R"({"x": "1", "y": "2"})");
  tools.set_tool_template(jinja::Template("t", "b"));
  EXPECT_NE(tools.identity(), same);
}

}  // namespace
}  // namespace megalith
