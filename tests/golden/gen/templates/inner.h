#ifndef INNER_H
#define INNER_H
#include "innermost.h"
enum { INNER = INNERMOST };
#ifndef __CUDACC__
#include "draftwood_host.h"
#endif
#endif
