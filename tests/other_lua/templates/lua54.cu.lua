@ local seven <const> = 7
int version = ${seven // 2} ${math.type(seven)} ${seven | 3};
