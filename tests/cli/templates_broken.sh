# label: quick;nvrtc
# What is wrong in a template is told with its file and line: by the generator, then by the compiler; exit 1, and nothing cached.
mkdir templates
export DRAFTWOOD_TEMPLATES=templates
request=(kimi-k2.6-tp8 --variant family=reference)
run gen "${request[@]}"
# A template has to declare what it is handed: one line, whatever the real one needs.
declare=$(grep -E '^@ (param\.|local formats)' "$(dirname "$script")/../../templates/verify.cu.lua" | sed 's/^@//' | tr '\n' ' ')
declare="@$declare"
without_trace() { grep -v -e '^stack traceback' -e $'^\t'; }
printf '%s\n' "$declare" '@ local x = ' '// text' >templates/verify.cu.lua
run build "${request[@]}" 2>&1 | without_trace
printf '%s\n' "$declare" 'extern "C" __global__ void dw_verify(int *p) { *p = ${rows}; }' >templates/verify.cu.lua
run build "${request[@]}" 2>&1 | without_trace
printf '%s\n' "$declare" 'extern "C" __global__ void dw_verify(int *p) { *p = rows; }' >templates/verify.cu.lua
run build "${request[@]}" --widths 1,9
run cache ls
run verify "${request[@]}" 2>&1 | grep -v '^ ' | cut -c -100
