# O-e06: bytes of tokens and pages, and what of them is padding.
run layout mla:h=16,t=1 mla:h=16,t=1,page=64
run layout mla:h=16,t=1,page=64,kv=e4m3
run layout mla:h=16,t=1,page=64,kv=record656 --token-stride 672
run layout gqa:h=32,hk=8,t=1,d=80,page=16 gqa:h=32,hk=8,t=1,d=96,page=16
run layout mla:h=16,t=1,page=64 --token-stride 640
run layout mla:h=16,t=1,page=64 --page-stride 40960 --lengths 1,64,65,1000
run layout mla:h=16,t=1 --token-stride 575
run layout mla:h=16,t=1,page=16 --page-stride 9000
run layout
run layout nope
