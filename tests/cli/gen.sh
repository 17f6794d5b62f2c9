# The same source in every process, and an error of a template names its file and line.
run gen kimi-k2.6-tp8 --variant family=reference | sed '2s/: accumulate=.*//; 2q'
"$draftwood" gen kimi-k2.6-tp8 >once
"$draftwood" gen kimi-k2.6-tp8 >twice
cmp once twice && echo same
mkdir templates
echo 'a template' >templates/verify.cu.lua
DRAFTWOOD_TEMPLATES=templates run gen kimi-k2.6-tp8 2>&1 | sed -n '1,2p;$p'
