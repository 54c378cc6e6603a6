// Independent work on several threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <functional>
#include <future>
#include <system_error>
#include <vector>

namespace megalith {

// Runs work(i) for each i below `count`, `together` at a time, one of them on this thread.
// Returns after all have ended, or throws the exception of the lowest i that failed.
inline void side_by_side(std::size_t count, std::size_t together, const std::function<void(std::size_t i)>& work) {
  std::vector<std::packaged_task<void()>> tasks;
  for (std::size_t i = 0; i < count; ++i) tasks.emplace_back([&work, i] { work(i); });
  std::atomic<std::size_t> next = 0;
  const auto take = [&] {
    for (std::size_t i = next++; i < count; i = next++) tasks[i]();
  };
  std::vector<std::future<void>> threads;
  try {
    while (threads.size() + 1 < std::min(together, count)) threads.push_back(std::async(std::launch::async, take));
  } catch (const std::system_error&) {  // the system provides no more threads
  }
  take();
  threads.clear();  // waits for the threads
  for (auto& task : tasks) task.get_future().get();
}

}  // namespace megalith
