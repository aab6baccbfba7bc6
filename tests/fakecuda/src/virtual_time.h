// Virtual time: how long work takes, as a test says, and when it ran by that. The order of execution is the mode's all the
// same, and the times do not depend on it: each operation starts when its stream, what it waits for and the host allow it.
// Streams do not slow each other down.
#pragma once

#include "state.h"

namespace fakecuda {

// Work takes this from now on, in virtual time.
void start_time(Lock&, const Costs& costs);
void stop_time(Lock&);

// A call of the API takes its time.
void pass_call(Lock&);
// When an operation ran that has come to the head of its stream, on its marker.
void note_times(Lock&, Stream&, const Op&);
// What a query of a done marker answers. A host that asks for the same marker twice in a row waits for it, so its time goes on.
bool seen_by_host(Lock&, const MarkerPtr&);
// The host has waited for a marker.
void advance_host(Lock&, const MarkerPtr&);

// Whether a kernel does nothing but last as long as its first argument says.
bool is_spin(const std::string& kernel);
double kernel_cost(const std::string& kernel, const std::vector<int>& sizes, void** args);
double copy_cost(size_t bytes);

}  // namespace fakecuda
