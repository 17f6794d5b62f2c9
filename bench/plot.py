#!/usr/bin/env python3
"""Plots and tables from bench/results/*.jsonl: time of a call against the prefix length, a panel for each page size and batch.

usage: bench/plot.py RESULTS.jsonl... [--svg FILE] [--table] [--heads 8] [--width 9] [--l2 cold] [--board TEXT]

Of several rows for one point the last in the files counts. A line is an implementation; of draftwood's variants the fastest
counts at each point. Needs Python alone.
"""
import argparse
import json
import math
import re
import sys

COLORS = ["#0b6e99", "#d9730d", "#448361", "#ad1a72", "#7d6b3d", "#6940a5", "#b32020", "#555555"]
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 420, 300, 56, 12, 34, 40


def read_rows(files):
    """Rows in the order of the files; later ones replace earlier ones of the same point."""
    found = {}
    for name in files:
        with open(name, encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                try:
                    row = json.loads(line)
                except json.JSONDecodeError as error:
                    sys.exit(f"{name}:{number}: {error}")
                row["h"], row["t"] = shape_field(row, "h"), shape_field(row, "t")
                keys = ("board", "impl", "shape", "variant", "batch", "page", "mask", "l2", "slots", "chain")
                found[tuple(row.get(k) for k in keys) + (json.dumps(row["prefix"]),)] = row
    return list(found.values())


def shape_field(row, name):
    match = re.search(rf"[:,]{name}=(\d+)", row["shape"])
    return int(match.group(1)) if match else 0


def series_name(row):
    return row["impl"] + (" chained" if row.get("chain") else "")


def choose(rows, args):
    kept = [r for r in rows if r["h"] == args.heads and r["t"] == args.width and r["l2"] == args.l2]
    if args.board:
        kept = [r for r in kept if args.board in r["board"]]
    return [r for r in kept if not isinstance(r["prefix"], list)]


def best_points(rows):
    """{series: {prefix: row}}, the fastest of a series at each prefix."""
    best = {}
    for row in rows:
        points = best.setdefault(series_name(row), {})
        if row["prefix"] not in points or row["us"] < points[row["prefix"]]["us"]:
            points[row["prefix"]] = row
    return best


# ---- SVG --------------------------------------------------------------------------------------------------------


def escape(text):
    return str(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


class Panel:
    """One plot with logarithmic axes at (x0, y0)."""

    def __init__(self, x0, y0, title, xs, ys):
        self.x0, self.y0, self.title, self.parts = x0, y0, title, []
        self.x_range, self.y_range = self.widen(xs), self.widen(ys)

    @staticmethod
    def widen(values):
        low, high = min(values), max(values)
        return math.log10(low) - 0.06, math.log10(high if high > low else low * 2) + 0.06

    def x(self, value):
        low, high = self.x_range
        return self.x0 + LEFT + (math.log10(value) - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def y(self, value):
        low, high = self.y_range
        return self.y0 + HEIGHT - BOTTOM - (math.log10(value) - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    def text(self, x, y, text, anchor="middle", size=11, extra=""):
        place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" {extra}'
        self.parts.append(f"<text {place}>{escape(text)}</text>")

    def ticks(self, span):
        low, high = span
        steps = [m * 10**e for e in range(math.floor(low), math.ceil(high) + 1) for m in (1, 2, 5)]
        return [s for s in steps if low <= math.log10(s) <= high]

    def axes(self):
        bottom, left = self.y0 + HEIGHT - BOTTOM, self.x0 + LEFT
        for tick in self.ticks(self.x_range):
            self.parts.append(f'<path d="M{self.x(tick):.1f} {self.y0 + TOP}V{bottom}" stroke="#e4e4e4"/>')
            self.text(self.x(tick), bottom + 14, f"{tick / 1000:g}k" if tick >= 1000 else f"{tick:g}", size=10)
        for tick in self.ticks(self.y_range):
            self.parts.append(f'<path d="M{left} {self.y(tick):.1f}H{self.x0 + WIDTH - RIGHT}" stroke="#e4e4e4"/>')
            self.text(left - 5, self.y(tick) + 3, f"{tick:g}", "end", 10)
        self.text(self.x0 + (LEFT + WIDTH - RIGHT) / 2, self.y0 + 20, self.title, size=13)
        self.text(self.x0 + (LEFT + WIDTH - RIGHT) / 2, bottom + 30, "committed tokens")
        x, y = self.x0 + 13, self.y0 + HEIGHT / 2
        self.text(x, y, "µs a call", extra=f'transform="rotate(-90 {x} {y})"')

    def line(self, points, color, dashed=False):
        path = "L".join(f"{self.x(p):.1f} {self.y(v):.1f}" for p, v in points)
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        self.parts.append(f'<path d="M{path}" fill="none" stroke="{color}" stroke-width="1.8"{dash}/>')
        if not dashed:
            self.parts += [f'<circle cx="{self.x(p):.1f}" cy="{self.y(v):.1f}" r="2.6" fill="{color}"/>' for p, v in points]

    def spread(self, points, color):
        for prefix, low, high in points:
            self.parts.append(f'<path d="M{self.x(prefix):.1f} {self.y(low):.1f}V{self.y(high):.1f}" stroke="{color}"/>')


def draw_panel(x0, y0, title, rows, colors):
    best = best_points(rows)
    values = [r["us"] for points in best.values() for r in points.values()]
    floors = sorted({r["prefix"]: r["floor_us"] for r in rows if r["floor_us"] > 0}.items())
    panel = Panel(x0, y0, title, [r["prefix"] for r in rows], values + [f for _, f in floors])
    panel.axes()
    if floors:
        panel.line(floors, "#999999", dashed=True)
    for name, points in best.items():
        ordered = [points[p] for p in sorted(points)]
        panel.line([(r["prefix"], r["us"]) for r in ordered], colors[name])
        panel.spread([(r["prefix"], r["us_p10"], r["us_p90"]) for r in ordered if r.get("us_p10")], colors[name])
    return panel.parts


def legend(names, colors, y):
    parts, x = [], 16
    for name in names + ["floor"]:
        color = colors.get(name, "#999999")
        dash = ' stroke-dasharray="4 3"' if name == "floor" else ""
        parts.append(f'<path d="M{x} {y}h22" stroke="{color}" stroke-width="2"{dash}/>')
        parts.append(f'<text x="{x + 28}" y="{y + 4}" font-size="12">{escape(name)}</text>')
        x += 44 + 7 * len(name)
    return parts


def with_lines(rows):
    """The rows of batches and page sizes that have more than one prefix: a single point makes no plot."""
    prefixes = {}
    for r in rows:
        prefixes.setdefault((r["page"], r["batch"]), set()).add(r["prefix"])
    return [r for r in rows if len(prefixes[r["page"], r["batch"]]) > 1]


def draw(rows, args):
    rows = with_lines(rows)
    pages, batches = sorted({r["page"] for r in rows}), sorted({r["batch"] for r in rows})
    names = sorted({series_name(r) for r in rows}, key=lambda n: (not n.startswith("draftwood"), n))
    colors = {name: COLORS[i % len(COLORS)] for i, name in enumerate(names)}
    parts, head = [], 52
    for i, page in enumerate(pages):
        for j, batch in enumerate(batches):
            group = [r for r in rows if r["page"] == page and r["batch"] == batch]
            if group:
                parts += draw_panel(j * WIDTH, head + i * HEIGHT, f"batch {batch}, page {page}", group, colors)
    width, height = max(len(batches) * WIDTH, 640), head + len(pages) * HEIGHT
    about = rows[-1]
    title = f'{args.heads} heads, {args.width} draft tokens, {args.l2} L2, {about["board"]}, {about["date"]}'
    return "\n".join(
        [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
         'font-family="system-ui, sans-serif">', '<rect width="100%" height="100%" fill="#ffffff"/>',
         f'<text x="16" y="20" font-size="14" font-weight="600">{escape(title)}</text>']
        + legend(names, colors, 38) + parts + ["</svg>", ""])


# ---- table ------------------------------------------------------------------------------------------------------


def print_table(rows):
    names = sorted({series_name(r) for r in rows}, key=lambda n: (not n.startswith("draftwood"), n))
    print("| batch | page | prefix | floor µs | " + " | ".join(f"{n} µs" for n in names) + " | draftwood / floor |")
    print("|--:|--:|--:|--:|" + "--:|" * (len(names) + 1))
    for batch, page, prefix in sorted({(r["batch"], r["page"], r["prefix"]) for r in rows}):
        here = [r for r in rows if (r["batch"], r["page"], r["prefix"]) == (batch, page, prefix)]
        best = {name: points[prefix]["us"] for name, points in best_points(here).items()}
        floor = here[-1]["floor_us"]
        own = best.get("draftwood")
        cells = [f"{best[n]:.1f}" if n in best else "" for n in names]
        ratio = f"{own / floor:.2f}" if own and floor else ""
        print(f"| {batch} | {page} | {prefix} | {floor:.1f} | " + " | ".join(cells) + f" | {ratio} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+")
    parser.add_argument("--svg")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--width", type=int, default=9)
    parser.add_argument("--l2", default="cold")
    parser.add_argument("--board", default="")
    args = parser.parse_args()
    rows = choose(read_rows(args.results), args)
    if not rows:
        sys.exit("no row fits --heads, --width, --l2 and --board")
    if args.svg:
        with open(args.svg, "w", encoding="utf-8") as out:
            out.write(draw(rows, args))
    if args.table or not args.svg:
        print_table(rows)


if __name__ == "__main__":
    main()
