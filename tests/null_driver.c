// A driver that does nothing, as a library with the driver's names: what a call costs on our side of it is what is left.
#include "fake_driver.c"

#define X(name, arguments) __attribute__((visibility("default"))) int name arguments __attribute__((alias("fake_" #name)));
DW__DRIVER_REQUIRED(X)
DW__DRIVER_OPTIONAL(X)
#undef X

__attribute__((constructor)) static void begin(void) { fake_driver_reset(); }
