// A program outside the project: only what is installed.
#include <draftwood.h>
#include <stdio.h>
#include <string.h>

int main(void) {
  dw_error error = {0};
  dw_shape shape;
  if (dw_shape_parse("kimi-k2.6-tp8,t=9", &shape, &error) != DW_OK) {
    fprintf(stderr, "%s\n", error.message);
    dw_error_clear(&error);
    return 1;
  }
  char text[DW_TEXT_MAX];
  dw_shape_print(&shape, text, sizeof text);
  printf("draftwood %s: %s\n", dw_version(), text);
  return strcmp(dw_version(), DW_VERSION) != 0;
}
