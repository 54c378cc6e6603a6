// Path from a compute stream to a group's communication stream and back:
//   lane.begin(compute);  // what follows on the lane runs after what is on the compute stream
//   launch(lane.stream, AllGather{.group = lane.group, ...});
//   lane.end();
//   ...                   // runs concurrently
//   lane.wait(compute);   // what follows on the compute stream sees the result
#pragma once

#include <string>

#include "core/device/event.h"
#include "core/device/stream.h"
#include "parallel/comm/communicator.h"

namespace megalith {

struct CommLane {
  // `group` serves only `stream`, except for other lanes on it.
  CommLane(Communicator& of, Stream& on, const std::string& what)
      : group(of), stream(on), ready(what + " ready"), done(what + " done") {}

  // Encloses one collective.
  template <class Op>
  void start(Stream& compute, const Op& op) {
    begin(compute);
    launch(stream, op);
    end();
  }

  void begin(Stream& compute) {
    compute.record(ready);
    stream.wait(ready);
  }
  void end() { stream.record(done); }
  void wait(Stream& compute) { compute.wait(done); }

  Communicator& group;
  Stream& stream;
  Event ready;  // recorded by each begin(); the wait refers to this record
  Event done;   // recorded by each end()
};

}  // namespace megalith
