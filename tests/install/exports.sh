#!/usr/bin/env bash
# exports.sh LIBRARY HEADER...: the shared library exports what the headers declare, with our version, and nothing else.
set -euo pipefail
library=$1
shift
diff <(sed -nE 's/^DW_API .*\b(dw_[a-z_0-9]+)\(.*/\1@@DRAFTWOOD_0/p' "$@" | sort) \
  <(nm -D --defined-only --with-symbol-versions "$library" | awk '$2 != "A" {print $3}' | sort)
