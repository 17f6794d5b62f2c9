// Includes another.
#pragma once
#include "inner.h"
inline int outer() { return INNER; }
