# Every mistake in a request is told in one message that names the field, what was found and what is allowed; exit 2.
run gen mla:h=8,t=9,heads=8
run gen mla:h=0,t=9
run gen mla:h=8
run gen mla:h=8,t=9,t=10
run gen mla:h=eight,t=9
run gen mla:h=8,t=0
run gen mla:h=8,t=1026
run gen mla:h=8,t=9,page=24
run gen mla:h=8,t=9,qk=256,v=512
run gen mla:h=8,t=9,q=fp8
run gen mla:h=8,t=9,q=bf16,kv=fp16
run gen mla:h=8,t=9,target=sm_77
run gen mla:h=8,t=9,target=sm_110
run gen mla:h=8,t=9,limits=sm_90
run gen qwen3-8b --variant family=rowsplit,combine=few
run gen 'mla:h=8,t=9' 'mla:h=8,t=1'
run gen kimi-k2.6-tp8 --variant n_tiles=6
run gen kimi-k2.6-tp8 --variant family=reference,combine=few
run gen kimi-k2.6-tp8 --variant tiles=1
run build kimi-k2.6-tp8 --widths 0
run build kimi-k2.6-tp8 --widths 1,,2
run build kimi-k2.6-tp8 --target sm_120,sm_77
run build kimi-k2.6-tp8 --limits small
run build kimi-k2.6-tp8 --verify gpu
run build kimi-k2.6-tp8 --variant family=split --all-variants
run build kimi-k2.6-tp8 --widht 1
run build kimi-k2.6-tp8 --json=yes
run build kimi-k2.6-tp8 --widths
run verify kimi-k2.6-tp8 --lengths -1
run verify kimi-k2.6-tp8 --mask tree
run verify kimi-k2.6-tp8 --seed 99999999999
run verify kimi-k2.6-tp8 --soft-cap -1
run verify kimi-k2.6-tp8 --soft-cap 50x
run verify kimi-k2.6-tp8 --drafts-elsewhere --window 4
run verify kimi-k2.6-tp8 --mask bits --mask-shared
run verify kimi-k2.6-tp8 --planes in-page
run verify kimi-k2.6-tp8 --kv-scale 0.5
run verify
run presets all
run cache clean
run cache inspect ab
run doctor now
run gen $'mla:h=8,t=9,target=red\tnext'
run gen gqa:h=32,hk=8,t=9,d=80 --list
run gen kimi-k2.6-tp8 --list --variant family=reference
run cache inspect ../..
run version extra
