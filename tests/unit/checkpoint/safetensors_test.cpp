#include "core/checkpoint/safetensors.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "tests/support/test_folder.h"
#include "tests/support/tier.h"
#include "tests/unit/checkpoint/expect_error.h"

namespace megalith {
namespace {

std::string bytes_of_header(const std::string& header, std::uint64_t length) {
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + header;
}

std::string pattern(std::size_t size, unsigned seed) {
  std::string bytes(size, '\0');
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>((i * 31 + seed * 17) & 0xff);
  return bytes;
}

std::string read_entry(const File& file, const SafetensorsHeader& header, const SafetensorsEntry& entry) {
  std::string bytes;
  read_blocks(file, header.data_start + entry.begin, header.data_start + entry.end,
              [&](std::uint64_t offset, std::span<const std::byte> block) {
                EXPECT_EQ(offset, bytes.size());
                bytes.append(reinterpret_cast<const char*>(block.data()), block.size());
              });
  return bytes;
}

TEST(Safetensors, RoundTripOfAllDtypesShapesAndPieces) {
  const TestFolder folder;
  const Directory root = Directory::open(folder.path());
  const std::vector<SafetensorsWriter::Entry> entries = {{"empty first", DType::kFp32, {0, 5}},
                                                         {"weight", DType::kFp32, {3, 5}},
                                                         {"half", DType::kBf16, {7}},
                                                         {"scalar", DType::kInt64, {}},
                                                         {"ints", DType::kInt32, {2, 1, 2}},
                                                         {"empty", DType::kBf16, {4, 0}},
                                                         {"bytes \"\xc3\xa9\"", DType::kUint8, {13}},
                                                         {"double", DType::kFp64, {2}},
                                                         {"empty last", DType::kUint8, {0}}};
  const std::vector<std::size_t> sizes = {0, 60, 14, 8, 16, 0, 13, 16, 0};
  std::string data;
  for (std::size_t i = 0; i < sizes.size(); ++i) data += pattern(sizes[i], static_cast<unsigned>(i));
  for (const std::size_t piece : {std::size_t{1}, std::size_t{7}, data.size()}) {
    const std::string name = fmt::format("pieces_of_{}", piece);
    File file = root.create_file(name);
    SafetensorsWriter writer(file, entries, {{"format", "pt"}});
    for (std::size_t at = 0; at < data.size(); at += piece) {
      writer.write(std::as_bytes(std::span(data).subspan(at, std::min(piece, data.size() - at))));
    }
    const auto written = writer.finish();
    file.close();
    const std::string raw = read_bytes(folder.path(name));
    EXPECT_EQ(written.file_bytes, raw.size());
    EXPECT_EQ(written.file_bytes, safetensors_file_bytes(entries, {{"format", "pt"}}));
    EXPECT_EQ(written.file_hash, hash_of(raw));

    const File in = root.open_file(name);
    const SafetensorsHeader header = read_safetensors_header(in);
    EXPECT_EQ(header.data_start % 8, 0u);
    EXPECT_EQ(header.metadata.at("format"), "pt");
    ASSERT_EQ(header.entries.size(), entries.size());
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const auto found = std::find_if(header.entries.begin(), header.entries.end(),
                                      [&](const auto& e) { return e.name == entries[i].name; });
      ASSERT_NE(found, header.entries.end()) << entries[i].name;
      EXPECT_EQ(dtype_from_safetensors(found->dtype), entries[i].dtype);
      EXPECT_EQ(found->shape, entries[i].shape);
      EXPECT_EQ(found->begin, written.entry_begin[i]);
      EXPECT_EQ(found->end - found->begin, sizes[i]);
      const std::string bytes = read_entry(in, header, *found);
      EXPECT_EQ(bytes, pattern(sizes[i], static_cast<unsigned>(i)));
      EXPECT_EQ(written.entry_hash[i], hash_of(bytes));
    }
  }
}

TEST(Safetensors, FileWithoutTensorsIsValid) {
  const TestFolder folder;
  const Directory root = Directory::open(folder.path());
  File file = root.create_file("none");
  SafetensorsWriter writer(file, {}, {});
  writer.finish();
  file.close();
  EXPECT_TRUE(read_safetensors_header(root.open_file("none")).entries.empty());
}

TEST(Safetensors, WriterRefusesWrongAmountsAndNames) {
  const TestFolder folder;
  const Directory root = Directory::open(folder.path());
  const std::string data = pattern(9, 0);
  const auto bytes = std::as_bytes(std::span(data));
  File file = root.create_file("a");
  SafetensorsWriter writer(file, {{"x", DType::kUint8, {8}}}, {});
  writer.write(bytes.first(7));
  EXPECT_ERROR(ExitCode::kInternal, "fewer bytes", writer.finish());
  EXPECT_ERROR(ExitCode::kInternal, "more bytes", writer.write(bytes.first(2)));
  File other = root.create_file("b");
  EXPECT_ERROR(ExitCode::kFormat, "each name once, got 'x' twice",
               SafetensorsWriter(other, {{"x", DType::kUint8, {8}}, {"x", DType::kUint8, {8}}}, {}));
  EXPECT_ERROR(ExitCode::kFormat, "allowed are 1 to 1024",
               SafetensorsWriter(other, {{std::string(1025, 'x'), DType::kUint8, {8}}}, {}));
  EXPECT_ERROR(ExitCode::kInternal, "overflows",
               SafetensorsWriter(other, {{"x", DType::kUint8, {4194305, 4194305, 211106198978564}}}, {}));
}

struct Hostile {
  std::string header;
  std::uint64_t data_bytes;
  std::string message;
};

std::string tensor(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return fmt::format("{{\"dtype\":\"{}\",\"shape\":{},\"data_offsets\":{}}}", dtype, shape, offsets);
}

void expect_refusals(const std::vector<Hostile>& cases) {
  for (const Hostile& hostile : cases) {
    SCOPED_TRACE(hostile.header.substr(0, 200));
    EXPECT_ERROR(ExitCode::kFormat, hostile.message,
                 parse_safetensors_header(hostile.header, hostile.data_bytes, "file.safetensors"));
  }
}

TEST(Safetensors, RefusesHostileTextsAndNames) {
  const std::string x4 = tensor("F32", "[1]", "[0,4]");
  expect_refusals({
      {"", 0, "does not start with '{'"},
      {" {}", 0, "does not start with '{'"},
      {"[]", 0, "does not start with '{'"},
      {"\xef\xbb\xbf{}", 0, "does not start with '{'"},
      {std::string("{}\0\0", 4), 0, "expected JSON text, got a NUL byte"},
      {"{\"\xff\":" + x4 + "}", 4, "expected UTF-8 JSON, got something else at byte"},
      {"{\"\xc0\xaf\":" + x4 + "}", 4, "expected UTF-8 JSON, got something else at byte"},
      {"{", 0, "expected UTF-8 JSON, got something else at byte"},
      {"{}}", 0, "expected UTF-8 JSON, got something else at byte"},
      {"{} x", 0, "expected UTF-8 JSON, got something else at byte"},
      {"{/**/}", 0, "expected UTF-8 JSON, got something else at byte"},
      {"{\"x\":" + x4 + ",}", 4, "expected UTF-8 JSON, got something else at byte"},
      // Names.
      {"{\"x\":" + x4 + ",\"x\":" + x4 + "}", 4, "expected each name once, got 'x' twice"},
      {"{\"x\":" + x4 + ",\"\\u0078\":" + x4 + "}", 4, "expected each name once, got 'x' twice"},
      {"{\"\":" + x4 + "}", 4, "a tensor's name has 0 bytes"},
      {"{\"" + std::string(1025, 'n') + "\":" + x4 + "}", 4, "a tensor's name has 1025 bytes"},
  });
  const SafetensorsHeader good = parse_safetensors_header("{\"x\":" + x4 + "}  \n", 4, "f");
  EXPECT_EQ(good.entries.size(), 1u);
}

TEST(Safetensors, RefusesHostileStructure) {
  expect_refusals({
      {"{\"x\":4}", 4, "tensor 'x': expected an object, got 4"},
      {"{\"x\":[]}", 4, "tensor 'x': expected an object, got an array"},
      {"{\"x\":null}", 4, "tensor 'x': expected an object, got a null"},
      {"{\"x\":\"y\"}", 4, "tensor 'x': expected an object, got the text 'y'"},
      {"{\"x\":true}", 4, "tensor 'x': expected an object, got a boolean"},
      {"{\"x\":{}}", 0, "tensor 'x': expected key dtype, got none"},
      {"{\"x\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "tensor 'x': expected key data_offsets, got none"},
      {"{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"more\":1}}", 4,
       "tensor 'x': expected known keys only, got 'more'"},
      {"{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
       "'x': expected each name once, got 'shape' twice"},
      {"{\"x\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
       "'x': expected each name once, got 'dtype' twice"},
      {"{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"data_offsets\":[0,4]}}", 4,
       "'x': expected each name once, got 'data_offsets' twice"},
      {"{\"x\":{\"dtype\":[],\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
       "tensor 'x': dtype: expected a text, got an array"},
      {"{\"x\":{\"dtype\":\"F32\",\"shape\":\"1\",\"data_offsets\":[0,4]}}", 4,
       "tensor 'x': shape: expected an array, got the text '1'"},
      {"{\"x\":{\"dtype\":\"F32\",\"shape\":{},\"data_offsets\":[0,4]}}", 4,
       "tensor 'x': shape: expected an array, got an object"},
      {"{\"x\":{\"dtype\":\"F32\",\"shape\":[[1]],\"data_offsets\":[0,4]}}", 4,
       "tensor 'x': shape: expected an integer from 0 to 9223372036854775807, got an array"},
      {"{\"x\":" + std::string(100'000, '['), 4, "'x': expected at most 32 levels, got more"},
      // Metadata.
      {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "expected each name once, got '__metadata__' twice"},
      {"{\"__metadata__\":{\"a\":\"b\",\"a\":\"b\"}}", 0, "'__metadata__': expected each name once, got 'a' twice"},
      {"{\"__metadata__\":{\"a\":1}}", 0, "__metadata__: 'a': expected a text, got 1"},
      {"{\"__metadata__\":{\"a\":{}}}", 0, "__metadata__: 'a': expected a text, got an object"},
      {"{\"__metadata__\":\"a\"}", 0, "__metadata__: expected an object of texts, got the text 'a'"},
  });
}

TEST(Safetensors, RefusesHostileDTypesAndShapes) {
  expect_refusals({
      {"{\"x\":" + tensor("F31", "[1]", "[0,4]") + "}", 4, "expected a dtype of the format, got 'F31'"},
      {"{\"x\":" + tensor("f32", "[1]", "[0,4]") + "}", 4, "expected a dtype of the format, got 'f32'"},
      {"{\"x\":" + tensor("F4", "[3]", "[0,1]") + "}", 1, "expected whole bytes, got 12 bits"},
      // Shapes.
      {"{\"x\":" + tensor("U8", "[4194305,4194305,211106198978564]", "[0,4]") + "}", 4,
       "shape: expected a size within 64 bits, got more"},
      {"{\"x\":" + tensor("F32", "[4611686018427387905]", "[0,4]") + "}", 4,
       "shape: expected a size within 64 bits, got more"},
      {"{\"x\":" + tensor("F32", "[9223372036854775808]", "[0,4]") + "}", 4, "got 9223372036854775808"},
      {"{\"x\":" + tensor("F32", "[18446744073709551617]", "[0,4]") + "}", 4, "expected an integer from 0"},
      {"{\"x\":" + tensor("F32", "[-1]", "[0,4]") + "}", 4,
       "expected an integer from 0 to 9223372036854775807, got -1"},
      {"{\"x\":" + tensor("F32", "[1.0]", "[0,4]") + "}", 4, "to 9223372036854775807, got 1.0"},
      {"{\"x\":" + tensor("F32", "[1e0]", "[0,4]") + "}", 4, "to 9223372036854775807, got 1.0"},
      {"{\"x\":" + tensor("F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]") + "}", 4, "shape: expected at most 8 dims, got more"},
      {"{\"x\":" + tensor("F32", "[2]", "[0,4]") + "}", 4, "has 8 bytes by its shape but offsets 0 to 4"},
  });
}

TEST(Safetensors, RefusesHostileOffsets) {
  const std::string x4 = tensor("F32", "[1]", "[0,4]");
  expect_refusals({
      {"{\"x\":" + tensor("F32", "[1]", "[0]") + "}", 4, "expected 2 data_offsets, got 1"},
      {"{\"x\":" + tensor("F32", "[1]", "[0,4,8]") + "}", 4, "expected 2 data_offsets, got 3"},
      {"{\"x\":" + tensor("F32", "[1]", "[4,0]") + "}", 4, "offsets 4 to 0"},
      {"{\"x\":" + tensor("F32", "[1]", "[4,8]") + "}", 8, "starts at byte 4, expected 0"},
      {"{\"x\":" + x4 + ",\"y\":" + tensor("F32", "[1]", "[5,9]") + "}", 9, "'y' starts at byte 5, expected 4"},
      {"{\"x\":" + x4 + ",\"y\":" + tensor("F32", "[1]", "[2,6]") + "}", 6, "'y' starts at byte 2, expected 4"},
      {"{\"x\":" + x4 + ",\"y\":" + x4 + "}", 8, "starts at byte 0, expected 4"},
      {"{\"x\":" + x4 + "}", 5, "take 4 bytes but 5 follow"},
      {"{\"x\":" + x4 + "}", 3, "take 4 bytes but 3 follow"},
      {"{}", 1, "take 0 bytes but 1 follow"},
      {"{\"x\":" + tensor("U8", "[0]", "[18446744073709551615,18446744073709551615]") + "}", 0,
       "data_offsets: expected an"},
  });
}

TEST(Safetensors, AcceptsAnyOrderInTheHeader) {
  const SafetensorsHeader header =
      parse_safetensors_header("{\"b\":" + tensor("F32", "[1]", "[4,8]") + ",\"a\":" + tensor("I32", "[1]", "[0,4]") +
                                   ",\"e\":" + tensor("U8", "[0]", "[4,4]") + "}",
                               8, "f");
  ASSERT_EQ(header.entries.size(), 3u);
  EXPECT_EQ(header.entries[0].name, "a");
  EXPECT_EQ(header.entries[1].name, "e");
  EXPECT_EQ(header.entries[2].name, "b");
}

TEST(Safetensors, ADtypeOfTheFormatThatIsNoneOfOursIsRead) {
  const SafetensorsHeader header = parse_safetensors_header("{\"x\":" + tensor("F16", "[2]", "[0,4]") + "}", 4, "f");
  EXPECT_EQ(header.entries.at(0).dtype, "F16");
  EXPECT_FALSE(dtype_from_safetensors("F16"));
}

TEST(Safetensors, RefusesMoreThanAMillionTensors) {
  if (test::one_of(2) > 1) GTEST_SKIP() << "takes 40 s under AddressSanitizer: in the full tier";
  std::string header = "{";
  for (int i = 0; i <= 1'000'000; ++i) {
    header += fmt::format("{}\"{}\":{{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", i == 0 ? "" : ",", i);
  }
  EXPECT_LT(header.size(), kMaxSafetensorsHeader);
  EXPECT_ERROR(ExitCode::kFormat, "more than 1000000 tensors", parse_safetensors_header(header + "}", 0, "f"));
}

TEST(Safetensors, RefusesWrongHeaderLengths) {
  const TestFolder folder;
  const Directory root = Directory::open(folder.path());
  const auto read = [&](const std::string& bytes) {
    write_bytes(folder.path("f"), bytes);
    read_safetensors_header(root.open_file("f"));
  };
  EXPECT_ERROR(ExitCode::kFormat, "less than the length field", read(""));
  EXPECT_ERROR(ExitCode::kFormat, "less than the length field", read("1234567"));
  EXPECT_ERROR(ExitCode::kFormat, "does not start with '{'", read(bytes_of_header("", 0)));
  EXPECT_ERROR(ExitCode::kFormat, "a header of 3 bytes is announced", read(bytes_of_header("{}", 3)));
  EXPECT_ERROR(ExitCode::kFormat, "is announced", read(bytes_of_header("{}", ~std::uint64_t{0})));
  EXPECT_ERROR(ExitCode::kFormat, "is announced", read(bytes_of_header("{}", std::uint64_t{1} << 63)));
  // A sparse file that is long enough for the header it announces, so that only the limit can reject it.
  write_bytes(folder.path("f"), bytes_of_header("{}", kMaxSafetensorsHeader + 1));
  std::filesystem::resize_file(folder.path("f"), kMaxSafetensorsHeader + 100);
  EXPECT_ERROR(ExitCode::kFormat, "allowed are 100000000", read_safetensors_header(root.open_file("f")));
}

TEST(Safetensors, HostileNamesCannotSteerATerminal) {
  try {
    parse_safetensors_header("{\"\\u001b[2J" + std::string(500, 'n') + "\":{}}", 0, "f");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("'\\x1b[2Jnnn"), std::string::npos) << error.what();
    EXPECT_LT(std::string(error.what()).size(), 300u);
  }
}

// Nothing but a result or an Error may come out of any damaged header.
TEST(Safetensors, SurvivesEveryBitFlipAndTruncationOfAHeader) {
  const std::string good = "{\"__metadata__\":{\"a\":\"b\"},\"x\":" + tensor("F32", "[1,3]", "[0,12]") +
                           ",\"y\":" + tensor("BF16", "[2]", "[12,16]") + "}";
  int refused = 0, accepted = 0;
  const auto parse = [&](const std::string& text) {
    try {
      parse_safetensors_header(text, 16, "f");
      ++accepted;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kFormat) << error.what();
      ++refused;
    }
  };
  for (std::size_t i = 0; i < good.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ (1 << bit));
      parse(bad);
    }
    parse(good.substr(0, i));
  }
  EXPECT_GT(refused, static_cast<int>(good.size()) * 7);
  EXPECT_GT(accepted, 0);  // a letter of a name may change
}

}  // namespace
}  // namespace megalith
