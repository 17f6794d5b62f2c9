# label: quick nvrtc
# Which field keeps an entry from being used; where one is found.
variant=family=reference
run cache explain kimi-k2.6-tp8,t=2 --variant "$variant" | sed "s|^nearest    [0-9a-f]*$|nearest    BUILD|"
run build kimi-k2.6-tp8,t=2 --variant "$variant" | tail -n 2
run cache explain kimi-k2.6-tp8,t=2 --variant "$variant" | sed "s|^nearest    [0-9a-f]*$|nearest    BUILD|"
run cache explain kimi-k2.6-tp8,t=3 --variant "$variant" | sed "s|^nearest    [0-9a-f]*$|nearest    BUILD|"
run cache explain kimi-k2.6-tp8,t=2,page=64 --variant "$variant,checked=1" | sed "s|^nearest    [0-9a-f]*$|nearest    BUILD|"
# Without --variant it looks for what build would make, by the same bounds.
run build kimi-k2.6-tp8,t=2 --kv-len 100 | tail -n 2
run cache explain kimi-k2.6-tp8,t=2 --kv-len 100 | grep found
run cache explain kimi-k2.6-tp8,t=2 --kv-len 100 --batch 64 | grep found
mkdir templates
cp "$(dirname "$script")"/../../templates/* templates
echo '// one more' >>templates/ptx.cuh
DRAFTWOOD_TEMPLATES=templates run cache explain kimi-k2.6-tp8,t=2 --variant "$variant" | sed "s|^nearest    [0-9a-f]*$|nearest    BUILD|"
# As a directory of the system it is only read.
mv cache system
DRAFTWOOD_SYSTEM_CACHE=:$PWD/none:$PWD/system: run cache explain kimi-k2.6-tp8,t=2 --variant "$variant"
DRAFTWOOD_SYSTEM_CACHE=$PWD/system run build kimi-k2.6-tp8,t=2 --variant "$variant" | tail -n 2
run cache explain
run cache explain kimi-k2.6-tp8,t=0
DRAFTWOOD_CACHE_LIMIT=lots run cache ls
DRAFTWOOD_COMPILE_SLOTS=0 run build kimi-k2.6-tp8,t=2 --variant "$variant"
