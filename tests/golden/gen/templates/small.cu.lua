// A kernel that is none: what the language can do, once.
@ param.int("n", 1, 8)
@ param.string("word", {"int", "float"})
@ param.flag("checked")
@ assert(n ~= 7, "n: 7 is not served")
@ local function name(i) return "v" .. i end
#include "outer.cuh"
#include "inner.h"

// Holes: ${n}, ${word}, $${n}, ${n // 2}, ${"}"}, ${({a = 3}).a}
@ for i = 0, n - 1 do
${word} ${name(i)} = ${i} + INNER;
@ end
@ if checked then
#define CHECK(x) \
@ for i = 0, n - 1 do
  x(${name(i)}) \
@ end
  x(0)
@ else
// not checked
@ end
int sum = ${list(n, "v#", " + ")};
@ local sizes = {q = 16, kv = 8, out = 4}
@ for key, size in sorted_pairs(sizes) do
constexpr int SIZE_${key:upper()} = ${size};
@ end
constexpr float third = ${float(1 / 3)};
${"int two_a;\nint two_b;"}
int last;
