// The race checker. It judges an access when it is *enqueued*: what happens before what follows from the calls that
// the program makes, not from the schedule that happens to run, so a race is seen under any schedule.
#pragma once

#include "state.h"

namespace fakecuda {

// Reports a use of freed memory, an access beyond the end of its block and every race with an earlier access.
// False: the operation must not run, since it would touch memory that is not there.
bool check_access(Lock&, const Touch& touch, int actor, const Clock& clock, const SourcePtr& source);

}  // namespace fakecuda
