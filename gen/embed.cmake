# Writes OUT, one C file that holds gen/*.lua and the files of TEMPLATES (*.cuh, *.h, *.cu.lua) as byte arrays, sorted by name:
#   cmake -DOUT=dw_embedded.c -DTEMPLATES=templates -P gen/embed.cmake
# No path, time or host name gets in, so that the same files give the same bytes anywhere.
cmake_minimum_required(VERSION 3.20)
foreach(needed OUT TEMPLATES)
  if(NOT DEFINED ${needed})
    message(FATAL_ERROR "embed.cmake: -D${needed}= is missing")
  endif()
endforeach()

file(GLOB lua RELATIVE ${CMAKE_CURRENT_LIST_DIR} ${CMAKE_CURRENT_LIST_DIR}/*.lua)
get_filename_component(TEMPLATES ${TEMPLATES} ABSOLUTE)
file(GLOB templates RELATIVE ${TEMPLATES} ${TEMPLATES}/*.cuh ${TEMPLATES}/*.h ${TEMPLATES}/*.cu.lua)
list(SORT lua COMPARE STRING)
list(SORT templates COMPARE STRING)

set(arrays "")
set(table "")
set(count 0)
# A closing 0 that the size does not count: text can be used as a C string, and an empty file is still an array.
macro(embed name path)
  file(READ ${path} bytes HEX)
  file(SIZE ${path} size)
  string(REGEX REPLACE "(................................................)" "\\1\n" bytes "${bytes}")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
  string(APPEND arrays "// ${name}\nstatic const unsigned char file_${count}[] = {\n${bytes}0};\n\n")
  string(APPEND table "  {\"${name}\", file_${count}, ${size}},\n")
  math(EXPR count "${count} + 1")
endmacro()
foreach(file IN LISTS lua)
  embed(gen/${file} ${CMAKE_CURRENT_LIST_DIR}/${file})
endforeach()
foreach(file IN LISTS templates)
  embed(templates/${file} ${TEMPLATES}/${file})
endforeach()

file(WRITE ${OUT} "// Made by gen/embed.cmake from gen/*.lua and templates/.
#include <stddef.h>

struct dw__embedded {
  const char *name;
  const unsigned char *data;
  size_t size;
};
extern const struct dw__embedded dw__embedded_files[];
extern const size_t dw__embedded_count;

${arrays}const struct dw__embedded dw__embedded_files[] = {
${table}};
const size_t dw__embedded_count = ${count};
")
