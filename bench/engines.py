#!/usr/bin/env python3
"""The engines' side on GPUs, from a folder that bench/engines.sh made: recorded vLLM and SGLang steps, transformers, the tree decoder with
both kinds of attention, two tensor-parallel ranks, eight workers. Parts of one GPU run beside each other where there are two.

usage: engines.py RESULTS.json [--only PART,...] [--small]

RESULTS.json is one record: date, boards, software, commit, command, and each part's exit status, seconds and results. The last lines are a
table. Exit status 0: all passed; 1: not. A part that cannot run is named with its reason. --small: a trial of few tokens on the GPU made of
software that DRAFTWOOD_DRIVER names.
"""
import argparse
import datetime
import glob
import json
import os
import shlex
import subprocess
import sys
import tempfile
import threading
import time
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
FACTS = """import json, torch, triton, transformers
print(json.dumps({"boards": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())], "software":
 f"torch {torch.__version__}, triton {triton.__version__}, transformers {transformers.__version__}, CUDA {torch.version.cuda}"}))"""


def nvrtc_folder():
    """Where NVRTC of CUDA 13 is, if the loader does not know it: a toolkit's folder or the one of PyPI's package."""
    found = glob.glob("/usr/local/cuda/lib64/libnvrtc.so.13")
    for folder in (os.path.join(path, "nvidia") for path in sys.path):
        found += glob.glob(os.path.join(folder, "**", "libnvrtc.so.13"), recursive=True)
    return os.path.dirname(found[0]) if found else None


def environment(folder):
    """The wheel is unpacked, which is all that an installation of it does."""
    (wheel,) = glob.glob(os.path.join(HERE, "draftwood-*.whl"))
    with zipfile.ZipFile(wheel) as file:
        file.extractall(os.path.join(folder, "site"))
    os.mkdir(os.path.join(folder, "cache"), 0o700)
    values = dict(os.environ, PYTHONPATH=os.path.join(folder, "site"), PYTHONDONTWRITEBYTECODE="1", PYTHONUNBUFFERED="1",
                  DRAFTWOOD_CACHE_DIR=os.path.join(folder, "cache"), DRAFTWOOD_VERIFY="on")
    values.setdefault("NCCL_NVLS_ENABLE", "0")  # NVLink multicast stays off
    if "DRAFTWOOD_NVRTC" not in values and nvrtc_folder():
        values["DRAFTWOOD_NVRTC"] = nvrtc_folder()
    return values


