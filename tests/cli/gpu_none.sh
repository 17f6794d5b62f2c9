# Without a driver: every command that needs a GPU says so and exits 2; what needs none goes on.
export DRAFTWOOD_DRIVER=/nowhere/libcuda.so
for line in "bench" "bench kimi-k2.6-tp4 --json" "verify --suite --device gpu" "verify --suite --device gpu --quick"; do
  run $line 2>&1 | sed 's/libcuda.so:.*/libcuda.so: .../'
done
run verify --suite
run verify --suite kimi-k2.6-tp8 --device gpu
run bench kimi-k2.6-tp8 another
run bench --sweep --variants family=reference
run bench --reps 3
