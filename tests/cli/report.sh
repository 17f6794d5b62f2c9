# A page from measured rows and a sweep's records: what is in it, that it needs nothing else, and what is refused.
tests=$(dirname "$script")/..
cp "$tests/../bench/results/nvidia-h200-2026-11-30.jsonl" rows.jsonl
cp "$tests/data/fuzz/tune/record" records.jsonl
run report rows.jsonl records.jsonl --output page.html | sed 's/[0-9]* rows/N rows/'
grep -o '<h1>[^<]*\|<h2>[^<]*' page.html
grep -c '<svg' page.html | sed 's/^[0-9][0-9]$/dozens of plots/'
grep -A1 'Choices</h2>' page.html | grep -o '<tr><td class="p">.*'
grep -o 'sglang [a-z0-9. ]*\|flashinfer [a-z0-9. ]*' page.html | sort -u
grep -c '<script\|<link\|<img\|@import\|url(\|src=\|href=\|http' page.html
grep -o 'prefers-color-scheme:dark\|@media print' page.html | sort -u
# Every element that has to be closed is.
for tag in section div figure table svg style h1 h2 h3 p code text title; do
  [ "$(grep -o "<$tag[ >]" page.html | wc -l)" = "$(grep -o "</$tag>" page.html | wc -l)" ] || echo "$tag: not as many are closed as opened"
done
# The same rows, the same page; text from a file stays text.
"$draftwood" report rows.jsonl records.jsonl --output again.html >/dev/null
cmp page.html again.html
head -n 1 rows.jsonl | sed 's/"board":"[^"]*"/"board":"<script>alert(1)<\/script> H200"/' >evil.jsonl
run report evil.jsonl --output evil.html
grep -c '<script' evil.html
grep -o '<h1>.*</h1>' evil.html
run report
run report missing.jsonl
echo '{"us":1' >bad.jsonl
run report bad.jsonl
run report evil.jsonl --output nowhere/page.html
