#include "tests/style/word_ratchet.h"

#include <gtest/gtest.h>

#include "tests/style/prose.h"
#include "tests/support/matchers.h"

namespace megalith::style {
namespace {

std::vector<std::string> found(const std::string& path, const std::string& text) {
  std::vector<std::string> out;
  for (const WordPlace& place : find_words(path, text)) out.push_back(place.word + " " + std::to_string(place.line));
  return out;
}

TEST(WordRatchet, CountsCommentsAndLiteralsOfSources) {
  EXPECT_THAT(found("a.cpp", "int told = 1;  // runs Behind it\nf(\"all\\nbeside\");\n/* apart\n * anew */\n"),
              ElementsAre("behind 1", "beside 2", "apart 3", "anew 4"));
  EXPECT_THAT(found("a.cu", "// so\n// many, in\n// vain\nf(\"goes \"\n  \"on\");\n"),
              ElementsAre("so_many 1", "in_vain 2", "goes_on 4"));
  EXPECT_THAT(found("a.cpp", "f(\"so\", \"many\");\nf(\"so\");  // many\nf(so, many);  // so - many\n"), IsEmpty());
  EXPECT_THAT(found("a.cpp", "R\"(told)\" x = 1'000;\n"), ElementsAre("told 1"));
}

TEST(WordRatchet, CountsCommentsAndTextsOfScripts) {
  EXPECT_THAT(found("a.sh", "told=$#  # mended\necho \"it wants\" 'wants' ${#told}\n"),
              ElementsAre("mend 1", "wants 2"));
  EXPECT_THAT(found("CMakeLists.txt", "# alike\nset(behind \"told\")\n"), ElementsAre("alike 1", "told 2"));
  EXPECT_THAT(found("a.txt", "behind\n"), IsEmpty());
}

TEST(WordRatchet, ExemptsCodeAndQuotationsOfPages) {
  EXPECT_THAT(found("a.md", "`told` \"wants\n`told`\" ``a ` told`` [shared out](behind.md)\n"),
              ElementsAre("share_out 2"));
  EXPECT_THAT(found("a.md", "a told\n```sh\ntold\n```\ntold\n  ~~~\n```\ntold\n  ~~~\n> told\n<!-- told -->\ntold\n"),
              ElementsAre("told 1", "told 5", "told 12"));
  EXPECT_THAT(found("a.md", "a 5\" pipe, told\n\nand told\"\n"), ElementsAre("told 1", "told 3"));
  EXPECT_THAT(found("a.cpp", "// `told`, \"told\", and told\nf(\"\\\"told\\\" told\");\n"),
              ElementsAre("told 1", "told 2"));
}

TEST(WordRatchet, CountsWholeWordsAlone) {
  EXPECT_THAT(found("a.md", "besides, retold, tolder, told_x, x_told, apartment, shared outer, mending.\n"),
              ElementsAre("mend 1"));
  EXPECT_THAT(found("a.md", "a/behind.h behind/a --told x.told told() told::x a::told behind.h told=1\n"), IsEmpty());
  EXPECT_THAT(found("a.md", "(told) *told* told, told. Told: \"x\" shares\nout of its own\n"),
              ElementsAre("told 1", "told 1", "told 1", "told 1", "told 1", "share_out 1", "of_its_own 2"));
}

TEST(WordRatchet, CountsOfWhereASentenceOpens) {
  EXPECT_THAT(
      found("a.md", "Of a. Of b\nUnit Of c, of d\n\nOf e\n- Of f\n1. Of g\n| Of h | Of i |\n**Of j** `x` Of k\n"),
      ElementsAre("Of 1", "Of 1", "Of 4", "Of 5", "Of 6", "Of 7", "Of 7", "Of 8"));
  EXPECT_THAT(found("a.md", "# Of a\n**Note:** Of b. \"Of c.\"\n"), ElementsAre("Of 1", "Of 2"));
  EXPECT_THAT(
      found("a.h", "// Of a.\nint x;  // Of b\nint y;  // Bytes\n        // Of c\nf(\"Of d\", \"e. \" \"Of f\");\n"),
      ElementsAre("Of 1", "Of 2", "Of 5", "Of 5"));
}

TEST(WordRatchet, MaximaMayOnlyFall) {
  std::map<std::string, std::string> texts = {
      {"core/a.h", "// told\n// told, wants\n"}, {"docs/a.md", "A page.\n"}, {"README.md", "A text.\n"}};
  const WordCounts maxima = lowered_maxima({}, count_words(texts));
  EXPECT_EQ(read_word_table(write_word_table(maxima)), maxima);
  EXPECT_EQ(maxima.at("core").at("told"), 2);
  EXPECT_THAT(check_words(texts, maxima), IsEmpty());
  texts["core/b.h"] = "// told anew\n";
  texts["docs/a.md"] = "A page\nis told.\n";
  texts["moe/a.h"] = "// apart\n";
  EXPECT_THAT(check_words(texts, maxima),
              ElementsAre(HasSubstr("core: \"told\" 3 times in prose, at most 2"), HasSubstr("core/b.h:1: \"anew\""),
                          HasSubstr("docs/a.md:2: \"told\""), HasSubstr("moe/a.h:1: \"apart\"")));
  EXPECT_EQ(lowered_maxima(maxima, count_words(texts)).at("core").at("told"), 2);
  EXPECT_EQ(lowered_maxima({}, count_words(texts)).at("docs").at("told"), 0);
  texts["core/a.h"] = "";
  EXPECT_EQ(lowered_maxima(maxima, count_words(texts)).at("core").at("told"), 1);
  EXPECT_THAT(list_words(texts, "docs"), ElementsAre("docs/a.md:2: told"));
}

}  // namespace
}  // namespace megalith::style
