#!/usr/bin/env bash
# exports.sh LIBRARY HEADER: the shared library exports what the header declares, with our version, and nothing else.
set -euo pipefail
diff <(sed -nE 's/^DW_API .*\b(dw_[a-z_0-9]+)\(.*/\1@@DRAFTWOOD_0/p' "$2" | sort) \
  <(nm -D --defined-only --with-symbol-versions "$1" | awk '$2 != "A" {print $3}' | sort)
