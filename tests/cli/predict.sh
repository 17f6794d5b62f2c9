# Boards that are not at hand: two ways to a prediction, as a table, as JSON and as a plan; what is refused.
cp "$(dirname "$script")/../../bench/results/nvidia-h200-2026-11-30.jsonl" rows.jsonl
run bench --predict --widths 9 --lengths 1000,185000 --batches 1
run bench --predict --widths 9 --lengths 23000 --batches 1,8 --board 5090 --rows rows.jsonl --json
run bench --predict kimi-k2.6-tp8,kv=e4m3 --widths 9 --lengths 1000,185000 --batches 1 --board 5090 --json
run bench --predict --widths 64 --lengths 23000 --batches 8 --board 6000 --json --plan plan.jsonl
run plan show plan.jsonl
run bench --predict --plan nowhere/plan.jsonl --board 5090 --widths 1 --lengths 1000 --batches 1 --json
run bench --predict --rows missing.jsonl
run bench --predict mla:h=0
run bench --predict --board H200
run bench --predict kimi-k2.6-tp8 kimi-k2.6-tp8
