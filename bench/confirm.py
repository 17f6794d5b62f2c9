#!/usr/bin/env python3
"""confirm.py DRAFTWOOD RESULTS --exhaustive FOLDER --tuned FOLDER... [--reps N]: measures again what `draftwood tune` chose.

For each problem of the first tuned plan one `draftwood bench` process runs, in turns, its choice, the fastest variant that the exhaustive
sweep found and the default. The table at the end holds the choice against both, beside the bars: within 2 % of the fastest, and never more
than 1 % slower than the default. Of two tuned plans it says where they differ and whether both choices tie in both. Exit 1 where a bar
or a tie does not hold.
"""
import argparse
import glob
import json
import os
import statistics
import subprocess
import sys


def lines(folder, name):
    found = glob.glob(os.path.join(folder, "*", name))
    return [json.loads(line) for path in found for line in open(path) if line.strip()]


def problem(row):
    return row["shape"], row["batch"], row["kv_len"]


def records(folder):
    """Records of each problem, of cold times."""
    by_problem = {}
    for row in lines(folder, "records.jsonl"):
        if row["l2"] == "cold":
            by_problem.setdefault(problem(row), []).append(row)
    return by_problem


def choices(folder):
    head, *rows = lines(folder, "plan.jsonl")
    return head["digest"], {problem(row): row for row in rows}


def width_of(shape):
    return int(dict(field.split("=") for field in shape.split(":")[1].split(",") if "=" in field)["t"])


def measure(draftwood, key, variants, reps, record):
    shape, batch, kv_len = key
    command = [draftwood, "bench", shape, "--batches", str(batch), "--lengths", str(kv_len - width_of(shape)), "--addressing", "table",
               "--reps", str(reps), "--variants", " ".join(variants), "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    with open(record, "a") as out:
        for row in rows:
            out.write(json.dumps(row) + "\n")
    return [row["us"] for row in rows]


def compare_plans(names, digests, plans, all_records):
    """How many problems of two plans differ beyond the tie rule."""
    beyond = 0
    print(f"digests: {' '.join(digest[:16] for digest in digests)}: " + ("the same" if len(set(digests)) == 1 else "not the same"))
    for key in plans[0]:
        if key not in plans[1] or plans[0][key]["variant"] == plans[1][key]["variant"]:
            continue
        tied = True
        for rows in all_records:
            by_variant = {row["variant"]: row for row in rows.get(key, []) if row["verdict"] in ("sound", "slower") and row["ratio"] > 0}
            sound = [row for row in by_variant.values() if row["verdict"] == "sound"]
            best = min(sound, key=lambda row: row["ratio"])
            limit = best["ratio"] + max(0.01 * best["ratio"], 2 * best["ratio_mad"])
            for plan in plans:
                row = by_variant.get(plan[key]["variant"])
                tied = tied and row is not None and row["ratio"] <= limit + 0.01 * best["ratio"]
        beyond += not tied
        print(f"  {key}: {plans[0][key]['variant']} and {plans[1][key]['variant']}: {'a tie' if tied else 'NO TIE'}")
    return beyond


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("draftwood")
    parser.add_argument("results")
    parser.add_argument("--exhaustive", required=True)
    parser.add_argument("--tuned", nargs="+", required=True)
    parser.add_argument("--reps", type=int, default=41)
    asked = parser.parse_args()
    folders = [os.path.join(asked.results, name) for name in asked.tuned]
    every = records(os.path.join(asked.results, asked.exhaustive))
    loaded = [choices(folder) for folder in folders]
    digest, tuned = loaded[0]
    record = os.path.join(asked.results, "confirm.jsonl")
    failed, against_best, against_default = 0, [], []
    if len(folders) > 1:
        failed += compare_plans(asked.tuned, [d for d, _ in loaded[:2]], [p for _, p in loaded[:2]], [records(f) for f in folders[:2]])
    print(f"{'problem':<34} {'choice us':>10} {'best us':>10} {'default us':>10} {'/best':>7} {'/default':>8}  choice")
    for key, rows in sorted(every.items(), key=lambda item: (width_of(item[0][0]), item[0][1], item[0][2])):
        sound = [row for row in rows if row["verdict"] in ("sound", "slower") and row["us"] > 0]
        default = next((row["variant"] for row in rows if row["default"]), None)
        if not sound or default is None:
            print(f"{key}: nothing measured")
            failed += 1
            continue
        best = min(sound, key=lambda row: row["ratio"] or row["us"])["variant"]
        choice = tuned[key]["variant"] if key in tuned else default
        distinct = list(dict.fromkeys([choice, best, default]))
        times = dict(zip(distinct, measure(asked.draftwood, key, distinct, asked.reps, record)))
        over_best, over_default = times[choice] / times[best], times[choice] / times[default]
        against_best.append(over_best)
        against_default.append(over_default)
        bad = over_best > 1.02 or over_default > 1.01
        failed += bad
        name = f"t={width_of(key[0])} B={key[1]} {key[2] - width_of(key[0])}"
        print(f"{name:<34} {times[choice]:>10.2f} {times[best]:>10.2f} {times[default]:>10.2f} {over_best:>7.3f} {over_default:>8.3f}"
              f"  {choice}{'  (default)' if choice == default else ''}{'  MISSED' if bad else ''}", flush=True)
    if against_best:
        print(f"{len(against_best)} problems: over the fastest at most {max(against_best):.3f}, median {statistics.median(against_best):.3f}; "
              f"over the default at most {max(against_default):.3f}, median {statistics.median(against_default):.3f}; {failed} missed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
