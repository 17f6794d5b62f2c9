# Writes OUT, a C file that holds the plans of FOLDER (*.jsonl), sorted by name: cmake -DOUT=plans.c -DFOLDER=src/plans -P src/plans/embed.cmake
cmake_minimum_required(VERSION 3.20)
file(GLOB plans RELATIVE ${FOLDER} ${FOLDER}/*.jsonl)
list(SORT plans COMPARE STRING)
set(arrays "")
set(table "")
set(count 0)
foreach(plan IN LISTS plans)
  file(READ ${FOLDER}/${plan} bytes HEX)
  file(SIZE ${FOLDER}/${plan} size)
  string(REGEX REPLACE "(................................................)" "\\1\n" bytes "${bytes}")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
  string(APPEND arrays "static const unsigned char plan_${count}[] = {\n${bytes}0};\n\n")
  string(APPEND table "  {\"${plan}\", (const char *)plan_${count}, ${size}},\n")
  math(EXPR count "${count} + 1")
endforeach()
file(WRITE ${OUT} "// Made by src/plans/embed.cmake.
#include <stddef.h>

struct dw__plan_text {
  const char *name, *text;
  size_t size;
};
extern const struct dw__plan_text dw__plans_embedded[];
extern const size_t dw__plans_embedded_count;

${arrays}const struct dw__plan_text dw__plans_embedded[] = {
${table}  {NULL, NULL, 0}};
const size_t dw__plans_embedded_count = ${count};
")
