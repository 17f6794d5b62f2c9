// Made by draftwood from templates/small.cu.lua: checked=1 n=3 word=int
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


// Holes: 3, int, ${n}, 1, }, 3
#line 12 "templates/small.cu.lua"
int v0 = 0 + INNER;
#line 12 "templates/small.cu.lua"
int v1 = 1 + INNER;
#line 12 "templates/small.cu.lua"
int v2 = 2 + INNER;
#line 15 "templates/small.cu.lua"
#define CHECK(x) \
  x(v0) \
  x(v1) \
  x(v2) \
  x(0)
#line 23 "templates/small.cu.lua"
int sum = v0 + v1 + v2;
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
