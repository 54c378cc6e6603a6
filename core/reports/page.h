// An HTML page of tables and charts: page.html, which CMake embeds, and the data that its script draws. One file, no
// network.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "core/base/text/table.h"

namespace megalith {

// `data` as page.html describes it.
std::string page_of(const nlohmann::ordered_json& data);
// A block of the page.
nlohmann::ordered_json block_of(const Table& table);

// Writes to a second file and renames it. Fails with kFileIo, naming the flag that the path is of.
void write_page(const std::string& path, const std::string& page, std::string_view flag = "--output");

}  // namespace megalith
