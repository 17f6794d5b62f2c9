#include "outside.c"
