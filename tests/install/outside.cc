// The header serves C++ too.
#include <draftwood.h>

int main() {
  dw_error error{};
  dw_shape shape{};
  return dw_shape_parse("qwen-none", &shape, &error) == DW_OK || error.message[0] == 0;
}
