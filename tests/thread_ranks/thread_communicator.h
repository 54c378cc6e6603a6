// Ranks as threads of one process: the form that ThreadSanitizer and tests use. Collectives read the peers' buffers in
// place; ranks meet at one mutex, so this form is about correctness, not about many ranks.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "parallel/comm/communicator.h"

namespace megalith {

struct ThreadWorldState;

class ThreadWorld {
 public:
  // A call that waits longer than `timeout` for a peer aborts the world. With `shares_messages`, groups share memory
  // for messages. A Send's place must then be the address of the Receive's buffer.
  explicit ThreadWorld(int size, std::chrono::milliseconds timeout = std::chrono::minutes(10),
                       bool shares_messages = false);
  ~ThreadWorld();
  ThreadWorld(const ThreadWorld&) = delete;
  ThreadWorld& operator=(const ThreadWorld&) = delete;

  int size() const { return size_; }
  // The world group as seen by `rank`; call it once per rank. It may outlive this object.
  std::unique_ptr<Communicator> communicator(int rank);

  // Runs body on one thread per rank. If a body throws, the world is aborted, so that its peers end too. After all
  // threads ended, the first error is rethrown. A body that has streams declares an AbortOnUnwind after them.
  void run(const std::function<void(Communicator& world)>& body);

 private:
  int size_;
  std::shared_ptr<ThreadWorldState> state_;
};

}  // namespace megalith
