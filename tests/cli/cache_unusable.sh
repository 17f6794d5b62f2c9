# label: quick;nvrtc
# A directory that cannot be used costs a warning and compiles, never a result.
touch file
export DRAFTWOOD_CACHE_DIR=file/cache
request=(kimi-k2.6-tp8,t=1 --variant family=reference)
run build "${request[@]}" | tail -n 2
run cache ls
run cache stats
run doctor | grep -A 1 -e cache -e exit
mkdir open
chmod 777 open
export DRAFTWOOD_CACHE_DIR=open
run build "${request[@]}" | tail -n 2
