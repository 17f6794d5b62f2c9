# What is missing comes with what to do about it; without a compiler draftwood cannot do its work, without a driver it can.
export DRAFTWOOD_DRIVER=/nowhere/libcuda.so DRAFTWOOD_NVRTC=/nowhere
run doctor | grep -e '->' -e 'built in' -e exit | sed -E 's/[0-9a-f]{12}/KEY/'
run doctor --json | grep -c '"advice"'
