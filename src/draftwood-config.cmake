# The installed package: the library, and draftwood_embed_bundle.
#
#   draftwood_embed_bundle(TARGET FILE [NAME name])
#
# puts the bundle FILE (draftwood bundle build) into the binary of TARGET, and a header NAME.h before its sources that declares
#
#   extern const unsigned char NAME[];
#   extern const size_t NAME_size;
#
# for dw_bundle_add_memory. NAME is draftwood_bundle if it is not given. FILE may be an output of the build itself.
include("${CMAKE_CURRENT_LIST_DIR}/draftwood-targets.cmake")

function(draftwood_embed_bundle target file)
  cmake_parse_arguments(ARG "" "NAME" "" ${ARGN})
  set(name draftwood_bundle)
  if(ARG_NAME)
    set(name ${ARG_NAME})
  endif()
  if(NOT name MATCHES "^[A-Za-z_][A-Za-z0-9_]*$" OR ARG_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "draftwood_embed_bundle: found NAME ${name} ${ARG_UNPARSED_ARGUMENTS}, allowed one C identifier")
  endif()
  cmake_path(ABSOLUTE_PATH file)
  get_property(languages GLOBAL PROPERTY ENABLED_LANGUAGES)
  set(extension c)
  if(NOT C IN_LIST languages)
    set(extension cc)
  endif()
  set(folder ${CMAKE_CURRENT_BINARY_DIR}/draftwood_embed/${target})
  file(CONFIGURE OUTPUT ${folder}/${name}.h @ONLY CONTENT [[
// A bundle of draftwood in this binary.
#include <stddef.h>
#ifdef __cplusplus
extern "C" {
#endif
extern const unsigned char @name@[];
extern const size_t @name@_size;
#ifdef __cplusplus
}
#endif
]])
  # The assembler copies the file as it is: no list of numbers to compile, whatever its size.
  file(CONFIGURE OUTPUT ${folder}/${name}.${extension} @ONLY CONTENT [[
__asm__(".pushsection .rodata\n"
        ".balign 64\n"
        ".globl @name@\n.hidden @name@\n.type @name@, %object\n"
        "@name@:\n.incbin \"@file@\"\n"
        ".L@name@_end:\n.size @name@, .L@name@_end - @name@\n"
        ".balign 8\n"
        ".globl @name@_size\n.hidden @name@_size\n.type @name@_size, %object\n"
        "@name@_size:\n.quad .L@name@_end - @name@\n.size @name@_size, 8\n"
        ".popsection\n");
]])
  set_source_files_properties(${folder}/${name}.${extension} PROPERTIES OBJECT_DEPENDS ${file})
  target_sources(${target} PRIVATE ${folder}/${name}.${extension})
  target_include_directories(${target} PRIVATE ${folder})
endfunction()
