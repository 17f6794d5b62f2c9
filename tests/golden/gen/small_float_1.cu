// Made by draftwood from templates/small.cu.lua: checked=0 n=1 word=float
#line 1 "templates/small.cu.lua"
// A kernel that is none: what the language can do, once.
#line 1 "templates/outer.cuh"
// Includes another.

#line 1 "templates/inner.h"
#ifndef INNER_H
#define INNER_H
#line 1 "templates/innermost.h"

enum { INNERMOST = 1 };
#line 4 "templates/inner.h"
enum { INNER = INNERMOST };
#ifndef __CUDACC__
#include "draftwood_host.h"
#endif
#endif
#line 4 "templates/outer.cuh"
inline int outer() { return INNER; }
#line 8 "templates/small.cu.lua"


// Holes: 1, float, ${n}, 0, }, 3
#line 12 "templates/small.cu.lua"
float v0 = 0 + INNER;
#line 21 "templates/small.cu.lua"
// not checked
#line 23 "templates/small.cu.lua"
int sum = v0;
#line 26 "templates/small.cu.lua"
constexpr int SIZE_KV = 8;
#line 26 "templates/small.cu.lua"
constexpr int SIZE_OUT = 4;
#line 26 "templates/small.cu.lua"
constexpr int SIZE_Q = 16;
#line 28 "templates/small.cu.lua"
constexpr float third = 0.333333343f;
int two_a;
#line 29 "templates/small.cu.lua"
int two_b;
int last;
