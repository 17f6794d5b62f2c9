#!/usr/bin/env bash
# report_shot.sh COMMAND RESULTS: the report in a real browser, headless: light, dark and on paper. Exit 77 where there is none.
set -euo pipefail
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)
[ -n "$browser" ] || { echo "SKIP: no Chromium"; exit 77; }
command -v python3 >/dev/null || { echo "SKIP: no python3"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"$1" report "$2"/nvidia-h200-2026-11-30.jsonl "$2"/../../tests/data/fuzz/tune/record --output page.html
shoot() { # its log is shown where it fails
  timeout 100 "$browser" --headless --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir="$folder/profile" --window-size=760,900 \
    "$@" "file://$folder/page.html" 2>log || { cat log; exit 1; }
}
shoot --screenshot=light.png
shoot --screenshot=dark.png --blink-settings=preferredColorScheme=0
shoot --print-to-pdf=page.pdf --no-pdf-header-footer
python3 - <<'END'
import collections, re, struct, zlib

def pixels(name):
    """Rows of a PNG of 8 bits a channel."""
    data, at, packed = open(name, "rb").read(), 8, b""
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at:at + 8])
        body = data[at + 8:at + 8 + size]
        if kind == b"IHDR":
            width, height, depth, colour = struct.unpack(">IIBB", body[:10])
            assert depth == 8 and colour in (2, 6), (depth, colour)
            each = 3 if colour == 2 else 4
        packed += body if kind == b"IDAT" else b""
        at += size + 12
    raw, before, rows = zlib.decompress(packed), bytes(width * each), []
    for y in range(height):
        start = y * (width * each + 1)
        way, line = raw[start], bytearray(raw[start + 1:start + 1 + width * each])
        if way == 2:
            line = bytearray((a + b) & 255 for a, b in zip(line, before))
        for i in range(len(line)) if way in (1, 3, 4) else ():
            left, up, corner = (line[i - each], before[i], before[i - each]) if i >= each else (0, before[i], 0)
            if way == 4:  # the nearest of the three to left + up - corner
                a, b, c = abs(up - corner), abs(left - corner), abs(left + up - 2 * corner)
                line[i] = line[i] + (left if a <= b and a <= c else up if b <= c else corner) & 255
            else:
                line[i] = line[i] + (left if way == 1 else (left + up) // 2) & 255
        rows.append([tuple(line[i:i + 3]) for i in range(0, len(line), each)])
        before = line
    return rows

def look(name):
    rows = pixels(name)
    counts = collections.Counter(pixel for row in rows for pixel in row)
    back = counts.most_common(1)[0][0]
    far = {pixel for pixel in counts if sum(abs(a - b) for a, b in zip(pixel, back)) > 250}
    written = [row for row in rows if not far.isdisjoint(row)]
    coloured = sum(n for pixel, n in counts.items() if max(pixel) - min(pixel) > 80)
    edge = sum(pixel != back for row in rows for pixel in row[-8:])
    print(f"{name}: back {back}, {len(written)} of {len(rows)} rows written, {coloured} coloured pixels, {edge} at the right edge")
    assert len(written) > len(rows) // 4 and coloured > 500, "nothing much is drawn"
    assert edge == 0, "the page is wider than the window"
    return sum(back)

assert look("light.png") > 3 * 230 and look("dark.png") < 3 * 60
pdf = open("page.pdf", "rb").read()
pages = max(map(int, re.findall(rb"/Count (\d+)", pdf)))
print(f"page.pdf: {pages} pages, {len(pdf)} bytes")
assert 3 <= pages <= 30
END
