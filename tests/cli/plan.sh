# Plans: shown, carried to another cache, compared; records of another machine; what is refused.
unset DRAFTWOOD_PLAN
data=$(dirname "$script")/../data/fuzz/tune
cp "$data/plan" plan.jsonl && cp "$data/record" records.jsonl
run plan show plan.jsonl
run plan digest plan.jsonl
run plan digest plan.jsonl plan.jsonl
run plan show plan.jsonl --json
run plan export copy.jsonl plan.jsonl
cmp plan.jsonl copy.jsonl
run plan import records.jsonl
DRAFTWOOD_PLAN=none run plan show
DRAFTWOOD_PLAN=missing.jsonl run plan show
run plan export all.jsonl --gpu H200 plan.jsonl
run plan import plan.jsonl
ls cache/v1/tune
DRAFTWOOD_PLAN=plan.jsonl run plan show
sed 's/n_tiles=2/n_tiles=1/' plan.jsonl >changed.jsonl
run plan show changed.jsonl
DRAFTWOOD_PLAN=changed.jsonl run plan show
head -n 1 plan.jsonl >short.jsonl
run plan import short.jsonl
sed 's/"batch":8/"batch":0/' records.jsonl >bad.jsonl
run plan import bad.jsonl
run plan show missing.jsonl
run plan
run plan turn
run plan export
run plan import
# Without a GPU.
export DRAFTWOOD_DRIVER=/nowhere/libcuda.so
run tune kimi-k2.6-tp8 2>&1 | sed 's/libcuda.so:.*/libcuda.so: .../'
run tune
run tune kimi-k2.6-tp8 --budget soon
run tune kimi-k2.6-tp8 --effort much
