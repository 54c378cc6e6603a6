#include "tests/unit/parallel/disk_model.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <stdexcept>
#include <utility>

namespace megalith {

namespace {

namespace fs = std::filesystem;

std::string parent_of(const std::string& path) { return fs::path(path).parent_path().string(); }
std::string name_of(const std::string& path) { return fs::path(path).filename().string(); }

bool changes_names(const std::string& name) { return name != "write" && name != "sync"; }

}  // namespace

DiskModel::DiskModel(std::string root) : root_(std::move(root)) {
  add_tree(root_);
  start_ = now_;
}

int DiskModel::add_tree(const std::string& path) {
  const int id = next_++;
  now_[id].is_folder = fs::is_directory(path);
  if (!now_[id].is_folder) {
    std::ifstream in(path, std::ios::binary);
    now_[id].data.assign(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
    return id;
  }
  for (const auto& entry : fs::directory_iterator(path)) {
    const int child = add_tree(entry.path().string());
    now_[id].names[entry.path().filename().string()] = child;
  }
  return id;
}

int DiskModel::node_at(const std::string& path) const {
  if (path == root_) return 0;
  const int folder = node_at(parent_of(path));
  if (folder < 0) return -1;
  const auto& names = now_.at(folder).names;
  const auto found = names.find(name_of(path));
  return found == names.end() ? -1 : found->second;
}

FileObserver DiskModel::observer() {
  return [this](const FileOperation& seen) {
    const std::lock_guard lock(mutex_);
    record(seen);
  };
}

void DiskModel::record(const FileOperation& seen) {
  static const std::set<std::string_view> kKept = {"create", "write", "mkdir", "rename", "exchange", "remove", "sync"};
  const std::string path(seen.path);
  if (!kKept.contains(seen.name) || (path != root_ && !path.starts_with(root_ + "/"))) return;
  Operation operation = {.name = std::string(seen.name), .path = path, .target = std::string(seen.target)};
  operation.node = node_at(path);
  operation.other_node = operation.target.empty() ? -1 : node_at(operation.target);
  operation.folder = path == root_ ? -1 : node_at(parent_of(path));
  if (operation.name == "write") {
    operation.data.assign(reinterpret_cast<const char*>(seen.data.data()), seen.data.size());
    operation.offset = now_.at(operation.node).data.size();
  } else if (operation.name == "create" || operation.name == "mkdir") {
    if (operation.node >= 0) return;  // the name exists: the call fails
    operation.node = next_++;
  } else if (operation.node < 0) {
    throw std::logic_error("the disk model does not know " + path);
  }
  apply(operation, now_);
  log_.push_back(std::move(operation));
}

void DiskModel::apply(const Operation& operation, Nodes& nodes) {
  if (operation.name == "sync") return;
  if (operation.name == "write") {
    std::string& data = nodes[operation.node].data;
    data.resize(std::max<std::size_t>(data.size(), operation.offset + operation.data.size()));
    data.replace(operation.offset, operation.data.size(), operation.data);
    return;
  }
  auto& names = nodes[operation.folder].names;
  nodes[operation.folder].is_folder = true;
  const std::string name = name_of(operation.path);
  if (operation.name == "mkdir") nodes[operation.node].is_folder = true;
  if (operation.name == "create" || operation.name == "mkdir") names[name] = operation.node;
  if (operation.name == "remove") names.erase(name);
  if (operation.name == "rename") {
    names.erase(name);
    names[name_of(operation.target)] = operation.node;
  }
  if (operation.name == "exchange") {
    names[name] = operation.other_node;
    names[name_of(operation.target)] = operation.node;
  }
  nodes[operation.node];  // exists, even if its creation was lost
}

std::vector<std::size_t> DiskModel::unsynced(std::size_t count) const {
  std::vector<std::size_t> pending;
  for (std::size_t i = 0; i < count; ++i) {
    if (log_[i].name != "sync") {
      pending.push_back(i);
      continue;
    }
    const int node = log_[i].node;
    std::erase_if(pending, [&](std::size_t p) {
      return changes_names(log_[p].name) ? log_[p].folder == node : log_[p].node == node;
    });
  }
  return pending;
}

DiskModel::Nodes DiskModel::nodes_after(std::size_t count, const std::vector<bool>& kept) const {
  const std::vector<std::size_t> pending = unsynced(count);
  std::set<std::size_t> lost;
  for (std::size_t i = 0; i < pending.size(); ++i) {
    if (!kept.at(i)) lost.insert(pending[i]);
  }
  Nodes nodes = start_;
  for (std::size_t i = 0; i < count; ++i) {
    // The type of a folder does not depend on whether its name reached the disk.
    if (log_[i].name == "mkdir") nodes[log_[i].node].is_folder = true;
    if (!lost.contains(i)) apply(log_[i], nodes);
  }
  return nodes;
}

void DiskModel::replay(std::size_t count, const std::vector<bool>& kept, const std::string& target) const {
  build(nodes_after(count, kept), 0, target);
}

std::string DiskModel::content(std::size_t count, const std::vector<bool>& kept) const {
  std::string text;
  describe(nodes_after(count, kept), 0, text);
  return text;
}

void DiskModel::describe(const Nodes& nodes, int node, std::string& text) {
  for (const auto& [name, child] : nodes.at(node).names) {
    const Node& what = nodes.at(child);
    text.append(name).append(what.is_folder ? "{" : "=");
    if (what.is_folder) {
      describe(nodes, child, text);
    } else {
      text.append(std::to_string(what.data.size())).append(":").append(what.data);
    }
    text.append("}");
  }
}

void DiskModel::build(const Nodes& nodes, int node, const std::string& target) {
  for (const auto& [name, child] : nodes.at(node).names) {
    const std::string path = target + "/" + name;
    const Node& what = nodes.at(child);
    if (what.is_folder) {
      fs::create_directory(path);
      build(nodes, child, path);
    } else {
      std::ofstream(path, std::ios::binary) << what.data;
    }
  }
}

}  // namespace megalith
