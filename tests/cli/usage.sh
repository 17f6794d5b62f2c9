run version
run
run biuld
run explain kimi-k2.6-tp8
run help version
run help biuld
run build
run build kimi-k2.6-tp8 --widths 1,x
run build kimi-k2.6-tp8 --jobs 0
run gen nope
run gen kimi-k2.6-tp8,t=0
run gen kimi-k2.6-tp8 --variant family=nope
run cache inspect
run gen --help
