// Possible contents of a disk after a power loss. An observer records a log of operations. Each write or name change
// that no sync has covered may have reached the disk or not, in any combination.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "core/base/files/file.h"

namespace megalith {

class DiskModel {
 public:
  // `root`: an existing folder, assumed durable. The observer records operations below it.
  explicit DiskModel(std::string root);
  FileObserver observer();

  std::size_t size() const { return log_.size(); }  // operations that change something, and syncs
  const std::string& name(std::size_t operation) const { return log_[operation].name; }
  const std::string& path(std::size_t operation) const { return log_[operation].path; }
  const std::string& target(std::size_t operation) const { return log_[operation].target; }

  // Operations that may be lost, among the first `count`.
  std::vector<std::size_t> unsynced(std::size_t count) const;

  // Builds in the empty folder `target` the result of the first `count` operations. Operations of unsynced(count)
  // remain if `kept` is true, and are lost otherwise. Lost bytes ahead of kept ones are zeros.
  void replay(std::size_t count, const std::vector<bool>& kept, const std::string& target) const;
  // The same as one text: all names and bytes. Many combinations give the same text.
  std::string content(std::size_t count, const std::vector<bool>& kept) const;

 private:
  struct Operation {
    std::string name;  // create, write, mkdir, rename, exchange, remove, sync
    std::string path;
    std::string target;
    std::string data;
    std::uint64_t offset = 0;  // for a write
    int node = 0;              // file or folder at `path`
    int other_node = 0;        // node of `target`, for an exchange
    int folder = 0;            // folder of the changed names
  };
  struct Node {
    bool is_folder = false;
    std::string data;
    std::map<std::string, int> names;  // in a folder
  };
  using Nodes = std::map<int, Node>;

  int node_at(const std::string& path) const;  // at the end of the log; -1: none
  int add_tree(const std::string& path);
  void record(const FileOperation& seen);
  static void apply(const Operation& operation, Nodes& nodes);
  Nodes nodes_after(std::size_t count, const std::vector<bool>& kept) const;
  static void build(const Nodes& nodes, int node, const std::string& target);
  static void describe(const Nodes& nodes, int node, std::string& text);

  std::string root_;
  Nodes start_, now_;
  int next_ = 0;
  std::mutex mutex_;  // ranks as threads write side by side
  std::vector<Operation> log_;
};

}  // namespace megalith
