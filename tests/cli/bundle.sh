# label: quick nvrtc release-only
# A bundle of two kernels and the companions: the same bytes from another folder and cache, and from its shards; what the actions
# say of it, sound and damaged. (Sizes and keys differ between compilers.)
steady() { sed -E -e 's/\b[0-9]+ (bytes|MiB)/N \1/g' -e 's/^(bytes +)[0-9]+$/\1N/' -e 's/\b[0-9a-f]{12}\b/KEY12/g' -e 's/^KEY12 +[0-9]+ /KEY12  N /' \
  -e 's/[0-9.]+ (s|minutes),/N minutes,/' -e 's/\b[0-9]+ compiled/N compiled/' -e 's/parameters [0-9]+/parameters N/'; }
list=(kimi-k2.6-tp8,page=64 --widths 1,2 --variant family=reference --target sm_120)
run bundle build "${list[@]}" --companions --output a.dwb | steady
mkdir elsewhere
(cd elsewhere && DRAFTWOOD_CACHE_DIR=$PWD/other "$draftwood" bundle build "${list[@]}" --companions --jobs 1 --output b.dwb >/dev/null)
cmp a.dwb elsewhere/b.dwb && echo "the same bytes"
run bundle ls a.dwb | steady | sed '/^build key/,$ {/^build key/! {/^\[/! d}}'
"$draftwood" bundle ls a.dwb | sed '1,/^build key/d' | awk '{$1 = $2 = ""; print}' | sort
run bundle verify a.dwb
run bundle diff a.dwb elsewhere/b.dwb

echo "shards"
for i in 0 1 2; do "$draftwood" bundle build "${list[@]}" --companions --shard $i/3 --output part-%i-of-%n.dwb >/dev/null; done
ls part-*
run bundle merge part-1-of-3.dwb part-0-of-3.dwb part-2-of-3.dwb --output merged.dwb | steady
cmp a.dwb merged.dwb && echo "the same bytes"
run bundle diff a.dwb part-1-of-3.dwb

echo "in front of the cache"
mkdir shelf
cp a.dwb merged.dwb shelf
export DRAFTWOOD_BUNDLES=$PWD/part-2-of-3.dwb:$PWD/nowhere.dwb:$PWD/shelf
run doctor | sed -n "/^bundle/,\$p"
unset DRAFTWOOD_BUNDLES

echo "the release bundle"
run bundle build --release --dry-run --widths 1 --variant family=reference
run bundle build --release --dry-run --shard 3/8 --pages 16 2>&1 | sed -E 's/^[0-9]+ kernels/N kernels/'
run bundle build --release --dry-run --pages 64 --variant family=rowsplit,combine=few,combine_splits=8
run bundle build --release --dry-run --variant family=rowsplit,n_tiles=5,combine=none 2>&1 | tail -n 2

echo "misses"
cat >misses <<'END'
{"call":"any","shape":"mla:h=8,t=2,qk=576,v=512,page=64,q=bf16,kv=bf16,target=sm_120,limits=native","target":"sm_120","variant":"family=reference"}
{"call":"companions","shape":"companions","target":"sm_120","variant":""}
END
cat misses misses >twice
run bundle build --from-misses twice --output misses.dwb | steady
run bundle diff a.dwb misses.dwb
echo "no JSON" >>twice
run bundle build --from-misses twice --output x.dwb

echo "signatures"
head -c 32 /dev/urandom | od -An -v -tx1 | tr -d ' \n' >key
head -c 32 /dev/urandom | od -An -v -tx1 | tr -d ' \n' >other
run bundle merge merged.dwb --sign key --output signed.dwb | steady
{
  echo "-----BEGIN PRIVATE KEY-----"
  { printf '\x30\x2e\x02\x01\x00\x30\x05\x06\x03\x2b\x65\x70\x04\x22\x04\x20' && printf "$(sed 's/../\\x&/g' key)"; } | base64
  echo "-----END PRIVATE KEY-----"
} >key.pem
"$draftwood" bundle merge merged.dwb --sign key.pem --output again.dwb >/dev/null
cmp signed.dwb again.dwb && echo "the same signature by the same key as PEM"
run bundle merge merged.dwb --sign other --output alien.dwb | steady
"$draftwood" bundle ls signed.dwb | sed -n 's/^signed by *//p' >public
run bundle verify signed.dwb --public-key public
run bundle verify alien.dwb a.dwb --public-key public
run bundle verify signed.dwb
{
  echo "-----BEGIN PUBLIC KEY-----"
  { printf '\x30\x2a\x30\x05\x06\x03\x2b\x65\x70\x03\x21\x00' && printf "$(sed 's/../\\x&/g' public)"; } | base64
  echo "-----END PUBLIC KEY-----"
} >public.pem
run bundle verify signed.dwb --public-key public.pem
run bundle verify signed.dwb --public-key key.pem
run bundle verify signed.dwb --public-key nothing
echo "no key" >nothing
run bundle verify signed.dwb --public-key nothing

echo "damage"
size=$(stat -c %s a.dwb)
cp a.dwb bad.dwb
printf '\xff\xff' | dd of=bad.dwb bs=1 seek=$((size - 40)) conv=notrunc status=none
run bundle verify bad.dwb | steady
run bundle diff a.dwb bad.dwb 2>&1 | steady
run bundle verify bad.dwb --json | sed -E 's/entry [0-9a-f]{12}/entry KEY12/'
run bundle diff a.dwb part-2-of-3.dwb --json
"$draftwood" bundle ls a.dwb --json | grep -c -e '"request_key"' -e '"signer": ""' -e '"registers"'
head -c $((size / 2)) a.dwb >half.dwb
run bundle ls half.dwb
run bundle ls nowhere.dwb

echo "files for others"
run bundle extract a.dwb --cubin out | steady
ls out | sed -E 's/__[0-9a-f]{12}\./__KEY12./'
run bundle extract a.dwb

echo "bad input"
run bundle
run bundle mrege
run bundle build "${list[@]}"
run bundle build --output x.dwb
run bundle build "${list[@]}" --shard 3/3 --output x.dwb
run bundle build "${list[@]}" --shard auto --output x.dwb
run bundle build "${list[@]}" --sign nothing --output x.dwb
run bundle build kimi-k2.6-tp8,t=9000 --output x.dwb
run bundle build "${list[@]}" --output nowhere/x.dwb
run bundle merge --output x.dwb
ls x.dwb 2>&1
