// Stands in for the compiler package's header of this name, which only checks the host compiler.
#pragma once
#include <features.h>
