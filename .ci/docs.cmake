# Target `docs`: the API reference, made from the header's own comments.
set(DOXYGEN_OUTPUT_DIRECTORY docs)
set(DOXYGEN_OPTIMIZE_OUTPUT_FOR_C YES)
set(DOXYGEN_EXTRACT_ALL YES)
set(DOXYGEN_MACRO_EXPANSION YES)
set(DOXYGEN_PREDEFINED DW_API=)
set(DOXYGEN_SHOW_INCLUDE_FILES NO)
set(DOXYGEN_QUIET YES)
# The header keeps plain // comments; doxygen reads ///, so a filter adds the third stroke. Its headings are not anyone's comment.
set(DOXYGEN_INPUT_FILTER "sed -E '1s|^// |/// @file\\n/// |; s|^// ----.*||; s|^( *)// |\\1/// |; s|([;,]) +// |\\1 ///< |'")
doxygen_add_docs(docs src/draftwood.h src/draftwood_companions.h COMMENT "API reference: docs/html/index.html")