def read_lines(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def parts_of(folder, small):
    """name -> (GPUs, seconds at most, program and arguments, its results)"""
    slower = 4 if small else 1
    few = "--device cpu --limits sm_120 --tokens 8 --prompts 1 --budget 24 --depth 6 --layers 2".split() if small else []
    sglang = ["--sglang", os.path.join(HERE, "sglang")] if os.path.isdir(os.path.join(HERE, "sglang")) else []
    checks = os.path.join(folder, "checks.jsonl")
    parts = {"recorded": (1, 170 * slower, ["gpu_engines.py", *sglang, "--out", checks], lambda: {"checks": read_lines(checks)}),
             "transformers": (1, 100 * slower, ["check_transformers.py"], dict),
             "workers": (1, 100 * slower, ["test_workers.py", "gpu"], dict)}
    for ranks in (1, 2):
        for model in ("gqa", "mla"):
            name = f"tree {model}" + (f", {ranks} ranks" if ranks > 1 else "")
            path = os.path.join(folder, f"tree-{model}-{ranks}.json")
            parts[name] = (ranks, 100 * slower, ["tree_decoder.py", "--model", model, "--ranks", str(ranks), *few, "--json", path],
                           lambda path=path: read_lines(path)[0])
    return parts


class Runs:
    def __init__(self, values):
        self.values, self.results, self.lock = values, {}, threading.Lock()

    def run(self, name, part, gpus):
        count, limit, command, results = part
        begin, values = time.time(), dict(self.values)
        if gpus is not None:
            values["CUDA_VISIBLE_DEVICES"] = gpus
        result = {"command": shlex.join([os.path.basename(word) if os.path.isabs(word) else word for word in command]), "gpus": count}
        process = subprocess.Popen([sys.executable, os.path.join(HERE, command[0]), *command[1:]], env=values, cwd=HERE, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            output = process.communicate(timeout=limit)[0]
            result["exit"] = process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)  # ranks and workers, too
            output = process.communicate()[0]
            result["exit"] = f"ended after {limit} s"
        result["seconds"] = round(time.time() - begin, 1)
        try:
            result.update(results())
        except (OSError, ValueError, IndexError) as error:
            result["missing"] = str(error)
        lines = output.splitlines()
        result["output"] = lines[-12:] if result["exit"] == 0 else lines[-60:]
        with self.lock:
            self.results[name] = result
            print(f"{name}: exit {result['exit']}, {result['seconds']} s", flush=True)
            if result["exit"] != 0:
                print("\n".join(lines[-40:]), flush=True)

    def lane(self, parts, gpu):
        for name, part in parts:
            self.run(name, part, gpu)


def summary(name, result):
    """A line of the table."""
    text = f"{name:18} {'ok' if result.get('exit') == 0 else 'FAIL':4} {result.get('seconds', 0):6.1f} s  "
    if "not_run" in result:
        return f"{name:18} not run: {result['not_run']}"
    if "checks" in result:
        checks = result["checks"]
        worst = lambda *words: max([row["value"] for row in checks if all(word in row["check"] for word in words)], default=0)
        text += (f"{sum(row['right'] for row in checks)} of {len(checks)} checks; rows from fp64 at most: SGLang's steps "
                 f"{worst('heads: ours from fp64'):.2e}, vLLM's {worst('vLLM', 'ours from fp64'):.2e}, ranks merged {worst('merged', 'fp64'):.2e}")
    elif "acceptance" in result:
        margin = max([row["margin"] for row in result["parted"]], default=0)
        text += (f"{result['acceptance']:.2f} tokens a step; {result['equal_to_greedy']} of {result['prompts']} texts greedy's, others part "
                 f"within {margin:.1e}; furthest below best {result['forced_furthest_below_best']:.1e}")
        if "us" in result:
            text += "\n" + " " * 34 + "us: " + ", ".join(f"{phase} {us:.0f}" for phase, us in result["us"].items())
        if "ranks_agree" in result:
            text += (f"\n{'':34}ranks agree {result['ranks_agree']}, {result['equal_to_one_rank']} texts as of one rank, cold start "
                     f"{[row['compiles'] for row in result['cold_start']]} compiles")
    elif result["output"]:
        lines = [line for line in result["output"] if line.startswith(("ok", "FAIL")) or "workers," in line or "Error" in line]
        text += ("\n" + " " * 34).join(lines or result["output"][-1:])
    return text


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1].split("\n\n")[0])
    parser.add_argument("results")
    parser.add_argument("--only", default="")
    parser.add_argument("--small", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="draftwood-engines-") as folder:
        values = environment(folder)
        facts = subprocess.run([sys.executable, "-c", FACTS], env=values, capture_output=True, text=True, check=False)
        if facts.returncode:
            sys.exit(f"engines.py: torch, triton and transformers are needed:\n{facts.stderr}")
        with open(os.path.join(HERE, "commit.txt"), encoding="utf-8") as file:
            commit = file.read().strip()
        record = {"date": datetime.date.today().isoformat(), "commit": commit, "command": "bench/engines.py RESULTS.json",
                  **json.loads(facts.stdout.splitlines()[-1])}
        if given.small:
            record["boards"] = ["a GPU made of software"] * 2
        gpus, parts, runs = len(record["boards"]), parts_of(folder, given.small), Runs(values)
        wanted = [name for name in parts if not given.only or name in given.only.split(",")]
        for name in [name for name in wanted if parts[name][0] > gpus]:
            runs.results[name] = {"not_run": f"{gpus} GPU here, {parts[name][0]} are needed"}
            wanted.remove(name)
        single = [(name, parts[name]) for name in wanted if parts[name][0] == 1]
        lanes = [single] if gpus < 2 else [[part for part in single if part[0] in ("recorded", "transformers")],
                                           [part for part in single if part[0] not in ("recorded", "transformers")]]
        threads = [threading.Thread(target=runs.lane, args=(lane, str(gpu))) for gpu, lane in enumerate(lanes)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        runs.lane([(name, parts[name]) for name in wanted if parts[name][0] > 1], None)
    record["parts"] = {name: runs.results[name] for name in parts if name in runs.results}
    with open(given.results, "w", encoding="utf-8") as file:
        json.dump(record, file, indent=1)
        file.write("\n")
    print(f"\n{', '.join(record['boards'])}; {record['software']}; {commit[:12]}")
    for name, result in record["parts"].items():
        print(summary(name, result))
    return int(any(result.get("exit", 0) != 0 for result in record["parts"].values()))


if __name__ == "__main__":
    sys.exit(main())
