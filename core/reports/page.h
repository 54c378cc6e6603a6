// HTML page of tables and charts: page.html, which CMake embeds, and the data that its script draws. The page is one
// file and uses no network.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "core/base/text/table.h"

namespace megalith {

// Page with `data`, in the format that page.html describes.
std::string page_of(const nlohmann::ordered_json& data);
// Block of the page that shows a table.
nlohmann::ordered_json block_of(const Table& table);

// Writes a second file and renames it. Fails with kFileIo and reports `flag`, the flag of the path.
void write_page(const std::string& path, const std::string& page, std::string_view flag = "--output");

}  // namespace megalith
