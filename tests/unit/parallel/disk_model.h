// What a disk may hold after a power loss. A log of operations is recorded from an observer; writes and changes of
// names that no sync has covered may each have reached the disk or not, in any combination.
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
  // `root`: an existing folder, taken as durable as it is. The observer records what happens below it.
  explicit DiskModel(std::string root);
  FileObserver observer();

  std::size_t size() const { return log_.size(); }  // operations that change something, and syncs
  const std::string& name(std::size_t operation) const { return log_[operation].name; }
  const std::string& path(std::size_t operation) const { return log_[operation].path; }
  const std::string& target(std::size_t operation) const { return log_[operation].target; }

  // Of the first `count` operations, those that may be lost.
  std::vector<std::size_t> unsynced(std::size_t count) const;

  // Builds in the empty folder `target` what the first `count` operations leave when those of unsynced(count) are kept
  // for which `kept` is true, and the others lost. Bytes that are lost before others that are kept are zeros.
  void replay(std::size_t count, const std::vector<bool>& kept, const std::string& target) const;
  // The same as one text: all names and bytes. Many combinations leave the same.
  std::string content(std::size_t count, const std::vector<bool>& kept) const;

 private:
  struct Operation {
    std::string name;  // create, write, mkdir, rename, exchange, remove, sync
    std::string path;
    std::string target;
    std::string data;
    std::uint64_t offset = 0;  // of a write
    int node = 0;              // of the file or folder that `path` named
    int other_node = 0;        // of `target`, for an exchange
    int folder = 0;            // in which names change
  };
  struct Node {
    bool is_folder = false;
    std::string data;
    std::map<std::string, int> names;  // of a folder
  };
  using Nodes = std::map<int, Node>;

  int node_at(const std::string& path) const;  // as of the end of the log; -1 for none
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
